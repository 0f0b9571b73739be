"""Pictures of the original's measurements: medians against budgets, and one line where a file is something else."""

import json

import pytest

from iotwin.common.errors import UsageError
from iotwin.workloads.dtr.simulator.measured import panels_of


def measured(budget, wall):
    metrics = {"time": {"median": wall}, "base_compute_time": {"median": 5.0}}
    return {"specific_params": {"memory_budget": budget}, "summary": [metrics], "num_retries": 0}


def written(path, config, data):
    (path / "config.json").write_text(json.dumps(config))
    (path / "data.json").write_text(json.dumps(data))
    return [path / "config.json", path / "data.json"]


def test_medians_stand_against_budgets_and_what_failed_is_left_out(tmp_path):
    failed = {"specific_params": {"memory_budget": "1e9"}, "summary": "error"}
    data = {"timestamp": "x", "unet": [measured("4e9", 9.0), failed, measured("2e9", 12.0)]}
    (panel,) = panels_of(written(tmp_path, {"models": ["unet", "gru"]}, data))
    wall, operators, *others = panel["series"]
    assert (panel["title"], wall["x"], wall["y"], operators["y"]) == ("unet", [2.0, 4.0], [12.0, 9.0], [5.0, 5.0])
    assert all(other["y"] == [None, None] for other in others)


@pytest.mark.parametrize(
    ("config", "data"),
    [
        ({"models": [{"name": "a"}]}, {"a": []}),
        ({}, {"a": [1]}),
        ({}, {"a": 3}),
        ({}, {"a": [{"summary": [{}]}]}),
        ({}, {"a": [measured("much", 1.0)]}),
        ([], {}),
        ({}, {}),
    ],
)
def test_other_files_are_named(tmp_path, config, data):
    with pytest.raises(UsageError, match=r"data\.json"):
        panels_of(written(tmp_path, config, data))
