"""The step time of a job under a memory budget: its parts and a simulation give what other budgets cost."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from iotwin.benchmark.emulator.recorded.edits.requested_edits import edits_of
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.recorded.memory_budget import budgeted_step, describe_budget, rematerialized_time
from iotwin.common.errors import UsageError
from iotwin.common.mllog import SIMULATED_BUDGETS
from iotwin.workload_yaml import Rematerialized
from iotwin.workload_yaml.rematerialized import overhead
from tests.benchmark.loader_job import LoaderJob

# 100 operations take 60 ms, and Python 100 ms. Of the simulation, the second budget repeats a quarter of both, for 5 evictions.
PLAIN = {"base_compute": 60, "remat_compute": 0, "search": 0, "cost": 0, "all_compute": 160}
LOGGED = {"step_operations": 100, "step_operations_ns": 4_000, SIMULATED_BUDGETS: "1000,0,0,0 600,1000,25,5 400,2000,50,20"}


def job(logged: dict[str, Any], **parts_ms: int) -> Any:
    """A job of 3 steps; the first one is slower."""
    rows = [
        {"name": name, "start_ns": 0, "duration_ns": ms * slower * 1_000_000, "rank": 0, "epoch": 1, "step": step}
        for step, slower in ((1, 3), (2, 1), (3, 1))
        for name, ms in (PLAIN | parts_ms).items()
    ]
    return SimpleNamespace(trace=SimpleNamespace(step_parts=lambda: pd.DataFrame(rows)), logged=logged)


def time_of(made: Any, computation_s: float = 0.2) -> Rematerialized:
    step = budgeted_step(made)
    assert step is not None
    found = rematerialized_time(made, step, computation_s)
    assert found is not None
    return found


def test_a_job_without_a_budget_predicts_operations_and_python_that_are_repeated() -> None:
    time = time_of(job(LOGGED))
    assert time.budget is None and time.base == 0.2 and time.peak_bytes == 1000
    assert time.curve == [(1.0, 1.0), (0.6, 1.25), (0.4, 1.5)]


def test_under_a_budget_the_twin_takes_what_was_measured_and_others_grow_alike() -> None:
    # Python takes 100 ms for 100 + 25 operations; 15 ms are repeated, and 8 ms choose what to evict.
    parts = {"remat_compute": 15, "search": 5, "cost": 3, "all_compute": 183}
    time = time_of(job(LOGGED | {"memory_budget": 600}, **parts))
    plain, measured = 60 + 80, (183 - 140) / 140
    assert time.base * overhead(time) == pytest.approx(0.2) and overhead(time) == pytest.approx(1 + measured, abs=1e-5)
    # What was measured equals the prediction of the recorded budget: 15 ms of operations, 20 of Python and 8 of evictions.
    other = (2 * 15 + 2 * 20 + 4 * 8) / plain
    assert dict(time.curve)[0.4] == pytest.approx(1 + other, abs=1e-5)
    slower = time_of(job(LOGGED | {"memory_budget": 600}, **{**parts, "remat_compute": 58, "all_compute": 226}))
    assert dict(slower.curve)[0.4] - 1 == pytest.approx(2 * other, abs=1e-5)


def test_a_budget_above_the_peak_is_none() -> None:
    time = time_of(job(LOGGED | {"memory_budget": 2000}))
    assert overhead(time) == 1.0 and time.base == 0.2


def test_without_operations_only_the_jobs_own_budget_is_known() -> None:
    made = job({"memory_budget": 600}, remat_compute=15, search=5, cost=3, all_compute=183)
    time, step = time_of(made), budgeted_step(made)
    assert step is not None and time.budget == 600 and overhead(time) == pytest.approx(183 / 160, abs=1e-5)
    assert "8.2% computing again, 4.4% searching what to evict; the job logged no operations" in describe_budget(time, step)
    time.budget = 700
    with pytest.raises(UsageError, match=r"budget of 700 bytes .* logged no operations; its own was 600 bytes.*--operations"):
        overhead(time)
    time.budget = None
    assert overhead(time) == 1.0


@pytest.mark.parametrize("line", [None, "", "1000", "1000,0,0,0 600,-1,2,3", "0,0,0,0", "a,b,c,d", f"1000,{10**400},2,3"])
def test_a_damaged_simulation_is_none(line: str | None) -> None:
    made = job(LOGGED | {SIMULATED_BUDGETS: line})
    step = budgeted_step(made)
    assert step is not None and rematerialized_time(made, step, 0.2) is None


def test_a_job_that_logs_no_recomputation_has_a_plain_step_time() -> None:
    made = job({})
    made.trace.step_parts = lambda: None
    assert budgeted_step(made) is None


def test_steps_without_times_are_none() -> None:
    assert budgeted_step(job({}, **dict.fromkeys(PLAIN, 0))) is None
    made = job({})
    parts = made.trace.step_parts()
    made.trace.step_parts = lambda: parts.assign(step=parts["step"].where(parts["name"] != "cost"))
    assert budgeted_step(made) is None


def test_another_budget_edits_the_computation_of_a_recording(tmp_path: Any) -> None:
    fitted = fit(LoaderJob().trace(tmp_path / "t"))
    assert fitted.recording is not None
    config, header = fitted.config, fitted.recording.header
    config.train.computation_time = time = time_of(job(LOGGED | {"memory_budget": 600}), float(config.train.computation_time))  # type: ignore[arg-type]
    assert edits_of(config, header, 1) is None
    time.budget = 0.4
    edits = edits_of(config, header, 1)
    assert edits is not None and edits.computation == pytest.approx(dict(time.curve)[0.4] / dict(time.curve)[0.6], abs=1e-5)
