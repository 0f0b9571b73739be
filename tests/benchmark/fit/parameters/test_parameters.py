"""Parameters come from the trace: what changes in the job changes in the YAML, and nothing else does.

The jobs are the unet3d workload trained under eBPF, the emulator itself, and synthetic ones.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.parameters.parameters import _preprocess_s, fit_parameters
from iotwin.benchmark.fit.passes import Pass
from iotwin.common.errors import IotwinError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import Unet3dLayout
from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_table
from iotwin.workload_yaml import Config, Quantiles, load
from tests.benchmark.fit.made_training import BATCH, COMPUTE_MS, EVALUATION_MS, Training
from tests.benchmark.fit.recorded.test_recorded_batches import reading_rank
from tests.processes import call
from tests.synthetic import MILLISECOND, Job, write_job

CASES = 20  # 16 to train, 4 to evaluate
BASE = {"epochs": 2, "batch-size": 2, "workers": 2, "eval-every": 1, "checkpoint-every": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "cases"
    generate(Unet3dLayout(0.1), folder, samples=CASES, seed=3, workers=1)
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Trace a real training run with some of BASE changed, once for each set of changes."""
    known: dict[str, Trace] = {}

    def run(**changes: int) -> Trace:
        options = BASE | {name.replace("_", "-"): value for name, value in changes.items()}
        key = json.dumps(options)
        if key not in known:
            folder = tmp_path_factory.mktemp("job")
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            network = ["--base-channels", "2", "--depth", "2", "--crop", "16", "--overlap", "0", "--threads", "1", "--seed", "1"]
            job = [sys.executable, "-m", "iotwin.workloads.unet3d", "--data", data, "--output", folder / "out", *words, *network]
            result = call("trace", "-o", folder / "t.trace", "--quiet", "--", *job)
            assert result.returncode == 0, (folder / "t.trace" / "logs" / "stderr").read_text()
            known[key] = Trace(folder / "t.trace")
        return known[key]

    return run


def knobs(config: Config) -> dict[str, object]:
    """The parameters that are options of the job."""
    return {
        "epochs": config.train.epochs,
        "batch_size": config.reader.batch_size,
        "workers": config.reader.read_threads,
        "eval_every": config.evaluation.epochs_between_evals if config.workflow.evaluation else 0,
        "checkpoint_every": config.checkpoint.epochs_between_checkpoints if config.workflow.checkpoint else 0,
    }


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 4, "workers": 3},
        {"workers": 0, "epochs": 3, "checkpoint_every": 3},
        {"epochs": 4, "eval_every": 2, "checkpoint_every": 2},
        {"eval_every": 0, "checkpoint_every": 0},
    ],
)
def test_a_change_of_the_job_is_the_same_change_of_its_parameters_and_of_its_twin(trained, changes):
    expected = {name.replace("-", "_"): value for name, value in BASE.items()} | changes
    trace = trained(**changes)
    config, recorded = fit_parameters(trace).config, fit(trace)
    assert knobs(config) == expected
    reader, read_share = recorded.config.reader, recorded.coverage["read_share"]
    assert (reader.batch_size, reader.read_threads, recorded.config.train.epochs, read_share) == (
        expected["batch_size"], expected["workers"], expected["epochs"], 1.0,
    )  # fmt: skip
    assert (config.dataset.num_files_train, config.twin.layout) == (16, "unet3d")
    assert config.reader.sample_shuffle == "seed"
    if 2 * expected["workers"] <= 16 // expected["batch_size"]:  # or an epoch has fewer batches than PyTorch would prefetch
        assert config.reader.prefetch_size == (2 * expected["workers"] or None)


@pytest.mark.root
@pytest.mark.torch
def test_everything_else_about_the_job(trained, data):
    config = fit_parameters(trained()).config
    sizes = [
        (data / f"{name}_x.npy").stat().st_size + (data / f"{name}_y.npy").stat().st_size for name in config.twin.train_files
    ]
    assert config.dataset.record_length_bytes == round(np.mean(sizes))
    cases = Unet3dLayout.discover(data)
    train, evaluation = Unet3dLayout.split(cases)
    assert config.twin.train_files == [case.image.name.removesuffix("_x.npy") for case in train]
    assert config.twin.eval_files == [case.image.name.removesuffix("_x.npy") for case in evaluation]
    assert config.dataset.data_folder == str(data)
    assert (config.reader.batch_size_eval, config.twin.evaluation.read_threads) == (1, 2)
    files = {file.name: file for file in config.twin.checkpoint.files}
    assert set(files) == {"checkpoint_best.pt", "checkpoint_last.pt"}
    output = Path(trained().manifest.target.command[trained().manifest.target.command.index("--output") + 1])
    for name, file in files.items():
        assert sum(size * count for size, count in file.write_sizes) == (output / name).stat().st_size
        assert file.fsync and file.rename
    assert config.checkpoint.checkpoint_folder != str(output)  # a twin never writes over the job's own checkpoints
    assert not config.twin.persistent_workers


@pytest.mark.root
@pytest.mark.torch
def test_without_a_log_the_calls_alone_show_batches_and_loaders(trained, tmp_path):
    """Of a copy of the trace without phases."""
    import shutil

    trace = trained(eval_every=0, checkpoint_every=0)
    silent = tmp_path / "silent.trace"
    shutil.copytree(trace.path, silent)
    write_table(silent, "phases.parquet", schema.PHASES, schema.PHASES.empty_table())
    config = fit_parameters(Trace(silent)).config
    assert (config.train.epochs, config.reader.batch_size, config.reader.read_threads) == (2, 2, 2)
    assert config.dataset.num_files_train == 16


def twin_yaml(folder: Path, data: Path, workers: int) -> Path:
    path = folder / "job.yaml"
    path.write_text(f"""
dataset: {{data_folder: {data}}}
reader: {{batch_size: 2, read_threads: {workers}, sample_shuffle: seed, preprocess_time: 0.01}}
train: {{epochs: 2, computation_time: {{type: quantiles, values: [0.09, 0.15, 0.36]}}}}
output: {{folder: {folder / "output"}}}
twin: {{layout: unet3d}}
""")
    return path


@pytest.mark.root
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_emulated_job_is_found_again(data, tmp_path, workers):
    emulate = [sys.executable, "-m", "iotwin", "emulate", twin_yaml(tmp_path, data, workers)]
    result = call("trace", "-o", tmp_path / "t.trace", "--quiet", "--", *emulate)
    assert result.returncode == 0, (tmp_path / "t.trace" / "logs" / "stderr").read_text()
    config = fit_parameters(Trace(tmp_path / "t.trace")).config
    assert isinstance(config.train.computation_time, Quantiles)
    assert config.reader.read_threads == workers and config.reader.batch_size == 2 and config.train.epochs == 2


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_fitted_times_are_the_jobs_own(tmp_path, workers):
    """Steps of 0.08 to 0.32 s, 10 ms for each sample."""
    times = {"compute_ns": 200 * MILLISECOND, "compute_spread": 0.6, "preprocess_ns": 10 * MILLISECOND}
    job = Job(files=64, evaluation_files=0, epochs=2, loaders=workers, log_waits=True, pipes=True, **times)
    config = fit_parameters(Trace(write_job(tmp_path / "t.trace", job))).config
    own_s, fitted = np.array(job.computed_ns) / 1e9, config.train.computation_time
    assert isinstance(fitted, Quantiles) and config.reader.read_threads == workers
    assert np.mean(fitted.values) == pytest.approx(np.mean(own_s), rel=0.01)
    assert np.median(fitted.values) == pytest.approx(np.median(own_s), rel=0.01)
    assert np.std(fitted.values) == pytest.approx(np.std(own_s), rel=0.05)
    preprocess = config.reader.preprocess_time
    median = preprocess.values[len(preprocess.values) // 2] if isinstance(preprocess, Quantiles) else preprocess
    assert median == pytest.approx(0.01, rel=0.01 if workers else 0.015)  # of a rank that reads, with pauses between its reads


def read_batches(threads=(1, 1, 1)):
    """Two batches of three files: calls of 1 ms, each after the file's own time, the last one before a delivery 7 ms later."""
    rows, spans, now = [], [], 0
    for batch in range(2):
        spans.append([now * MILLISECOND])
        for file, (after, tid) in enumerate(zip((2, 30, 7), threads, strict=True)):
            rows += [(batch, 10 * batch + file, tid, (now + call) * MILLISECOND, MILLISECOND) for call in range(2)]
            now += 2 + after
        spans[-1].append(now * MILLISECOND)
    received, delivered = np.array(spans).T
    names = ["batch", "file_id", "tid", "start_ns", "duration_ns"]
    none, whole = np.zeros(2, np.int64), np.arange(2)
    passes = Pass(True, 1, 1, (2,), 2, whole, np.full(2, 3), none, received, delivered, none, none)
    return pd.DataFrame(rows, columns=names), [passes]


def test_each_sample_has_its_own_time_of_preprocessing():
    assert _preprocess_s(*read_batches()) == pytest.approx([0.002, 0.030, 0.007] * 2)


def test_samples_of_several_threads_have_the_mean_time_of_their_batch():
    assert _preprocess_s(*read_batches((1, 2, 1))) == pytest.approx([0.013] * 6)


def test_the_yaml_is_read_back_by_the_emulator(tmp_path):
    trace = write_job(tmp_path / "t", Job(pipes=True))
    result = call("fit", trace, "-o", tmp_path / "twin.yaml", "--parameters", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    config = load(tmp_path / "twin.yaml")
    assert config.twin.assumptions == document["assumptions"]
    assert config.train.epochs == Job().epochs


@pytest.mark.parametrize(("shuffle", "expected"), [(True, "seed"), (False, "off")])
def test_shuffled_or_not(tmp_path, shuffle, expected):
    trace = Trace(write_job(tmp_path / "t", Job(shuffle=shuffle, pipes=True)))
    assert fit_parameters(trace).config.reader.sample_shuffle == expected


def test_a_trace_without_batches_has_no_parameters(tmp_path):
    path = write_job(tmp_path / "t", Job(files=0, evaluation_files=0, epochs=1))
    with pytest.raises(IotwinError, match="does not show when a rank took which batch"):
        fit_parameters(Trace(path))


@pytest.mark.parametrize("fitted", [fit, fit_parameters])
def test_lost_calls_are_an_assumption(tmp_path, fitted):
    config = fitted(Trace(write_job(tmp_path / "t", Job(lost={"ring_full": 12}, pipes=True)))).config
    assert any("lost 12 events" in text for text in config.twin.assumptions)


def test_images_without_labels_are_samples_of_one_file(tmp_path):
    config = fit_parameters(Trace(write_job(tmp_path / "t", Job(files=8, evaluation_files=0, pipes=True)))).config
    assert config.twin.layout == "npy"
    assert config.twin.train_files == [f"case_{number:05d}_x.npy" for number in range(8)]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_and_evaluation_on_other_files_differ(tmp_path, persistent, ranks):
    trace = Training(ranks, persistent).trace(tmp_path)
    config, recorded = fit_parameters(trace).config, fit(trace)
    assert (config.twin.ranks, config.train.epochs, config.reader.read_threads, config.reader.batch_size) == (ranks, 3, 2, BATCH)
    assert (config.dataset.num_files_train, config.dataset.num_files_eval, config.reader.batch_size_eval) == (48, 16, BATCH)
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (1, 1)
    assert (config.twin.persistent_workers, config.reader.prefetch_size) == (persistent, 4)
    assert median_ms(config.train.computation_time) == pytest.approx(COMPUTE_MS, rel=0.05)
    assert median_ms(config.evaluation.eval_time) == pytest.approx(EVALUATION_MS, rel=0.1)
    assert (recorded.config.train.epochs, recorded.config.reader.batch_size, recorded.coverage["read_share"]) == (3, BATCH, 1.0)


def median_ms(times) -> float:
    return 1000 * np.median(getattr(times, "values", [times]))


@pytest.mark.parametrize("validated", [False, True])
def test_an_answer_that_an_epoch_begins_is_no_step(tmp_path, validated):
    config = fit_parameters(Training(1, True).trace(tmp_path, validated=validated)).config
    assert (config.train.epochs, config.reader.prefetch_size) == (3, 4)
    assert (config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints) == (1, 1)
    assert config.twin.checkpoint.after is None and len(config.twin.checkpoint.files) == 1


def test_an_epoch_in_which_few_batches_were_requested_at_once_does_not_decide_the_depth(tmp_path):
    job = Training(1, False)
    job.train = job.train[: 4 * BATCH]
    config = fit_parameters(job.trace(tmp_path, validated=False, slow_epoch=1)).config
    assert (config.train.epochs, config.reader.read_threads, config.reader.prefetch_size) == (3, 2, 4)


@pytest.mark.parametrize("batches", [8, 4])
def test_an_evaluation_before_the_first_epoch_is_left_out_and_named(tmp_path, batches):
    """Of eight batches two are evaluated, for which loaders read six; of four batches all are read, and two are taken."""
    job = Training(1, False)
    job.val = [job.made.file(f"/d/looked/{i:03}.jpg", size=80_000) for i in range(batches * BATCH)]
    config = fit_parameters(job.trace(tmp_path, before=2)).config
    assert (config.train.epochs, config.reader.prefetch_size, config.reader.batch_size_eval) == (3, 4, BATCH)
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (1, 1)
    assert "evaluations before the first epoch are left out: 1" in config.twin.assumptions


@pytest.mark.parametrize("every", [1, 2])
def test_evaluations_come_every_so_many_epochs(tmp_path, every):
    config = fit_parameters(reading_rank(tmp_path, epochs=4, every=every)).config
    assert (config.train.epochs, config.reader.batch_size, config.dataset.num_files_train) == (4, 4, 24)
    assert (config.workflow.evaluation, config.dataset.num_files_eval, config.reader.batch_size_eval) == (True, 8, 4)
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (every, every)
    assert median_ms(config.train.computation_time) == pytest.approx(30, rel=0.05)
    assert median_ms(config.evaluation.eval_time) == pytest.approx(15, rel=0.05)
