"""Jobs of several processes that read by themselves (fio's) become twins of as many ranks."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.batches.bursts import regular_batches
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.session import TraceOptions, trace_command
from iotwin.workload_yaml import dump
from tests.conftest import run_iotwin

needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is missing")


def traced(folder: Path, *words: str) -> Trace:
    command = ["fio", "--output=/dev/null", "--ioengine=psync", f"--directory={folder}", *words]
    subprocess.run([*command, "--create_only=1"], check=True)
    assert trace_command(command, folder / "job.trace", TraceOptions(forward_output=False)).exit_status == 0
    return Trace(folder / "job.trace")


@needs_fio
@pytest.mark.root
def test_processes_that_go_through_files_of_their_own_are_ranks_in_their_order(tmp_path):
    words = ("--rw=read", "--bs=16k", "--nrfiles=40", "--size=1280k", "--numjobs=3", "--file_service_type=sequential")
    config = fit(traced(tmp_path, "--name=part", *words)).config
    assert (config.twin.ranks, config.twin.barrier, config.reader.read_threads) == (3, False, 0)
    assert (config.reader.batch_size, config.reader.sample_shuffle, config.train.epochs) == (1, "off", 1)
    assert config.twin.reader.read_sizes == [16384, 16384]
    # Rank r reads every third file from r on, as process r read its forty.
    owners = [{name.split(".")[1] for name in (config.twin.train_files or [])[rank::3]} for rank in range(3)]
    numbers = [[int(name.split(".")[2]) for name in (config.twin.train_files or [])[rank::3]] for rank in range(3)]
    assert sorted(map(sorted, owners)) == [["0"], ["1"], ["2"]] and numbers == [list(range(40))] * 3


@needs_fio
@pytest.mark.root
def test_random_reads_of_one_file_by_several_processes_are_one_block(tmp_path):
    # Each draws with replacement, so that samples come again early, however far a busy machine has one process run ahead.
    words = ("--name=look", "--filename=table", "--rw=randread", "--bs=4k", "--size=4m", "--io_size=1m", "--numjobs=2")
    words = (*words, "--norandommap")
    trace = traced(tmp_path, *words)
    # By default it may be recorded: on a busy machine a process of fio's may open the file a second time, which no rank would do.
    config = fit(trace, "structured").config
    assert (config.twin.ranks, config.train.epochs, config.train.total_training_steps) == (2, 1, 256)
    assert (config.reader.batch_size, config.dataset.record_length_bytes) == (1, 4096) and config.twin.reader.keep_open
    # Drawn at random, they are listed as they were read.
    events, table = trace.events_frame(), trace.files()
    table = table[table["path"].str.endswith("/table")]["file_id"]
    offsets = events[(events["op"] == "pread64") & events["file_id"].isin(table)]["offset"]
    assert len(offsets) == 512
    assert sorted(config.twin.train_reads or []) == sorted(f"0:{int(offset)}+4096" for offset in offsets)


# Two ranks that each read half of the files, twice, and beside that write checkpoints together: folders that rank 0 renames.
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
def test_ranks_that_commit_folders_together_beside_training_do_so_in_the_twin(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(40):
        (tmp_path / "data" / f"{number:02}.bin").write_bytes(bytes(16384))
    command = [sys.executable, "-c", TOGETHER, str(tmp_path / "data"), str(tmp_path / "saved")]
    assert trace_command(command, tmp_path / "job.trace", TraceOptions(forward_output=False)).exit_status == 0
    config = fit(Trace(tmp_path / "job.trace"), "structured").config
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


def test_bursts_of_one_size_are_found_in_noise():
    """Bursts of eight 10 us apart, 40 ms between them, on a machine that now and then takes a millisecond away."""
    rng = np.random.default_rng(3)
    gaps = np.where(np.arange(400) % 8 == 7, 40_000_000, 10_000) + (rng.random(400) < 0.2) * rng.integers(100_000, 3_000_000, 400)
    starts = np.cumsum(gaps)
    guess = np.append(0, np.cumsum(gaps[1:] > 100_000))
    found = regular_batches(starts, starts, guess)
    assert np.mean(np.bincount(found) == 8) > 0.9


def test_gaps_without_a_pattern_make_single_batches():
    rng = np.random.default_rng(4)
    starts = np.cumsum((rng.lognormal(0, 2, 300) * 1e6).astype(np.int64))
    found = regular_batches(starts, starts, np.arange(300) // 200)
    assert len(np.unique(found)) == 300


def test_a_pause_within_a_batch_does_not_make_two_of_it():
    gaps = [1] * 120
    gaps[::12] = [100] * 10
    gaps[1] = gaps[54] = gaps[55] = 100  # one sample alone, as in a warm-up, and one in the middle
    starts = np.cumsum(gaps) * 1_000_000
    found = regular_batches(starts, starts, np.cumsum(np.array(gaps) == 100))
    assert found.tolist() == [number // 12 for number in range(120)]
    short = np.repeat([0, 1, 2, 3, 4, 5], [12, 12, 12, 5, 12, 12])  # one that is really shorter stays
    starts = np.arange(65) * 1_000_000 + short * 100_000_000
    assert regular_batches(starts, starts, short).tolist() == short.tolist()
