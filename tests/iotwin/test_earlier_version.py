"""What an earlier version made: its traces and its twin are read, fitted, emulated, compared and reported as by that version."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from iotwin.benchmark.fit import fit
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml import Config, load
from tests.conftest import ROOT, run_iotwin

MADE = ROOT / "tests" / "fixtures" / "first_house"
EXPECTED = json.loads((MADE / "expected.json").read_text())
FITTED_TIMES = {"startup_time", "init_time", "preprocess_time", "computation_time", "serialization_time", "serialization_ahead"}


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


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in FITTED_TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def times(value: object) -> list[object]:
    if isinstance(value, dict):
        return [part for key, item in value.items() for part in ([item] if key in FITTED_TIMES else times(item))]
    return [part for item in value for part in times(item)] if isinstance(value, list) else []


def test_a_fit_gives_the_same_twin(made: Path) -> None:
    before, now = msgspec.to_builtins(load(made / "twin.yaml")), msgspec.to_builtins(fit(Trace(made / "trace-1")).config)
    # What is told since then: of when loaders began, and of a job that logs no checkpoints and trains on processors.
    before["twin"]["reader"]["start_time"] = {"type": "quantiles", "values": [0.002113, 0.004779]}
    before["twin"]["checkpoint"] |= {"logged": False, "on_processors": True}
    assert without_times(now) == without_times(before)
    assert times(now) == times(before) and len(times(before)) >= 5


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
