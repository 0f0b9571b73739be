"""An experiment that trains: the budgets are kept, and the data follows from what the trainings report."""

import json

import pytest

from tests.processes import call
from tests.workloads.dtr.experiments import written

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_budgets_are_ratios_of_the_measured_peak_and_are_kept(tmp_path):
    extra = {"input_size": 128}
    config = {
        "dry_run": 0, "n_inputs": 1, "n_reps": 2, "report_errors": True, "models": ["lstm"],
        "dtr_settings": {"default": {"batch_size": 20, "timeout": 300}, "lstm": [
            {"type": "baseline", "timeout": 300, "extra_params": extra},
            {"type": "dtr", "kind": "ratio", "ratio": [0.8], "use_sampling": False, "extra_params": extra},
        ]},
    }  # fmt: skip
    done = call("dtr", "run", written(tmp_path, config), "-o", tmp_path / "results", "--preset", "tiny", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["errors"] == []
    (path,) = (tmp_path / "results/results/experiments/data/study").iterdir()
    plain, budgeted = json.loads(path.read_text())["lstm"]
    peak_mb = plain["summary"][0]["total_mem"]["mean"]
    assert budgeted["specific_params"]["memory_budget"] == pytest.approx(0.8 * peak_mb * 1e6)
    measured = budgeted["summary"][0]
    assert 0 < measured["total_mem"]["mean"] <= 0.8 * peak_mb and measured["slowdown"]["median"] > 0
    assert measured["remat_compute_time"]["mean"] > 0 and measured["base_compute_time"]["mean"] < measured["time"]["mean"] * 3
    assert 0 < measured["model_mem"]["mean"] < measured["input_mem"]["mean"] < peak_mb
