"""Metrics against values worked out by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.journal import Measured, Span, StepLog, StepParts
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.results.dlio_text_files import log_lines, rank_output
from iotwin.benchmark.emulator.results.metrics import checkpoint_metrics, estimates, phase_metrics, step_quantiles
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.workload_yaml import Config, OutputMetric

SECOND = 1_000_000_000
GIB = 1 << 30
FIRST_STEP_OUT = OutputMetric()


def log(*steps: tuple[int, float, float, float], overhead: float = 0.0, block_steps: int = 1000) -> StepLog:
    """Steps of (epoch, wait, compute asked for, whole step), in seconds; two samples of 1 MiB in all each."""
    steps_log = StepLog()
    numbers: dict[int, int] = {}
    for epoch, *seconds in steps:
        wait, compute, whole = (int(value * SECOND) for value in seconds)
        numbers[epoch] = numbers.get(epoch, 0) + 1
        own = int(overhead * SECOND)
        times = StepParts(0, wait, compute, whole - wait - compute - own, own, whole)
        block = (numbers[epoch] - 1) // block_steps + 1
        steps_log.add("train", epoch, block, numbers[epoch], times, Fetched(2, 1 << 20, 5, 6))
    return steps_log


def test_utilisation_counts_time_asked_for_and_leaves_the_first_step_out() -> None:
    # Epoch 1 without its first step: 1 s + 1 s of 1.5 s + 2.5 s. Oversleeping (the last step) is no useful work.
    table = StepTable([log((1, 3, 1, 4), (1, 0.5, 1, 1.5), (1, 0.5, 1, 2.5), (2, 0, 1, 1), (2, 0, 1, 1))])
    metrics = phase_metrics(table, "train", FIRST_STEP_OUT)
    assert metrics["train_au_percentage"] == pytest.approx([50, 100])
    assert metrics["train_au_mean_percentage"] == pytest.approx(75)
    assert metrics["train_au_stdev_percentage"] == pytest.approx(25)
    # All 3 steps of epoch 1 take 8 s: the first wait is part of what a user sees.
    assert metrics["train_throughput_samples_per_second"] == pytest.approx([6 / 8, 4 / 2])
    assert metrics["train_io_mean_MB_per_second"] == pytest.approx((3 / 8 + 2 / 2) / 2)


def test_steps_at_both_ends_can_be_left_out() -> None:
    table = StepTable([log((1, 9, 1, 10), (1, 9, 1, 10), (1, 1, 1, 2), (1, 9, 1, 10))])
    metrics = phase_metrics(table, "train", OutputMetric(exclude_start_steps=2, exclude_end_steps=1))
    assert metrics["train_au_percentage"] == pytest.approx([50])


def test_each_block_leaves_out_its_own_ends() -> None:
    # Two blocks of three steps: without their first and last ones, 1 s of 2 s and 1 s of 4 s are left.
    table = StepTable([log((1, 8, 1, 9), (1, 1, 1, 2), (1, 8, 1, 9), (1, 8, 1, 9), (1, 3, 1, 4), (1, 8, 1, 9), block_steps=3)])
    metrics = phase_metrics(table, "train", OutputMetric(exclude_start_steps=1, exclude_end_steps=1))
    assert metrics["train_au_percentage"] == pytest.approx([100 * 2 / 6])


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 0), (2, 1), (0, 2)])
def test_summary_rank_files_and_log_tell_one_utilisation(first: int, last: int) -> None:
    """DLIO's three places of the figure: summary.json, N_output.json and dlio.log."""
    config = Config()
    config.output.metric = OutputMetric(exclude_start_steps=first, exclude_end_steps=last)
    steps = log((1, 3, 1, 4), (1, 0.5, 1, 1.5), (1, 0.25, 1, 1.5), (1, 0.5, 1, 2.5), (1, 0, 1, 7))
    measured = Measured(0, 0.0, 20.0, steps=steps, spans=[Span("epoch", 1, 1, 0.0, 20.0, 5), Span("block", 1, 1, 0.0, 20.0, 5)])
    table = StepTable([steps])
    summary = phase_metrics(table, "train", config.output.metric)["train_au_percentage"][0]
    facts = {"host_cpuinfo": {}, "host_meminfo": {}}
    rank_file = rank_output(config, measured, table.of_rank(0), facts)["1"]["au"]["block1"]
    said = next(line for line in log_lines(config, [measured], table, {"metric": {}}) if "[AU]" in line)
    assert rank_file == pytest.approx(summary)
    assert float(said.rpartition(": ")[2]) == pytest.approx(summary, abs=1e-4)


def test_an_epoch_of_one_step_has_no_utilisation_and_no_negative_rate() -> None:
    metrics = phase_metrics(StepTable([log((1, 1, 1, 2))]), "train", FIRST_STEP_OUT)
    assert metrics["train_au_percentage"] == [None] and metrics["train_au_mean_percentage"] is None
    assert metrics["train_throughput_samples_per_second"] == [1.0]


def test_ranks_add_up_their_samples_and_share_their_utilisation() -> None:
    # The second rank's steps take twice as long: it alone decides how long the epoch lasts.
    table = StepTable([log((1, 0, 1, 1), (1, 0, 1, 1)), log((1, 1, 1, 2), (1, 1, 1, 2))])
    metrics = phase_metrics(table, "train", FIRST_STEP_OUT)
    assert metrics["train_au_percentage"] == pytest.approx([(100 + 50) / 2])
    assert metrics["train_throughput_samples_per_second"] == pytest.approx([8 / 4])


def test_the_harness_is_told_apart() -> None:
    steps = [(1, 0, 1, 1.25)] * 30
    own = estimates(StepTable([log(*steps, overhead=0.25)]), "train", FIRST_STEP_OUT)
    assert own["au_percentage"]["value"] == pytest.approx(80)
    assert own["au_without_overhead_percentage"]["value"] == pytest.approx(100)
    assert own["overhead_s"]["value"] == pytest.approx(0.25)
    assert own["samples_per_second"] == pytest.approx({"value": 1.6, "low": 1.6, "high": 1.6})


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        steps = [(1, 0, 1, 1 + float(extra)) for extra in rng.exponential(0.5, 200)]
        own = estimates(StepTable([log(*steps)]), "train", OutputMetric(exclude_start_steps=0))["step_time_s"]
        covered += own["low"] <= 1.5 <= own["high"]
    assert 0.90 <= covered / 300 <= 0.99


def test_a_checkpoint_is_all_files_written_together() -> None:
    written = [Written(1, "a", GIB, 0, SECOND), Written(1, "b", GIB, 0, 3 * SECOND), Written(2, "a", 2 * GIB, 0, SECOND)]
    metrics = checkpoint_metrics("save", [written])
    assert metrics["save_checkpoint_io_mean_GB_per_second"] == pytest.approx((2 / 4 + 2 / 1) / 2)
    assert metrics["save_checkpoint_duration_mean_seconds"] == pytest.approx(2.5)
    assert metrics["checkpoint_size_GB"] == pytest.approx(2)


def test_the_slowest_rank_decides_how_long_a_checkpoint_takes() -> None:
    files = [[Written(1, "a", GIB, 0, SECOND)], [Written(1, "b", GIB, 0, 4 * SECOND)]]
    metrics = checkpoint_metrics("load", files)
    assert metrics["load_checkpoint_duration_mean_seconds"] == pytest.approx(4)
    assert metrics["load_checkpoint_io_min_GB_per_second"] == pytest.approx(0.25)
    assert metrics["load_checkpoint_io_mean_GB_per_second"] == pytest.approx(0.625)


def test_quantiles_are_in_seconds_and_lie_in_their_intervals() -> None:
    quantiles = step_quantiles(StepTable([log((1, 0.1, 1, 2), (1, 0.3, 1, 4), (1, 0.2, 1, 3))]), "train")
    assert quantiles["data_wait_s"]["median"] == pytest.approx(0.2)
    assert (quantiles["step_time_s"]["min"], quantiles["step_time_s"]["max"]) == (2, 4)
    assert quantiles["compute_s"]["p99"] == 1
    steps = [(1, 0.001 * number, 1, 2) for number in range(200)]
    waits = step_quantiles(StepTable([log(*steps)]), "train")["data_wait_s"]
    low, high = waits["intervals"]["median"]
    assert 0.08 < low < waits["median"] < high < 0.12


def test_the_table_has_every_step_of_every_rank(tmp_path: Path) -> None:
    steps = log(*[(epoch, 0.1, 0.2, 0.3) for epoch in (1, 2) for _ in range(3)])
    steps.add("evaluation", 2, 1, 1, StepParts(9, 8, 7, 6, 5, 4), Fetched(5, 4, 3, 2, start_ns=1))
    StepTable([steps, log((1, 0.1, 0.2, 0.3))]).write_parquet(tmp_path / "metrics.parquet")
    frame = pd.read_parquet(tmp_path / "metrics.parquet")
    assert frame["phase"].tolist() == ["train"] * 6 + ["evaluation", "train"]
    assert frame["rank"].tolist() == [0] * 7 + [1]
    assert frame["step"].tolist() == [1, 2, 3, 1, 2, 3, 1, 1]
    assert frame.iloc[6].drop("phase").tolist() == [0, 2, 1, 1, 9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.parquet"]
