"""The twin comes from the trace: what changes in the job changes in the YAML, and nothing else does.

The jobs are real: the unet3d workload trained under eBPF, and the emulator itself, whose own record is the oracle for times.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from iotwin.benchmark.fit import fit
from iotwin.common.errors import IotwinError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import Unet3dLayout
from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_table
from iotwin.workload_yaml import Config, Quantiles, load
from tests.conftest import run_iotwin
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
    """What a job's command line sets, as the twin says it."""
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
def test_a_change_of_the_job_is_the_same_change_of_the_twin(trained, changes):
    expected = {name.replace("-", "_"): value for name, value in BASE.items()} | changes
    config = fit(trained(**changes)).config
    assert knobs(config) == expected
    assert (config.dataset.num_files_train, config.twin.layout) == (16, "unet3d")
    assert config.reader.sample_shuffle == "seed"
    assert config.reader.prefetch_size == (2 * expected["workers"] or None)


@pytest.mark.root
@pytest.mark.torch
def test_everything_else_about_the_job(trained, data):
    config = fit(trained()).config
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
def test_without_the_jobs_log_the_events_alone_tell(trained, tmp_path):
    """A copy of the trace with no phases at all: batches, workers and files still come out; evaluation cannot be told apart."""
    import shutil

    trace = trained(eval_every=0, checkpoint_every=0)
    silent = tmp_path / "silent.trace"
    shutil.copytree(trace.path, silent)
    write_table(silent, "phases.parquet", schema.PHASES, schema.PHASES.empty_table())
    config = fit(Trace(silent)).config
    assert (config.train.epochs, config.reader.batch_size, config.reader.read_threads) == (2, 2, 2)
    assert config.dataset.num_files_train == 16
    assert any("no init phase" in text for text in config.twin.assumptions)


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
    config = fit(Trace(tmp_path / "t.trace")).config
    assert isinstance(config.train.computation_time, Quantiles)
    assert config.reader.read_threads == workers and config.reader.batch_size == 2 and config.train.epochs == 2


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_fitted_times_are_the_jobs_own(tmp_path, workers):
    """Of a made-up job, whose times no machine decides: steps of 0.08 to 0.32 s, 10 ms for each sample."""
    times = {"compute_ns": 200 * MILLISECOND, "compute_spread": 0.6, "preprocess_ns": 10 * MILLISECOND}
    job = Job(files=64, evaluation_files=0, epochs=2, loaders=workers, log_waits=True, pipes=True, **times)
    config = fit(Trace(write_job(tmp_path / "t.trace", job))).config
    own_s, fitted = np.array(job.computed_ns) / 1e9, config.train.computation_time
    assert isinstance(fitted, Quantiles) and config.reader.read_threads == workers
    print(
        np.mean(fitted.values),
        np.mean(own_s),
        np.median(fitted.values),
        np.median(own_s),
        np.std(fitted.values),
        np.std(own_s),
        config.reader.preprocess_time,
    )
    assert np.mean(fitted.values) == pytest.approx(np.mean(own_s), rel=0.01)
    assert np.median(fitted.values) == pytest.approx(np.median(own_s), rel=0.01)
    assert np.std(fitted.values) == pytest.approx(np.std(own_s), rel=0.05)
    preprocess = config.reader.preprocess_time
    median = preprocess.values[len(preprocess.values) // 2] if isinstance(preprocess, Quantiles) else preprocess
    assert median == pytest.approx(0.01, rel=0.01)


def test_the_yaml_is_read_back_by_the_emulator(tmp_path):
    result = call("fit", write_job(tmp_path / "t"), "-o", tmp_path / "twin.yaml", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    config = load(tmp_path / "twin.yaml")
    assert config.twin.assumptions == document["assumptions"]
    assert config.train.epochs == Job().epochs


@pytest.mark.parametrize(("shuffle", "expected"), [(True, "seed"), (False, "off")])
def test_shuffled_or_not(tmp_path, shuffle, expected):
    assert fit(Trace(write_job(tmp_path / "t", Job(shuffle=shuffle)))).config.reader.sample_shuffle == expected


def test_a_trace_of_no_training_job_is_refused(tmp_path):
    path = write_job(tmp_path / "t", Job(files=0, evaluation_files=0, epochs=1))
    with pytest.raises(IotwinError, match="no data set is read"):
        fit(Trace(path), "structured")


def test_a_log_on_another_clock_is_said(tmp_path):
    path = write_job(tmp_path / "t")
    phases = pq.read_table(path / "phases.parquet")
    for name in ("start_ns", "end_ns"):
        later = pc.cast(pc.add(phases[name], 3_600_000_000_000), phases.schema.field(name).type)
        phases = phases.set_column(phases.schema.get_field_index(name), phases.schema.field(name), later)
    write_table(path, "phases.parquet", schema.PHASES, phases)
    with pytest.raises(IotwinError, match="different clocks"):
        fit(Trace(path), "structured")


def test_losses_are_said(tmp_path):
    config = fit(Trace(write_job(tmp_path / "t", Job(lost={"ring_full": 12})))).config
    assert any("lost 12 events" in text for text in config.twin.assumptions)


def test_a_job_that_reads_images_alone_gets_a_twin_that_does_too(tmp_path):
    config = fit(Trace(write_job(tmp_path / "t", Job(files=8, evaluation_files=0)))).config
    assert config.twin.layout == "npy"
    assert config.twin.train_files == [f"case_{number:05d}_x.npy" for number in range(8)]


_BUILD = "import subprocess, sys; [subprocess.run(['cksum', name], check=True) for name in sys.argv[1:]]"


@pytest.mark.root
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["cp", "-r", "{data}", "{data}.copy"], "as a copy does"),
        ([sys.executable, "-c", _BUILD, *(f"{{data}}/{number}.dat" for number in range(5))], "5 programs read 5 files"),
        ([sys.executable, "-c", "open('{data}.log', 'w').write('done')"], "no data set is read"),
    ],
)
def test_what_is_no_training_gets_a_recorded_twin_with_the_reason(tmp_path, words, reason):
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"{number}.dat").write_bytes(np.random.default_rng(number).bytes(300_000))
    command = [word.replace("{data}", str(tmp_path / "data")) for word in words]
    assert call("trace", "-o", tmp_path / "t.trace", "--quiet", "--", *command).returncode == 0
    refused = call("fit", tmp_path / "t.trace", "-o", tmp_path / "twin.yaml", "--kind", "structured")
    assert refused.returncode == 1 and reason in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "twin.yaml").exists()
    recorded = call("fit", tmp_path / "t.trace", "-o", tmp_path / "twin.yaml")
    assert recorded.returncode == 0 and "recorded" in recorded.stdout and reason in recorded.stdout
    assert run_iotwin("emulate", tmp_path / "twin.yaml", "--quiet", cwd=tmp_path).returncode == 0
