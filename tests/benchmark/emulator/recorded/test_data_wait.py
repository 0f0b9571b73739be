"""How long the ranks of a replay wait for data, and when a replay begins the job's start-up."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from iotwin.benchmark.emulator.recorded import replay_rank
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import Config, load
from iotwin.workload_yaml.recording import Op, RecordedFile
from tests.benchmark.loader_job import LoaderJob
from tests.benchmark.recordings import recording, row, write_twin

JOB = LoaderJob(files=16, epochs=1, compute_ms=40, root="/d/data")


def fitted(folder: Path, job: LoaderJob = JOB) -> Config:
    """The twin of the job, whose data lie in `folder`."""
    made = fit(job.trace(folder / "t"))
    made.config.dataset.data_folder = str(folder / "data")
    for name, size in made.files:
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_bytes(bytes(size))
    made.config.checkpoint.checkpoint_folder = made.config.output.folder = str(folder / "out")
    made.write(folder / "twin.yaml")
    return load(folder / "twin.yaml")


def data_wait_s(config: Config) -> float:
    summary = run_workload(config, EmulationOptions())
    assert summary is not None
    return float(summary["iotwin"]["recorded"]["data_wait_s"])


def test_a_rank_waits_for_loaders_that_are_slower_than_it_is(tmp_path):
    """Two loaders that share 16 samples think 100 ms a sample at least, and steps compute for almost no time."""
    config = fitted(tmp_path)
    config.twin.clock = "virtual"  # the job starts a thousand times as slowly
    config.twin.recorded.think_scale, config.train.computation_scale = 200, 0.001
    assert data_wait_s(config) > 0.01


@pytest.mark.parametrize("pins", [False, True])
def test_an_unedited_rank_waits_even_if_another_thread_takes_its_batches(tmp_path, monkeypatch, pins):
    """Each sample is read 60 ms later than in the job: the two loaders need 120 ms for a batch, and the rank computes for 40."""
    config, read = fitted(tmp_path, replace(JOB, pins=pins)), os.preadv

    def read_later(file, *given):
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(tmp_path / "data"):  # not what measures the player's own time
            time.sleep(0.06)
        return read(file, *given)

    monkeypatch.setattr(os, "preadv", read_later)
    summary = run_workload(config, EmulationOptions())
    assert summary is not None and summary["iotwin"]["training"]["au"] < 0.6


def test_a_rank_that_reads_by_itself_waits_for_its_reads_alone(tmp_path):
    config = fitted(tmp_path)
    config.reader.read_threads = 0
    assert data_wait_s(config) > 0


def test_without_batches_the_wait_for_data_is_unknown(tmp_path):
    path = write_twin(tmp_path, recording([row(0, Op.OPEN), row(0, Op.END)], [RecordedFile("a", size_bytes=1)]))
    summary = run_workload(load(path), EmulationOptions())
    assert summary is not None and summary["iotwin"]["recorded"]["data_wait_s"] is None


@pytest.mark.parametrize("one_of_several", [False, True])
def test_only_the_first_run_of_a_process_counts_the_process_as_start_up(tmp_path, monkeypatch, one_of_several):
    """A what-if question runs several times in one process: each run starts as late as the job did."""
    monkeypatch.setattr(replay_rank, "age_s", lambda: 10_000.0)
    first = [row(0, Op.OPEN, think_ns=1_000_000_000_000), row(0, Op.END)]
    path = write_twin(tmp_path, recording(first, [RecordedFile("a", size_bytes=1)]))
    summary = run_workload(load(path), EmulationOptions(limit_s=5, one_of_several=one_of_several))
    assert summary is not None and summary["iotwin"]["stopped_early"] == one_of_several
