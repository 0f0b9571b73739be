"""The job with a memory budget: it reads real images, its numbers do not depend on the budget, and its log has the costs."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from iotwin.common.mllog import SIMULATED_BUDGETS
from iotwin.main import main as iotwin
from iotwin.trace_store.logs.job_log import read_values
from iotwin.workloads.dtr.__main__ import main
from iotwin.workloads.dtr.simulator.heuristics import heuristic_named
from iotwin.workloads.dtr.simulator.log_format import read_log
from iotwin.workloads.dtr.simulator.simulate import SimulationSettings, simulate


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    assert (
        iotwin(["generate", "checkfreq", "-o", str(folder / "data"), "--samples", "24", "--classes", "4", "--scale", "0.1"]) == 0
    )
    return folder / "data"


def job(images: Path, output: Path, *options: str) -> dict[str, Any]:
    words = ["--data", str(images), "--output", str(output), "--batch-size", "4", "--threads", "1", *options]
    assert main(words) == 0
    found: dict[str, Any] = json.loads((output / "result.json").read_bytes())
    return found


def test_job_does_not_depend_on_its_budget(images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    free = job(images, tmp_path / "free", "--workers", "0")
    budget = round(0.75 * free["memory"]["peak_bytes"])
    capfd.readouterr()
    limited = job(images, tmp_path / "limited", "--memory-budget", str(budget))
    assert limited["train_loss"] == free["train_loss"]
    assert limited["weights_sha256"] == free["weights_sha256"]
    assert limited["memory"]["peak_bytes"] <= budget
    assert limited["memory"]["rematerializations"] > 0
    lines = [line.partition(":::MLLOG ")[2] for line in capfd.readouterr().out.splitlines()]
    events = [json.loads(line) for line in lines if line]
    spent = sum(event["value"]["duration"] for event in events if event["key"] == "remat_compute")
    assert spent == pytest.approx(limited["memory"]["remat_compute_s"] * 1e9, abs=len(events))


def test_volumes_are_segmented_within_a_budget(tmp_path: Path) -> None:
    assert iotwin(["generate", "unet3d", "-o", str(tmp_path / "data"), "--samples", "6", "--scale", "0.1"]) == 0
    free = job(tmp_path / "data", tmp_path / "free", "--model", "unet3d", "--workers", "0")
    budget = round(0.8 * free["memory"]["peak_bytes"])
    options = ("--model", "unet3d", "--workers", "0", "--memory-budget", str(budget))
    limited = job(tmp_path / "data", tmp_path / "limited", *options)
    assert limited["weights_sha256"] == free["weights_sha256"] and limited["train_loss"] == free["train_loss"]
    assert limited["memory"]["rematerializations"] > 0 and limited["memory"]["over_budget"] == 0


@pytest.mark.parametrize("share", [None, 0.6])
def test_operations_are_logged_with_what_other_budgets_cost(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], share: float | None
) -> None:
    plain = job(images, tmp_path / "plain", "--workers", "0")
    budget = [] if share is None else ["--memory-budget", str(round(share * plain["memory"]["peak_bytes"]))]
    capfd.readouterr()
    log = tmp_path / "operations.log"
    logging = job(images, tmp_path / "logging", "--workers", "0", "--operations", str(log), *budget)
    assert logging["weights_sha256"] == plain["weights_sha256"]
    assert logging["memory"]["over_budget"] == 0
    (tmp_path / "stdout").write_text(capfd.readouterr().out)
    values = read_values([tmp_path / "stdout"])
    simulated = [tuple(map(int, word.split(","))) for word in values[SIMULATED_BUDGETS].split()]
    assert simulated[0] == (simulated[0][0], 0, 0, 0)
    assert simulated[0][0] == pytest.approx(plain["memory"]["peak_bytes"], rel=0.03)  # besides a batch of the step before
    least = simulated[-1]
    assert least[0] < 0.7 * simulated[0][0] and 0 < least[1] < 3 * values["step_operations_ns"] and least[2] >= least[3] > 0
    graph = read_log(log).graph
    again = simulate(graph, SimulationSettings(heuristic_named("h_eq"), least[0], overhead_limit=4.0))
    assert (again.result, again.remat_compute, again.rematerializations) == ("pass", *least[1:3])
    assert budget == [] or values["memory_budget"] in [each[0] for each in simulated]


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--memory-budget", "10kB"], 1, "dtr: a memory budget of 10000 bytes cannot be kept"),
        (["--memory-budget", "much"], 2, "dtr: size 'much' is not a positive number"),
        (["--heuristic", "best"], 2, "dtr: unknown heuristic 'best'"),
        (["--batch-size", "100000"], 1, "training samples, too few for a batch of 100000"),
        (["--operations", "a.log", "--offload", "."], 2, "leave out --offload"),
        (["--batch-size", "0"], 2, "--batch-size 0 must be at least 1"),
    ],
)
def test_mistakes_end_in_one_line(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], status: int, text: str
) -> None:
    assert main(["--data", str(images), "--output", str(tmp_path), "--workers", "0", *options]) == status
    errors = capfd.readouterr().err
    assert text in errors
    assert errors.count("\n") == 1
