"""Checkpoints that several ranks write together."""

import re
import sys

import numpy as np
import pytest

from iotwin.benchmark.emulator.checkpoints.plan import CheckpointPlan
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.workload_yaml import dump
from tests.benchmark.made_trace import Made
from tests.conftest import run_iotwin

# Two ranks that each read half of the files, twice, and write checkpoints together while they train: folders that rank 0 renames.
TOGETHER = """
import os, subprocess, sys, threading, time
data, folder, *of_rank = sys.argv[1:]
if not of_rank:
    ends = [os.pipe() for _ in range(2)]
    own = [(ends[rank][0], ends[1 - rank][1]) for rank in range(2)]
    words = [[str(word) for word in (rank, *pipes)] for rank, pipes in enumerate(own)]
    ranks = [subprocess.Popen([*sys.orig_argv, *words[rank]], pass_fds=own[rank]) for rank in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))
rank, coming, going = map(int, of_rank)
def meet():
    os.write(going, b"x")
    os.read(coming, 1)
def save(step, last, began, trained):
    unfinished = os.path.join(folder, f"step-{step}.tmp")
    os.makedirs(unfinished, exist_ok=True)
    with open(os.path.join(unfinished, f"rank-{rank}.bin"), "wb", buffering=0) as file:
        file.write(bytes(50_000 + 10_000 * rank))
        began.set()
        trained.wait()
        file.write(bytes(50_000 + 10_000 * rank))
        os.fsync(file.fileno())
    if last is not None:
        last.join()
    meet()
    if rank == 0:
        os.rename(unfinished, os.path.join(folder, f"step-{step}"))
    meet()
last = None
began, trained = threading.Event(), threading.Event()
for step in range(1, 21):
    for number in (0, 2):
        with open(os.path.join(data, f"{(step - 1) % 10 * 4 + rank + number:02}.bin"), "rb", buffering=0) as file:
            while file.read(8192):
                pass
    time.sleep(0.02)
    if step % 5 == 2:
        trained.set()
    if step % 5 == 0 and step < 20:
        began, trained = threading.Event(), threading.Event()
        thread = threading.Thread(target=save, args=(step, last, began, trained))
        thread.start()
        began.wait()
        last = thread
last.join()
"""


@pytest.mark.root
def test_ranks_that_commit_folders_together_while_training_goes_on_are_emulated(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(40):
        (tmp_path / "data" / f"{number:02}.bin").write_bytes(bytes(16384))
    command = [sys.executable, "-c", TOGETHER, str(tmp_path / "data"), str(tmp_path / "saved")]
    assert trace_command(command, tmp_path / "job.trace", TraceOptions(forward_output=False)).exit_status == 0
    config = fit_parameters(Trace(tmp_path / "job.trace")).config
    section = config.twin.checkpoint
    assert (config.twin.ranks, section.asynchronous, section.commit) == (2, True, "folder")
    files = sorted(section.files, key=lambda file: file.name)
    assert [(file.name, file.write_sizes, file.fsync) for file in files] == [
        (f"step-{{step}}/rank-{rank}.bin", [(50_000 + 10_000 * rank, 2)], True) for rank in range(2)
    ]
    assert {file.rank for file in files} == {0, 1}
    config.checkpoint.checkpoint_folder, config.output.folder = str(tmp_path / "twin"), str(tmp_path / "out")
    dump(config, tmp_path / "twin.yaml")
    assert run_iotwin("emulate", tmp_path / "twin.yaml").returncode == 0
    folders = {path for path in (tmp_path / "twin").iterdir() if path.is_dir()}
    assert folders and all(sorted(file.name for file in path.iterdir()) == ["rank-0.bin", "rank-1.bin"] for path in folders)
    assert all(re.fullmatch(r"step-\d+", path.name) for path in folders)


def test_shards_of_a_checkpoint_are_written_by_their_ranks(tmp_path):
    made, rng, now = Made(), np.random.default_rng(1), 10.0
    made.process(999, 1, "helper")
    ranks = [made.process(1000 + rank, 999, "rank") for rank in (0, 1)]
    files = [made.file(f"/d/{i:03}.jpg", size=100_000) for i in range(32)]
    for epoch in range(3):
        for step, file in enumerate(np.column_stack([rng.permutation(files[rank::2]) for rank in (0, 1)]).ravel().tolist()):
            now = 10 + made.read_file(now, ranks[step % 2], file)
        for rank, pid in enumerate(ranks):
            now = made.write_file(now, pid, f"/out/step_{epoch}_32/__{rank}_0.distcp", 1_000_000 + rank)
    config = fit_parameters(made.trace(tmp_path / "t")).config
    written = {rank: [file.name for file in CheckpointPlan(config, 2).written(rank, (1, 32))] for rank in (0, 1)}
    assert written == {rank: [f"step_1_32/__{rank}_0.distcp"] for rank in (0, 1)}
