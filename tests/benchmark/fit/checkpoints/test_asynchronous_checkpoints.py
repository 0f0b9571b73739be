"""Checkpoints that are written while training goes on: which files belong together, and how many are written at a time."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from iotwin.benchmark.fit.checkpoints.checkpoint_files import SeenFile
from iotwin.benchmark.fit.checkpoints.find_checkpoints import SeenCheckpoint, SeenCheckpoints, _in_order, _point_of, unnumbered
from iotwin.benchmark.fit.parameters.checkpoint_keys import twin_checkpoint
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.common.numbers.draws import inverse_cdf
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.synthetic import MILLISECOND

RANK = 100


def seen_file(name: str, start_ms: int, end_ms: int, rank: int = RANK) -> SeenFile:
    return SeenFile(
        file_id=0, path=f"/out/{name}", name=name, start_ns=start_ms * MILLISECOND, end_ns=end_ms * MILLISECOND,
        whole_ns=end_ms * MILLISECOND, pid=rank, tid=rank + 1, rank=rank, write_sizes=[(100, 1)], fsync=True, renamed=False,
        format=None, direct=False, folder_renamed=False, visits=[], serialization_s=0.0, ahead_s=0.0, calls_s=0.0,
    )  # fmt: skip


def grouped(files: list[SeenFile], step_ms: int = 10, steps: int = 100) -> list[list[str]]:
    """The names of the files of each checkpoint, of a job that takes a batch every `step_ms`."""
    taken = np.arange(1, steps + 1) * step_ms * MILLISECOND
    each: list[SeenCheckpoint] = []
    for file in files:
        before = int(np.searchsorted(taken, file.start_ns))
        point = _point_of(each, file, 0, before, taken)
        if point is None:
            point = SeenCheckpoint(1, before, True, [])
            each.append(point)
        point.files.append(file)
    return [[file.name for file in point.files] for point in each]


def test_files_of_checkpoints_that_overlap_are_told_apart():
    # The second begins while the first is being written, which then goes on to its next file.
    files = [
        seen_file("step-4/rank-0.raw", 41, 95),
        seen_file("step-8/rank-0.raw", 81, 140),
        seen_file("step-4/state.json", 96, 97),
        seen_file("step-8/state.json", 141, 142),
    ]
    assert grouped(files) == [["step-4/rank-0.raw", "step-4/state.json"], ["step-8/rank-0.raw", "step-8/state.json"]]
    assert grouped([seen_file("4.pt", 41, 95), seen_file("8.pt", 81, 140), seen_file("4.json", 96, 97)]) == [
        ["4.pt", "4.json"],
        ["8.pt"],
    ]


def test_files_of_one_checkpoint_stay_together():
    # Two ranks, one of which is late by a step; and parts that a rank writes at once.
    ranks = [seen_file("a/rank0.pt", 41, 95), seen_file("a/rank1.pt", 55, 99, rank=RANK + 10)]
    assert grouped(ranks) == [["a/rank0.pt", "a/rank1.pt"]]
    assert grouped([seen_file("part0.pt", 41, 95), seen_file("part1.pt", 42, 99)]) == [["part0.pt", "part1.pt"]]
    # A file that is written again is another checkpoint's, whatever number it shares.
    again = [seen_file("resnet18.pt", 41, 45), seen_file("resnet18.json", 46, 47), seen_file("resnet18.pt", 81, 85)]
    assert grouped(again) == [["resnet18.pt", "resnet18.json"], ["resnet18.pt"]]


def test_folders_that_are_renamed_as_wholes_are_checkpoints_of_their_own():
    names = [
        "step-4/a.raw", "step-4/b.json", "LATEST", "step-4.1/a.raw", "step-4.1/b.json", "LATEST", "step-5/a.raw", "LATEST",
    ]  # fmt: skip
    files = [replace(seen_file(name, begin, begin + 1), folder_renamed=name != "LATEST") for begin, name in enumerate(names, 41)]
    assert grouped(files) == [
        ["step-4/a.raw", "step-4/b.json", "LATEST"],
        ["step-4.1/a.raw", "step-4.1/b.json", "LATEST"],
        ["step-5/a.raw", "LATEST"],
    ]
    each = [SeenCheckpoint(1, step, True, files[3 * step : 3 * step + 3]) for step in range(3)]
    unnumbered(each, "{step}")
    assert {file.name for file in files} == {"step-{step}/a.raw", "step-{step}/b.json", "LATEST"}


RANDOM = [f"{number:08x}-7b32-4a68-8adb-6c2d053eb60b" for number in (3724797676, 17, 42, 3)]


def test_names_that_are_drawn_anew_for_each_checkpoint_are_one():
    files = [seen_file(f"step_{25 * (n // 2 + 1)}/batched/{name}", 41 + n, 42 + n) for n, name in enumerate(RANDOM)]
    each = [SeenCheckpoint(1, step, True, files[2 * step : 2 * step + 2]) for step in range(2)]
    unnumbered(each, "{step}")
    first, second = "step_{step}/batched/{step}", "step_{step}/batched/{step}.1"
    assert [file.name for file in files] == [first, second] * 2


def test_names_that_are_drawn_for_files_found_before_have_no_order():
    """They come behind those that count, where both do."""
    assert sorted([RANDOM[0], "step-10", "step-9"], key=_in_order) == ["step-9", "step-10", RANDOM[0]]


@pytest.mark.parametrize(("written", "listed"), [(["a", "b", "c"], False), (["a", "c"], True), (["a"], False), ([], False)])
def test_a_file_is_missing_and_not_cut_off_where_later_ones_were_written(written, listed):
    """Three checkpoints of three files each, of which the last has those that were `written`."""
    whole = [SeenCheckpoint(1, step, False, [seen_file(name, step, step + 1) for name in "abc"]) for step in (10, 20)]
    last = SeenCheckpoint(1, 30, False, [seen_file(name, 30, 31) for name in written])
    seen = SeenCheckpoints("/out", [*whole, last], False, np.zeros(0), np.zeros(0))
    assert {file.name: file.after for file in twin_checkpoint(seen, []).files}["b"] == ([10, 20] if listed else None)


def test_a_file_without_a_number_belongs_to_the_checkpoint_before():
    first = [seen_file("step-4/rank-0.raw", 41, 45), seen_file("LATEST", 52, 53)]  # a step was taken in between
    second = [seen_file("step-8/rank-0.raw", 81, 85), seen_file("LATEST", 87, 88)]
    assert grouped(first + second) == [["step-4/rank-0.raw", "LATEST"], ["step-8/rank-0.raw", "LATEST"]]
    assert len(grouped([first[0], seen_file("LATEST", 72, 73)])) == 2  # long after


def checkpoints_at(*begun_and_whole_ms: tuple[int, int]) -> SeenCheckpoints:
    each = [SeenCheckpoint(1, 0, True, [seen_file(f"{begin}.pt", begin, whole)]) for begin, whole in begun_and_whole_ms]
    return SeenCheckpoints("/out", each, False, np.zeros(0), np.zeros(0))


def test_in_flight_is_the_most_at_a_time():
    assert checkpoints_at((0, 10), (10, 20), (20, 30)).in_flight == 1
    assert checkpoints_at((0, 15), (10, 25), (20, 35)).in_flight == 2
    assert checkpoints_at((0, 100), (10, 15), (20, 60), (50, 70)).in_flight == 3


BESIDE = """
    asynchronous: true
    in_flight: 2
    snapshot_time: 0.2
    keep: 3
"""


def refitted(tmp_path, *options, checkpoint=BESIDE, epochs=1):
    """What is fitted to an emulated job whose `checkpoint` section ends so, in 48 steps an epoch."""
    data, file_s = tmp_path / "data", 0.8 if BESIDE in checkpoint else 0.0
    data.mkdir()
    for number in range(48):
        (data / f"{number}.bin").write_bytes(bytes(5000))
    # Beside training a checkpoint takes longer than four steps, so that two are under way at a time and training waits for room.
    (tmp_path / "job.yaml").write_text(f"""
workflow: {{checkpoint: true}}
dataset: {{data_folder: {data}, format: bin}}
reader: {{read_threads: 1}}
train: {{epochs: {epochs}, computation_time: 0.02}}
checkpoint: {{checkpoint_folder: {tmp_path / "saved"}, steps_between_checkpoints: 4}}
output: {{folder: {tmp_path / "out"}}}
twin:
  checkpoint:
    files:
      - {{name: "step-{{step}}/rank-0.raw", write_sizes: [[4096, 4]], fsync: true, serialization_time: {file_s}}}
      - {{name: "step-{{step}}/rank-0.pt", write_sizes: [[80, 1]]}}
{checkpoint}
""")
    command = [sys.executable, "-m", "iotwin", "emulate", str(tmp_path / "job.yaml"), *options]
    assert trace_command(command, tmp_path / "t", TraceOptions(forward_output=False)).exit_status == 0
    return fit_parameters(Trace(tmp_path / "t")).config


@pytest.mark.root
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("logged", [True, False])
def test_checkpoints_are_a_phase_where_the_job_logs_them(tmp_path, logged, beside):
    section = f"    logged: {logged}\n" + (BESIDE if beside else "")
    found = refitted(tmp_path, checkpoint=section).twin.checkpoint
    # Said only where it is not what is taken else: a phase where training waits.
    assert found.asynchronous == beside and found.logged == (None if logged is not beside else logged)


@pytest.mark.root
@pytest.mark.parametrize("stay", [True, False])
def test_checkpoints_that_stay_at_ends_of_epochs_and_several_at_a_step_are_found_again(tmp_path, stay):
    times = [3, 3, 7, 48, 50, 71, 80, 96]
    lines = ("logged: false", "keep: 1", "commit: folder", f"keep_every: {'epoch' if stay else 1000}", f"after: {times}")
    found = refitted(tmp_path, checkpoint="".join(f"    {line}\n" for line in lines), epochs=2).twin.checkpoint
    assert (found.after, found.keep, found.keep_every) == (times, 1, "epoch" if stay else None)
    left = sorted(path.name for path in (tmp_path / "saved").glob("step-*"))
    assert left == (["step-48", "step-96"] if stay else ["step-96"])


@pytest.mark.root
def test_what_a_traced_job_writes_beside_training_is_found_again(tmp_path):
    found = refitted(tmp_path, "--quiet")
    checkpoint = found.twin.checkpoint
    assert [file.name for file in checkpoint.files] == ["step-{step}/rank-0.raw", "step-{step}/rank-0.pt"]
    assert (checkpoint.asynchronous, checkpoint.in_flight, checkpoint.keep) == (True, 2, 3)
    assert found.checkpoint.steps_between_checkpoints == 4
    assert checkpoint.snapshot_time is not None and inverse_cdf(checkpoint.snapshot_time, 0.5) > 0.04
