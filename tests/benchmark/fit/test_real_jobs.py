"""Twins of jobs whose data sets are not .npy files: an image folder, and one big file read a batch at a time."""

import sys
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.fit import fit
from iotwin.loops.twin import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.session import TraceOptions, trace_command
from tests.conftest import ROOT

pytestmark = pytest.mark.root
HERE = Path(__file__).parent


def traced(folder: Path, script: str, *arguments: object) -> Trace:
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    assert trace_command(command, folder / "job.trace", TraceOptions(forward_output=False)).exit_status == 0
    return Trace(folder / "job.trace")


def twin_scores(trace: Trace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = make_twin([trace.path], folder / "twin", rounds=1, force=False, kind="structured")
    return {"overall": made["overall"], **made["rounds"][0]["dimensions"]}


@pytest.mark.torch
def test_an_image_folder_is_read_by_the_calls_that_the_image_library_made(tmp_path, monkeypatch):
    from PIL import Image

    rng = np.random.default_rng(1)
    for index in range(96):
        path = tmp_path / "images" / f"class{index % 3}" / f"{index:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        side = int(rng.integers(150, 400))
        Image.fromarray(rng.integers(0, 255, (side, side), dtype=np.uint8)).save(path)
    trace = traced(tmp_path, "image_folder_job.py", tmp_path / "images", "--batch", 6, "--epochs", 3)
    config = fit(trace).config
    assert (config.reader.batch_size, config.reader.read_threads, config.train.epochs) == (6, 2, 3)
    assert config.dataset.num_files_train == 96 and config.reader.sample_shuffle == "seed"
    assert config.twin.reader.read_sizes[0] == 4096
    scores = twin_scores(trace, tmp_path, monkeypatch)
    # Times are left to measurements; what is read, how much at a time and in which order is the same on any machine.
    assert min(scores[name] for name in ("volume", "operation_mix", "request_size", "access_order", "files")) > 0.95


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_one_big_file_is_read_batch_by_batch_and_stays_open(tmp_path, monkeypatch, order):
    (tmp_path / "samples.dat").write_bytes(np.random.default_rng(2).bytes(40 * 65536 + 1000))
    options = ["--random"] if order == "random" else []
    trace = traced(tmp_path, "big_file_job.py", tmp_path / "samples.dat", "--epochs", 2, *options)
    config = fit(trace).config
    assert config.dataset.num_samples_per_file == 40 and config.dataset.record_length_bytes == 65536
    assert (config.train.epochs, config.train.total_training_steps, config.reader.read_threads) == (2, 40, 0)
    assert (config.reader.sample_shuffle == "seed") == (order == "random")
    assert config.twin.reader.keep_open
    scores = twin_scores(trace, tmp_path, monkeypatch)
    assert min(scores[name] for name in ("operation_mix", "request_size", "access_order", "files")) > 0.95
