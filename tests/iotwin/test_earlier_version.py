"""What an earlier version made: its traces and its twin are read, fitted, emulated, compared and reported as by that version."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml import Config, Quantiles, load
from tests.conftest import ROOT, run_iotwin

MADE = ROOT / "tests" / "fixtures" / "first_house"
EXPECTED = json.loads((MADE / "expected.json").read_text())


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A copy: what reads a trace may leave an index beside it."""
    return Path(shutil.copytree(MADE, tmp_path / "made"))


def document(*arguments: str | Path, cwd: Path) -> dict:
    done = run_iotwin(*arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_trace_is_read_with_the_same_calls(made: Path) -> None:
    trace = Trace(made / "trace-1")
    assert (trace.manifest.schema_version, trace.manifest.events, trace.manifest.lost) == (1, 613, {})
    assert sum(len(batch) for batch in trace.events()) == 613 and set(trace.processes()["role"].astype(str)) >= {"rank", "loader"}
    rows = document("stats", made / "trace-1", cwd=made)["rows"]
    assert {row["op"]: [row["calls"], row["read_bytes"], row["written_bytes"]] for row in rows} == EXPECTED["calls"]


def test_a_fit_finds_the_values_of_the_earlier_twin(made: Path) -> None:
    before, fitted = load(made / "twin.yaml"), fit(Trace(made / "trace-1"))
    now = fitted.config
    assert (now.reader.batch_size, now.reader.read_threads) == (before.reader.batch_size, before.reader.read_threads)
    assert (now.train.epochs, now.dataset.num_files_train) == (before.train.epochs, before.dataset.num_files_train)
    assert isinstance(before.train.computation_time, Quantiles)
    assert min(before.train.computation_time.values) <= now.train.computation_time <= max(before.train.computation_time.values)
    size_bytes = Trace(made / "trace-1").files().set_index("path")["size_bytes"]
    assert dict(fitted.files) == {name: size_bytes[f"/tmp/before/data/{name}"] for name in before.twin.train_files or []}


def test_parameters_agree_with_the_earlier_twin(made: Path) -> None:
    before, now = load(made / "twin.yaml"), fit_parameters(Trace(made / "trace-1")).config
    assert (now.twin.train_files, now.twin.eval_files) == (before.twin.train_files, before.twin.eval_files)
    assert (now.twin.reader.read_sizes[0], now.twin.reader.read_sizes[-1]) == (32768, 0)
    assert (now.dataset.num_files_train, now.dataset.record_length_bytes) == (24, before.dataset.record_length_bytes)
    for section, key in (
        ("reader", "batch_size"), ("reader", "read_threads"), ("reader", "prefetch_size"), ("reader", "sample_shuffle"),
        ("train", "epochs"), ("workflow", "evaluation"), ("workflow", "checkpoint"),
        ("checkpoint", "epochs_between_checkpoints"), ("checkpoint", "steps_between_checkpoints"),
    ):  # fmt: skip
        assert getattr(getattr(now, section), key) == getattr(getattr(before, section), key), key
    [own], [file] = before.twin.checkpoint.files, now.twin.checkpoint.files
    assert (file.name, file.write_sizes, file.fsync, file.rename) == (own.name, own.write_sizes, own.fsync, own.rename)
    for found, expected in (
        (now.train.computation_time, before.train.computation_time), (file.serialization_time, own.serialization_time),
    ):  # fmt: skip
        assert isinstance(found, Quantiles) and isinstance(expected, Quantiles)
        assert min(expected.values) * 0.9 <= np.median(found.values) <= max(expected.values) * 1.1


def test_a_twin_is_emulated(made: Path) -> None:
    config: Config = load(made / "twin.yaml")
    data = made / "data"
    data.mkdir()
    sizes = Trace(made / "trace-1").files().set_index("path")["size_bytes"]
    for name in config.twin.train_files or []:
        (data / name).write_bytes(bytes(int(sizes[f"/tmp/before/data/{name}"])))
    summary = document("emulate", made / "twin.yaml", f"++workload.dataset.data_folder={data}", cwd=made)
    assert (summary["num_files_train"], summary["epochs"], summary["iotwin"]["steps"]) == (24, 2, 24)
    assert summary["iotwin"]["bytes_read"] == 2 * sum(
        int(sizes[f"/tmp/before/data/{name}"]) for name in config.twin.train_files or []
    )
    assert (made / "twin_checkpoints" / "model.pt").stat().st_size == 4096 + 2 * 262144 + 512


def test_traces_compare_with_the_same_scores(made: Path) -> None:
    found = document("compare", made / "trace-1", made / "trace-2", cwd=made)
    assert found["overall"] == pytest.approx(EXPECTED["overall"], abs=1e-9) and found["verdict"] == EXPECTED["verdict"]
    assert found["dimensions"] == pytest.approx(EXPECTED["dimensions"], abs=1e-9)


def test_traces_are_reported_and_exported(made: Path) -> None:
    done = run_iotwin("report", made / "trace-1", made / "trace-2", "-o", made / "report.html", cwd=made)
    assert done.returncode == 0, done.stderr
    assert (made / "report.html").stat().st_size > 10_000
    assert document("info", made / "trace-1", cwd=made)
