"""The steps of many ranks in bounded memory: the figures are those of all steps in one table, which does not fit into it."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.emulator.journal import COLUMNS, PHASES, Measured
from iotwin.benchmark.emulator.results import step_table
from iotwin.benchmark.emulator.results.metrics import estimates, phase_metrics, step_quantiles
from iotwin.benchmark.emulator.results.run_files import summarize, write_results
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.benchmark.emulator.results.training import passes_of
from iotwin.common.numbers.confidence import mean, ratio
from iotwin.workload_yaml import Config, OutputMetric

EXCLUDED = OutputMetric(exclude_start_steps=1, exclude_end_steps=2)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_table, "_MEMORY_BYTES", 1000)
    monkeypatch.setattr(step_table, "_BATCH_BYTES", 20_000)


def rank_steps(rank: int, steps: int, epochs: int = 3, block: int = 20) -> np.ndarray:
    """Return the steps of a rank, shape (steps, columns): epochs of blocks of `block` steps, each epoch with an evaluation."""
    draw = np.random.default_rng(rank)
    rows = []
    for epoch in range(1, epochs + 1):
        for phase, count in ((0, steps), (1, steps // 4)):
            table = np.zeros((count, len(COLUMNS)), np.int64)
            step = np.arange(1, count + 1)
            wait, compute, barrier = (draw.exponential(seconds * 1e9, count).astype(np.int64) for seconds in (0.1, 1, 0.3))
            overhead = draw.integers(-1000, 5000, count)
            whole = wait + compute + barrier + overhead
            samples, read = draw.integers(1, 5, count), draw.integers(0, 1 << 30, count)
            given = (
                phase,
                epoch,
                (step - 1) // block + 1,
                step,
                0,
                wait,
                compute,
                barrier,
                overhead,
                whole,
                samples,
                read,
                1,
                1,
                1,
            )
            for index, values in enumerate(given):
                table[:, index] = values
            rows.append(table)
    found = np.concatenate(rows)
    found[:, COLUMNS.index("start_ns")] = np.cumsum(found[:, COLUMNS.index("step_ns")])
    return found


def sent(ranks: dict[int, np.ndarray], folder: str | None = None, part: int = 16) -> StepTable:
    """Return a table to which the ranks sent their steps in turn, `part` steps at a time."""
    table = StepTable(folder=folder)
    for first in range(0, max(map(len, ranks.values())), part):
        for rank, rows in ranks.items():
            table.add(rank, rows[first : first + part].tobytes())
    return table


def naive(frame: pd.DataFrame, phase: str) -> tuple[list[float], list[float], dict[str, Any], dict[str, list[float]]]:
    """Return AU and samples per second by epoch, estimates and quantiles, from one table with all steps."""
    steps = frame[frame["phase"] == PHASES.index(phase)]
    blocks = steps.groupby(["rank", "epoch", "block"])["step"]
    counted = steps[(blocks.cumcount() >= 1) & (blocks.cumcount(ascending=False) >= 2)]
    utilisation, throughput = [], []
    for epoch, whole in steps.groupby("epoch"):
        sums = counted[counted["epoch"] == epoch].groupby("rank")[["compute_ns", "step_ns"]].sum()
        utilisation.append(100 * float((sums["compute_ns"] / sums["step_ns"]).clip(upper=1).mean()))
        throughput.append(float(whole["samples"].sum()) / (float(whole.groupby("rank")["step_ns"].sum().max()) / 1e9))
    every, kept = (each.groupby(["epoch", "step"])[list(COLUMNS[4:])].sum() for each in (steps, counted))
    count = steps.groupby(["epoch", "step"]).size().to_numpy()
    busy = ratio(kept["compute_ns"].to_numpy(), kept["step_ns"].to_numpy())
    rate = ratio(every["bytes_read"].to_numpy(), every["step_ns"].to_numpy() / count)
    waited, took = mean(steps["data_wait_ns"].to_numpy()), mean(steps["step_ns"].to_numpy())
    assert busy and rate and waited and took
    expected = {
        "au_percentage": busy.at_most(1).scaled(100), "bytes_per_second": rate.scaled(1e9),
        "data_wait_s": waited.scaled(1e-9), "step_time_s": took.scaled(1e-9),
    }  # fmt: skip
    shares = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
    names = {"data_wait_s": "data_wait_ns", "compute_s": "compute_ns", "step_time_s": "step_ns", "barrier_s": "barrier_ns"}
    quantiles = {name: [float(np.quantile(steps[column], share)) * 1e-9 for share in shares] for name, column in names.items()}
    return utilisation, throughput, {name: each._asdict() for name, each in expected.items()}, quantiles


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("phase", PHASES)
def test_figures_are_those_of_one_table_of_all_steps(phase: str) -> None:
    ranks = {rank: rank_steps(rank, 90) for rank in range(7)}
    frame = pd.concat([pd.DataFrame(rows, columns=COLUMNS).assign(rank=rank) for rank, rows in ranks.items()])
    table = sent(ranks)
    utilisation, throughput, expected, quantiles = naive(frame, phase)
    metrics, prefix = phase_metrics(table, phase, EXCLUDED), {"train": "train", "evaluation": "eval"}[phase]
    assert metrics[f"{prefix}_au_percentage"] == utilisation
    assert metrics[f"{prefix}_throughput_samples_per_second"] == throughput
    estimated = estimates(table, phase, EXCLUDED)
    assert {name: estimated[name] for name in expected} == expected
    found = step_quantiles(table, phase)
    assert {name: [value for key, value in found[name].items() if key != "intervals"] for name in found} == quantiles


@pytest.mark.usefixtures("little_memory")
def test_the_summary_does_not_depend_on_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ranks = {rank: rank_steps(rank, 70) for rank in range(5)}
    measured = [Measured(rank, end_s=1.0) for rank in ranks]
    found = summarize(Config(), measured, sent(ranks, str(tmp_path)))
    assert list(tmp_path.iterdir()) == []  # the temporary file has no name
    passes = list(passes_of(sent(ranks), {}))
    monkeypatch.undo()
    assert found == summarize(Config(), measured, sent(ranks)) and passes == list(passes_of(sent(ranks), {}))


@pytest.mark.usefixtures("little_memory")
def test_the_table_of_steps_is_in_the_order_of_ranks(tmp_path: Path) -> None:
    ranks = {rank: rank_steps(rank, 70) for rank in range(5)}
    sent(ranks).write_parquet(tmp_path / "metrics.parquet")
    frame = pd.read_parquet(tmp_path / "metrics.parquet")
    assert frame["rank"].tolist() == np.repeat(list(ranks), [len(rows) for rows in ranks.values()]).tolist()
    assert (frame[list(COLUMNS[1:])].to_numpy() == np.concatenate([rows[:, 1:] for rows in ranks.values()])).all()
    assert frame["phase"].tolist() == [PHASES[code] for rows in ranks.values() for code in rows[:, 0]]


def peak_bytes(count: int, folder: Path) -> int:
    """Return the most memory that collecting the steps of `count` ranks and writing all results takes."""
    config = Config()
    config.output.folder = str(folder)
    one = rank_steps(0, 2000, epochs=1, block=1000)
    tracemalloc.start()
    write_results(config, [Measured(rank) for rank in range(count)], sent(dict.fromkeys(range(count), one), str(folder), 256))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_steps_of_all_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(step_table, "_MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(step_table, "_BATCH_BYTES", 1 << 20)
    peak_bytes(1, tmp_path)  # imports
    few, many = (peak_bytes(count, tmp_path) for count in (16, 128))
    assert many < 1.1 * few, (few, many)  # the steps of 16 ranks take 4.8 MB, those of 128 take 38 MB
