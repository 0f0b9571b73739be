"""Edited recordings that resume: what they read before training goes on, and what they leave out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.emulator.recorded.edits.resumed_checkpoint import SavedFiles
from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder
from iotwin.common.errors import UsageError
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import TwinResume, load
from iotwin.workload_yaml.recording import (
    Header,
    Label,
    Mark,
    Op,
    RecordedBatches,
    RecordedFile,
    RecordedPass,
    TwinRecording,
)
from tests.benchmark.emulator.recorded.edits.test_requested_edits import (
    count,
    rank_think_ms,
    reads,
    recorded,
    twin,
    writes,
)
from tests.benchmark.loader_job import LoaderJob
from tests.benchmark.recordings import CREATE, recording, row

JOB = LoaderJob(evaluated=8, epochs=3)  # 6 steps an epoch, 2 of each evaluation, a checkpoint of 300000 bytes after each epoch
STEPS, EVALUATED, SAVED = 6, 2, 300_000


def batches_of(made: TwinRecording, chosen: list[int]) -> Counter[tuple[str, int, int]]:
    """What the recorded batches with these indices read."""
    return reads(made.where(np.isin(made.columns["batch"], chosen)))


def on_found(made: TwinRecording, op: Op) -> list[tuple[str, int]]:
    """The rows of `op` on files that exist from the start, in the output folder: name and size."""
    of, found = made.columns, [file.written and not file.made for file in made.header.files]
    rows = np.flatnonzero((of["op"] == op) & np.array(found)[np.where(of["op"] < Op.PIPE_WRITE, of["subject"], 0)])
    return [(made.header.files[of["subject"][i]].name, int(of["size"][i])) for i in rows]


@pytest.mark.parametrize(
    ("mode", "read_of_first", "read_before", "computed"),
    [
        ("restore", 0, 0, 4), ("skip_reads", 0, 0, 4), ("replay_data", 0, 2, 4), ("replay_all", 6, 2, 4), ("full", 0, 2, 6),
    ],
)  # fmt: skip
def test_a_resumed_run_reads_what_its_mode_says_and_computes_the_rest(mode, read_of_first, read_before, computed):
    before = recorded(JOB)
    after = edit(before, Edits(resume=TwinResume(2, 2, mode)))
    second, third = 8, 16  # each epoch is followed by its evaluation
    of_second = list(range(second + 2 - read_before, third))
    assert reads(after) == batches_of(before, [*range(read_of_first), *of_second, *range(third, 24)])
    taken = read_of_first + read_before + 4 + EVALUATED + STEPS + EVALUATED
    assert count(after, Op.PIPE_READ, 0) == taken == count(after, Op.PIPE_READ) / 2
    assert count(after, Op.START) == count(after, Op.JOIN) == 2 * (4 + (mode == "replay_all"))
    expected = (computed + STEPS) * JOB.compute_ms + 2 * EVALUATED * JOB.compute_ms / 2
    other = rank_think_ms(edit(before, Edits())) - 3 * (STEPS + EVALUATED / 2) * JOB.compute_ms  # starts and ends of three epochs
    assert expected < rank_think_ms(after) < expected + other
    assert writes(after) == ["epoch_1.pt", "epoch_2.pt"]
    restored = [] if mode == "skip_reads" else [("epoch_0.pt", SAVED), ("epoch_0.pt", 0)]
    assert on_found(after, Op.READ) == restored
    if restored:
        of = after.columns
        rows = np.flatnonzero((of["thread"] == 0) & np.isin(of["op"], [Op.OPEN, Op.READ, Op.START]))
        assert of["op"][rows[:4]].tolist() == [Op.OPEN, Op.READ, Op.READ, Op.START]


def test_an_epoch_begins_with_the_loaders_and_the_log_of_the_first():
    before = recorded(JOB)
    header = before.header
    marks = [Mark("epoch", True, 1), Mark("init", True)]
    begin = int(np.flatnonzero(before.columns["op"] == Op.START)[0])
    columns = {name: np.insert(values, begin, values[[begin, begin]]) for name, values in before.columns.items()}
    columns["op"][begin : begin + 2], columns["subject"][begin : begin + 2] = Op.MARK, [1, 0]
    changed = {name: getattr(header, name) for name in header.__struct_fields__} | {"marks": marks}
    made = TwinRecording(Header(**changed), columns)
    after = edit(made, Edits(resume=TwinResume(3, 0)))
    rows = after.columns["subject"][after.columns["op"] == Op.MARK]
    assert [after.header.marks[index] for index in rows] == [Mark("init", True), Mark("epoch", True, 3)]
    assert count(after, Op.START) == 4


@pytest.mark.parametrize("loaders", [1, 2, 3])
def test_skipped_batches_are_no_loaders_turn(loaders):
    """A loader that skips batches deals the next ones from its first worker on."""
    after = edit(recorded(JOB), Edits(loaders=loaders, resume=TwinResume(2, 1)))
    of = after.columns
    first = int(of["subject"][of["op"] == Op.START][0])
    thread = after.header.threads.index(first)
    asked = of["subject"][(of["thread"] == thread) & (of["op"] == Op.PIPE_READ)][0]
    assert of["subject"][(of["thread"] == 0) & (of["op"] == Op.PIPE_WRITE)][0] == asked


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("epoch", "step", "newest", "later"), [(1, 4, 4, [8, 12]), (2, 2, 8, [12]), (2, 3, 8, [12])])
def test_the_newest_checkpoint_within_an_epoch_is_read_and_not_written_again(first, epoch, step, newest, later):
    """Whether a job saves after a step, or when it has the next batch."""
    before = recorded(LoaderJob(epochs=3, save_after=4, save_first=first))
    after = edit(before, Edits(resume=TwinResume(epoch, step)))
    assert on_found(after, Op.READ)[-2:] == [(f"step_{newest}.pt", 200_000), (f"step_{newest}.pt", 0)]
    names = [name for name in writes(after) if name.startswith("step")]
    assert names == [f"step_{number}.pt" for number in [*later, 16]]


def test_a_step_that_saves_before_it_computes_does_so_once():
    jobs = [LoaderJob(save_after=4, save_first=first) for first in (False, True)]
    think_ms = [rank_think_ms(edit(recorded(job), Edits(prefetch=4))) for job in jobs]
    assert abs(think_ms[0] - think_ms[1]) < 5


def test_a_recording_that_marks_no_checkpoints_is_refused_if_it_is_older_than_the_marks():
    before = recorded(JOB)
    for file in before.header.files:
        file.checkpoint = False
    assert before.header.ranks == 1  # as of a job that wrote none
    assert not on_found(edit(before, Edits(resume=TwinResume(1, 2))), Op.READ)
    before.header.ranks = 0
    edit(before, Edits(resume=TwinResume(1, 2, "skip_reads")))
    with pytest.raises(UsageError, match=r"of an earlier version .* fit the trace again"):
        edit(before, Edits(resume=TwinResume(1, 2)))


def test_what_a_resumed_run_cannot_do_is_refused():
    before = recorded(JOB)
    with pytest.raises(UsageError, match=r"twin.resume.step: 7 is after the last of the 6 steps"):
        edit(before, Edits(resume=TwinResume(2, 7)))
    with pytest.raises(UsageError, match=r"had written no checkpoint by step 3 of epoch 1; resume later, or .* skip_reads"):
        edit(before, Edits(resume=TwinResume(1, 3)))
    assert writes(edit(before, Edits(resume=TwinResume(1, 3, "skip_reads")))) == [f"epoch_{i}.pt" for i in range(3)]
    assert reads(edit(before, Edits(resume=TwinResume(3, 6)))) == batches_of(before, [22, 23])


@pytest.mark.parametrize("mode", ["restore", "replay_all"])
def test_other_edits_apply_to_the_resumed_run(mode):
    before = recorded(JOB)
    after = edit(before, Edits(batch=2, epochs=5, resume=TwinResume(5, 1, mode)))
    epoch, held = batches_of(before, list(range(6))), batches_of(before, [6, 7])
    replayed = 4 * len(epoch) + 16 if mode == "replay_all" else 0
    assert sum(reads(after).values()) == len(epoch) - 16 + len(held) + replayed
    assert all(reads(after)[key] == 1 for key in held) and len(writes(after)) == 1


@pytest.mark.parametrize(("mode", "ranks"), [("restore", 1), ("replay_data", 1), ("replay_all", 1), ("full", 1), ("restore", 3)])
def test_a_resumed_twin_runs_without_a_wait_that_is_given_up(tmp_path, mode, ranks):
    config = load(twin(tmp_path, JOB))
    config.twin.resume, config.twin.ranks = TwinResume(2, 1, mode), ranks
    summary = run_workload(config, EmulationOptions(ranks=ranks))
    assert summary is not None and summary["iotwin"]["recorded"]["waits_given_up"] == 0
    samples = JOB.batch * ranks + (JOB.files if mode == "replay_all" else 0)
    amounts = {"samples_skipped": 0, "samples_replayed": 0, "checkpoint_bytes_read": SAVED * ranks}
    amounts["samples_skipped" if mode == "restore" else "samples_replayed"] = samples
    assert summary["iotwin"]["resumed"] == {"mode": mode, "epoch": 2, "step": 1, **amounts}
    read = {"restore": JOB.files - samples, "replay_all": 2 * JOB.files}.get(mode, JOB.files) + JOB.files
    held = 2 * JOB.evaluated + (ranks > 1) * 2  # so that all ranks take as many steps
    assert summary["iotwin"]["bytes_read"] == (read + held) * JOB.file_bytes + SAVED * ranks


def test_all_ranks_read_the_checkpoint_that_the_job_reads_and_overwrites():
    """As in a recovery storm: each of them reads the same file; only the first one writes it."""
    before = recorded(LoaderJob(restored_bytes=70_000))
    made = [edit(before, Edits(ranks=64), rank) for rank in (0, 1, 63)]
    assert all(sum(size for _, size in on_found(each, Op.READ)) == 70_000 for each in made)
    assert [len(on_found(each, Op.WRITE)) for each in made] == [2, 0, 0]


def test_only_one_replay_makes_and_removes_the_files_of_the_process_that_starts_the_ranks():
    """All replays have that process, and share a folder: a second removal of its file would fail."""
    before = recorded(LoaderJob(ranks=2))
    file = RecordedFile("try", written=True, made=True)
    files = [*before.header.files, file]
    calls = [row(0, op, len(files) - 1, at_ns=at, flags=CREATE, size=4) for at, op in enumerate((Op.OPEN, Op.WRITE, Op.UNLINK))]
    columns = {
        name: np.append(np.array([each.get(name, -1) for each in calls]), column).astype(column.dtype)
        for name, column in before.columns.items()
    }
    launched = replace(before, header=msgspec.structs.replace(before.header, files=files), columns=columns)
    for rank, expected in ((0, len(calls)), (1, 0)):
        of = edit(launched, Edits(ranks=2, regrouped=True, balanced=True), rank).columns
        assert np.count_nonzero((of["op"] < Op.PIPE_WRITE) & (of["subject"] == len(files) - 1)) == expected


def test_ranks_share_the_checkpoint_that_they_found(tmp_path):
    config = load(twin(tmp_path, LoaderJob(restored_bytes=70_000)))
    summary = run_workload(config, EmulationOptions(ranks=4))
    assert summary is not None
    assert summary["iotwin"]["bytes_read"] == 2 * 24 * 100_000 + 4 * 70_000
    assert {path.name for path in Path(config.checkpoint.checkpoint_folder).iterdir() if path.is_dir()} == {"rank-0"}


def in_store(ranks: int) -> TwinRecording:
    """Checkpoints 1 and 2 in folders that are renamed, each of a file a rank and a list that the second save reads."""
    files, rows = [], []
    for number in (1, 2):
        for name in ("list.json", *(f"rank-{rank}.raw" for rank in range(ranks))):
            files.append(RecordedFile(f"step-{number}.tmp/{name}", f"step-{number}/{name}", 0, True, True, True))
    files.append(RecordedFile("state.log", written=True, made=True))
    each = 1 + ranks
    for rank in range(ranks):
        for number in (0, 1):
            at = 100 * (number + 1)
            rows.append(row(rank, Op.WRITE, number * each + 1 + rank, at_ns=at, size=3 << 20, offset=0))
            if rank == 0:
                rows.append(row(rank, Op.WRITE, number * each, at_ns=at, size=50, offset=0))
                rows.append(row(rank, Op.WRITE, len(files) - 1, at_ns=at, size=9, offset=-1))
                rows += [row(0, Op.READ, number * each + 1, at_ns=at + 1, size=99, offset=0)]  # of what it has just written
                for old in range(each if number else 0):
                    rows.append(row(0, Op.OPEN, old, at_ns=at + 2))
                    rows += [row(0, Op.READ, old, at_ns=at + 3, size=50, offset=0)] if old == 0 else []
    made = recording(rows, files, [-1] + [0] * (ranks - 1), list(range(ranks)))
    times = [50, 150, 250, 350] * ranks
    passes = [RecordedPass(rank, True, 4, 0) for rank in range(ranks)]
    owners = [rank for rank in range(ranks) for _ in range(4)]
    batches = RecordedBatches(passes, owners, [0] * 4 * ranks, times, times, times, times, times)
    changed = {name: getattr(made.header, name) for name in made.header.__struct_fields__} | {"batches": batches}
    none = {"label": np.full(len(rows), Label.TIMED), "batch": np.full(len(rows), -1), "sample": np.full(len(rows), -1)}
    return TwinRecording(Header(**changed), made.columns | none)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("moment_ns", "numbers"), [(300, [1, 2]), (200, [1]), (150, [1])])
def test_a_store_is_inspected_and_its_newest_checkpoint_read_to_verify_it_and_once_more(ranks, moment_ns, numbers):
    made = in_store(ranks)
    for rank in range(ranks):
        builder = RowBuilder(made)
        _, thread = builder.thread(rank)
        SavedFiles(made, moment_ns).read_by(builder, thread, rank)
        of = builder.finish()
        op, size = of.columns["op"], of.columns["size"]
        opened = [of.header.files[index].name for index in of.columns["subject"][op == Op.OPEN]]
        looked = [
            f"step-{number}/{name}" for number in numbers for name in ("list.json", *(f"rank-{i}.raw" for i in range(ranks)))
        ]
        newest = [
            f"step-{numbers[-1]}/{name}" for name in ([f"rank-{rank}.raw", "list.json"] if rank == 0 else [f"rank-{rank}.raw"])
        ]
        assert opened == [*looked, *newest, *newest]
        assert size[op == Op.READ].sum() == 50 * len(numbers) + 2 * ((3 << 20) + (50 if rank == 0 else 0))
        assert size[op == Op.READ].max() == 1 << 20 and (op == Op.CLOSE).sum() == len(opened)
