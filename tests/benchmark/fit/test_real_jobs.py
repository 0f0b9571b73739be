"""Twins and parameters of traced jobs: an image folder, one big file, fio, tf.data and the emulator's own stream."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.fitted import Fitted
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import FormatLayout
from iotwin.loops.twin_from_trace import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.workload_yaml import Config, Dataset, Reader, Train, Twin, dump
from tests.conftest import ROOT

pytestmark = pytest.mark.root
HERE = Path(__file__).parent


def traced(folder: Path, *command: object) -> Trace:
    manifest = trace_command([*map(str, command)], folder / "job.trace", TraceOptions(forward_output=False))
    assert manifest.exit_status == 0, (folder / "job.trace" / "logs" / "stderr").read_text()
    return Trace(folder / "job.trace")


def traced_script(folder: Path, script: str, *arguments: object) -> Trace:
    return traced(folder, sys.executable, HERE / script, *arguments)


def check_coverage(fitted: Fitted) -> None:
    assert [fitted.coverage[f"{name}_share"] for name in ("read", "write", "open")] == [1.0, 1.0, 1.0]


def check_likeness(trace: Trace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check what is read, how much at a time and in which order. Times are left to measurements."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    scores = make_twin([trace.path], folder / "twin", force=False)["rounds"][0]["dimensions"]
    assert min(scores[name] for name in ("volume", "operation_mix", "request_size", "access_order", "files")) > 0.95


@pytest.mark.torch
def test_an_image_folder_is_read_by_the_calls_that_the_image_library_made(tmp_path, monkeypatch):
    from PIL import Image

    rng = np.random.default_rng(1)
    for index in range(96):
        path = tmp_path / "images" / f"class{index % 3}" / f"{index:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        side = int(rng.integers(150, 400))
        Image.fromarray(rng.integers(0, 255, (side, side), dtype=np.uint8)).save(path)
    trace = traced_script(tmp_path, "image_folder_job.py", tmp_path / "images", "--batch", 6, "--epochs", 3)
    config, recorded = fit_parameters(trace).config, fit(trace)
    for reader, train in ((config.reader, config.train), (recorded.config.reader, recorded.config.train)):
        assert (reader.batch_size, reader.read_threads, train.epochs) == (6, 2, 3)
    assert config.dataset.num_files_train == 96 and config.reader.sample_shuffle == "seed"
    assert config.twin.reader.read_sizes[0] == 4096
    check_coverage(recorded)
    check_likeness(trace, tmp_path, monkeypatch)


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_one_big_file_is_read_batch_by_batch(tmp_path, monkeypatch, order):
    (tmp_path / "samples.dat").write_bytes(np.random.default_rng(2).bytes(40 * 65536 + 1000))
    options = ["--random"] if order == "random" else []
    trace = traced_script(tmp_path, "big_file_job.py", tmp_path / "samples.dat", "--epochs", 2, *options)
    fitted = fit(trace)
    assert [(each.training, each.batches) for each in fitted.recording.header.batches.passes] == [(True, 40)] * 2
    assert (fitted.config.reader.batch_size, fitted.config.reader.read_threads) == (1, 0)
    check_coverage(fitted)
    check_likeness(trace, tmp_path, monkeypatch)


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is missing")
@pytest.mark.parametrize(
    "words",
    [
        ("--rw=read", "--bs=16k", "--nrfiles=40", "--size=1280k", "--numjobs=3", "--file_service_type=sequential"),
        ("--filename=table", "--rw=randread", "--bs=4k", "--size=4m", "--io_size=1m", "--numjobs=2", "--norandommap"),
    ],
    ids=["files for each process", "random reads of one file"],
)
def test_processes_that_read_and_deliver_nothing_have_no_batches(tmp_path, words):
    command = ["fio", "--name=part", "--output=/dev/null", "--ioengine=psync", f"--directory={tmp_path}", *words]
    subprocess.run([*command, "--create_only=1"], check=True)
    fitted = fit(traced(tmp_path, *command))
    assert fitted.recording.header.batches is None and fitted.evidence["edits"].startswith("none")
    check_coverage(fitted)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 TFRecord files, each a little larger than a buffer, so that each is read by three calls, at two times."""
    folder = tmp_path_factory.mktemp("records") / "data"
    generate(FormatLayout(format="tfrecord", samples_per_file=100, record_bytes=3000), folder, samples=6000, workers=1, seed=4)
    return folder


@pytest.mark.parametrize("threads", [0, 12])
def test_a_stream_of_many_files_at_a_time_is_accounted_for(records, tmp_path, monkeypatch, threads):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = Config(
        dataset=Dataset(data_folder=str(records / "train"), format="tfrecord", num_samples_per_file=100, interleave=True),
        reader=Reader(batch_size=6, read_threads=threads, sample_shuffle="seed", file_shuffle="seed", shuffle_size=800),
        train=Train(computation_time=0.004, total_training_steps=300),
        twin=Twin(train_files=sorted(path.name for path in records.rglob("*.tfrecord"))),
    )
    config.output.folder = str(tmp_path / "output")
    dump(config, tmp_path / "job.yaml")
    check_coverage(fit(traced(tmp_path, sys.executable, "-m", "iotwin", "emulate", tmp_path / "job.yaml")))


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_what_threads_of_tf_data_read_ahead_is_streamed(records, tmp_path, monkeypatch):
    fitted = fit(traced_script(tmp_path, "tf_data_job.py", records, "--steps", 150))
    assert "100% streamed" in fitted.evidence["labels"] and fitted.recording.header.batches is None
    check_coverage(fitted)
