"""Twins of jobs that stream many files at a time: tf.data's own, and the emulator's stream, whose configuration is the oracle."""

import importlib.util
import sys
from pathlib import Path

import pytest

from iotwin.benchmark.fit import fit
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import FormatLayout
from iotwin.loops.twin import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.session import TraceOptions, trace_command
from iotwin.workload_yaml import Config, Dataset, Evaluation, Reader, Train, Twin, TwinEvaluation, TwinReader, Workflow, dump
from tests.conftest import ROOT

pytestmark = pytest.mark.root
FILES, RECORDS, RECORD_BYTES = 60, 100, 3000


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files a little larger than a buffer, so that each is read by three calls, at two times."""
    folder = tmp_path_factory.mktemp("records") / "data"
    layout = FormatLayout(format="tfrecord", samples_per_file=RECORDS, record_bytes=RECORD_BYTES)
    generate(layout, folder, samples=FILES * RECORDS, workers=1, seed=4)
    return folder


def traced(folder: Path, *command: object) -> Trace:
    manifest = trace_command([sys.executable, *map(str, command)], folder / "job.trace", TraceOptions(forward_output=False))
    assert manifest.exit_status == 0, (folder / "job.trace" / "logs" / "stderr").read_text()
    return Trace(folder / "job.trace")


@pytest.mark.parametrize("threads", [0, 12])
def test_the_emulators_own_stream_is_found_again(records, tmp_path, monkeypatch, threads):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = Config(
        workflow=Workflow(evaluation=True),
        dataset=Dataset(data_folder=str(records / "train"), format="tfrecord", num_samples_per_file=RECORDS, interleave=True),
        reader=Reader(batch_size=6, read_threads=threads, sample_shuffle="seed", file_shuffle="seed", shuffle_size=800),
        train=Train(computation_time=0.004, total_training_steps=300),
        evaluation=Evaluation(eval_after_step=300, steps_between_evals=300, total_eval_steps=20, eval_time=0.01),
        twin=Twin(
            reader=TwinReader(interleave_files=4),
            evaluation=TwinEvaluation(lead_time=0.05),
            train_files=[],
            eval_files=[],
        ),
    )
    names = sorted(path.name for path in records.rglob("*.tfrecord"))
    config.twin.train_files, config.twin.eval_files = names[:-1], names[-1:]
    config.output.folder = str(tmp_path / "output")
    dump(config, tmp_path / "job.yaml")
    trace = traced(tmp_path, "-m", "iotwin", "emulate", tmp_path / "job.yaml")
    found = fit(trace).config
    assert (found.reader.batch_size, found.train.total_training_steps, found.train.epochs) == (6, 300, 1)
    assert (found.twin.reader.streamed, found.twin.reader.interleave_files, found.reader.transfer_size) == (True, 4, 262144)
    assert (found.reader.read_threads, found.reader.file_shuffle, found.reader.sample_shuffle) == (threads, "seed", "seed")
    assert found.twin.eval_files == names[-1:] and set(found.twin.train_files or []) < set(names[:-1])
    assert found.dataset.record_length_bytes == pytest.approx(RECORD_BYTES, rel=0.1)
    assert found.reader.shuffle_size == pytest.approx(800, rel=0.2)
    assert isinstance(found.train.computation_time, float) and found.train.computation_time > 0.004
    # The emulator sleeps less than the whole lead where it came late before, by up to 10 ms.
    assert isinstance(found.twin.evaluation.lead_time, float) and found.twin.evaluation.lead_time >= 0.04


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_a_job_of_tf_data_is_streamed_by_its_twin_too(records, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    trace = traced(tmp_path, Path(__file__).parent / "tf_data_job.py", records, "--steps", 150)
    fitted = fit(trace)
    found = fitted.config
    assert (found.twin.reader.streamed, found.twin.reader.interleave_files, found.reader.transfer_size) == (True, 4, 262144)
    assert (found.reader.batch_size, found.train.total_training_steps) == (4, 150)
    assert found.reader.file_shuffle == "seed" and (found.twin.reader.opening_threads or found.reader.read_threads) > 4
    assert any("only files that the job opened" in text for text in found.twin.assumptions)
    scores = make_twin([trace.path], tmp_path / "twin", rounds=1, force=False)["rounds"][0]["dimensions"]
    assert min(scores[name] for name in ("volume", "operation_mix", "request_size", "access_order", "files")) > 0.9
