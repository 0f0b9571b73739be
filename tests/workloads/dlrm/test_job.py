"""DLRM: its loader, its model and the whole job on little data."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.dlrm.__main__ import main
from iotwin.workloads.dlrm.data import BatchFile, batch_order, preprocess, table_rows
from iotwin.workloads.dlrm.metrics import roc_auc
from tests.conftest import ROOT
from tests.workloads.mllog import entries, intervals, parts

SAMPLES = 60_000


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("criteo")
    generate(DlrmLayout(), directory, samples=SAMPLES, seed=3, workers=1)
    return directory


@pytest.fixture(scope="session")
def samples(data):
    return np.fromfile(data / DlrmLayout.TRAIN_NAME, DlrmLayout.DTYPE).reshape(-1, 40)


def options(data, output, **changes):
    values = {
        "data": data, "output": output, "batch_size": 512, "steps": 100, "eval_every": 50,
        "eval_batch_size": 512, "eval_batches": 2,
        "embedding_size": 8, "most_categories": 1000, "bottom": "32,16", "top": "32,16", "threads": 1, "seed": 1, **changes,
    }  # fmt: skip
    return [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture
def job(data, tmp_path, capsys):
    def run(**changes):
        status = main(options(data, tmp_path / "out", **changes))
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return json.loads((tmp_path / "out" / "result.json").read_text()), entries(captured.out)

    return run


# The loader


def test_a_batch_is_what_the_file_holds(data, samples):
    file = BatchFile(data / DlrmLayout.TRAIN_NAME, 100, Parts(False))
    assert file.batches == SAMPLES // 100
    batch = file.read(7, most_categories=50)
    rows = samples[700:800]
    np.testing.assert_array_equal(batch.labels, rows[:, 0])
    np.testing.assert_allclose(np.expm1(batch.dense), rows[:, 1:14], rtol=1e-4)
    np.testing.assert_array_equal(batch.categories.T, rows[:, 14:] % np.minimum(DlrmLayout.CATEGORIES, 50))
    file.close()


def test_categories_fit_their_tables(samples):
    batch = preprocess(samples[:1000], 40_000_000)
    assert (batch.categories.max(axis=1) < table_rows(40_000_000)).all() and batch.categories.min() >= 0


@given(st.integers(1, 50), st.integers(1, 200), st.booleans(), st.integers(0, 1000))
def test_every_pass_reads_each_batch_once(batches, steps, shuffle, seed):
    order = list(batch_order(batches, steps, shuffle, seed))
    assert len(order) == steps
    for first in range(0, steps, batches):
        part = order[first : first + batches]
        assert len(set(part)) == len(part) and all(0 <= number < batches for number in part)
        if not shuffle:
            assert part == list(range(len(part)))


def test_shuffled_passes_differ_and_a_rerun_does_not():
    order = list(batch_order(100, 200, True, 1))
    assert order[:100] != order[100:] and order[:100] != sorted(order[:100])
    assert order == list(batch_order(100, 200, True, 1)) != list(batch_order(100, 200, True, 2))


def test_auc_against_counting_pairs():
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 9, 80).astype(np.float32), (rng.random(80) < 0.3).astype(np.float32)
    clicks, others = scores[labels > 0][:, None], scores[labels == 0][None]
    assert roc_auc(scores, labels) == pytest.approx(((clicks > others) + (clicks == others) / 2).mean())
    assert np.isnan(roc_auc(scores, np.zeros(80, np.float32)))


@pytest.mark.parametrize(
    ("content", "message"), [(b"x" * 161, "cut off"), (b"", "too few for one batch"), (None, "iotwin generate dlrm")]
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "terabyte_processed_train.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(IotwinError, match=message):
        BatchFile(path, 1, Parts(False))
    open_files = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert path not in open_files


# The job


@pytest.mark.torch
@pytest.mark.parametrize("seed", [1, 2])
def test_the_loss_falls(job, seed):
    """By a fifth, as workloads/dlrm/README.md states."""
    result, _ = job(seed=seed)
    assert result["last_loss"] < 0.8 * result["first_loss"]
    assert result["evaluations"][-1]["roc_auc"] > 0.6


@pytest.mark.torch
def test_without_learning_the_loss_does_not_fall(job):
    result, _ = job(learning_rate=0)
    assert result["last_loss"] > 0.9 * result["first_loss"]


@pytest.mark.torch
def test_log_checkpoint_and_result(job, tmp_path):
    import torch

    result, log = job()
    training, evaluation, checkpoint = ([(key, "START"), (key, "END")] for key in ("training", "eval", "checkpoint"))
    marks = [mark for mark in intervals(log) if mark[0] not in ("init", "run")]
    assert marks == 2 * [*training, *evaluation, *checkpoint]
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert state["step"] == 100 and state["evaluation"] == result["evaluations"][-1]
    assert sum(weight.numel() for weight in state["model"].values()) == result["parameters"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint.pt", "result.json"]
    assert parts(log) == {}


@pytest.mark.torch
def test_instrumented_logs_every_part_of_every_step(job):
    result, log = job(variant="instrumented")
    found = parts(log)
    for key in ("batch_load", "batch_preproc", "load_batch_mem", "load_batch_gpu", "model_forward_pass", "loss_tensor_calc",
                "model_backward_pass", "model_optim_step", "cum_loss_fn_calc", "all_compute", "step_end"):  # fmt: skip
        assert len(found[key]) == result["steps"], key
    for key in ("eval_load_batch_mem", "eval_load_batch_gpu", "eval_forward_pass", "eval_score_compute", "eval_compute",
                "eval_step_end", "eval_batch_load"):  # fmt: skip
        assert len(found[key]) == 4, key
    assert len(found["eval_metrics_compute"]) == 2
    for step, load, compute in zip(found["step_end"], found["load_batch_mem"], found["all_compute"], strict=True):
        assert step >= load + compute
    for batch, load in zip(found["load_batch_mem"], found["batch_load"], strict=True):
        assert batch >= load


@pytest.mark.torch
def test_same_seed_same_training(job):
    assert job(steps=20, eval_every=0)[0]["last_loss"] == job(steps=20, eval_every=0)[0]["last_loss"]


@pytest.mark.torch
def test_divergence_is_said(data, tmp_path, capsys):
    assert main(options(data, tmp_path / "out", learning_rate=1e30)) == 1
    assert "training diverged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"batch_size": 0}, 2, "--batch-size 0 must be at least 1"),
        ({"bottom": "8,x"}, 2, "--bottom '8,x'"),
        ({"variant": "quick"}, 2, "--variant 'quick' is unknown"),
        ({"batch_size": SAMPLES + 1}, 1, "too few for one batch"),
        ({"data": "/nowhere"}, 1, "iotwin generate dlrm"),
    ],
)
def test_bad_requests(data, tmp_path, capsys, changes, status, message):
    changes = dict(changes)
    asleep = {} if "variant" in changes else {"variant": "sleep", "sleep": 0}
    assert main(options(changes.pop("data", data), tmp_path / "out", **changes, **asleep)) == status
    error = capsys.readouterr().err
    assert message in error and error.startswith("dlrm: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_variant_sleep_needs_no_torch(data, tmp_path):
    program = (
        "import sys; sys.modules['torch'] = None;"  # as if not installed
        "from iotwin.workloads.dlrm.__main__ import main; raise SystemExit(main(sys.argv[1:]))"
    )
    arguments = options(data, tmp_path / "out", variant="sleep", sleep="0.001", steps=20)
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "result.json").read_text())["steps"] == 20
