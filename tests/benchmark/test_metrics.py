"""Metrics against values worked out by hand."""

from pathlib import Path

import pandas as pd
import pytest

from benchmark.checkpoint import Written
from benchmark.loader import Fetched
from benchmark.metrics import StepLog, checkpoint_metrics, phase_metrics, step_quantiles

SECOND = 1_000_000_000


def log(*steps: tuple[int, float, float, float]) -> StepLog:
    """Steps of (epoch, wait, compute asked for, whole step), in seconds; two samples of 1 MiB in all each."""
    steps_log = StepLog()
    for number, (epoch, wait, compute, whole) in enumerate(steps, 1):
        times = (0, int(wait * SECOND), int(compute * SECOND), int(whole * SECOND))
        steps_log.add("train", epoch, number, times, Fetched(2, 1 << 20, 5, 6))
    return steps_log


def test_utilisation_counts_time_asked_for_and_leaves_the_first_step_out() -> None:
    # Epoch 1 without its first step: 1 s + 1 s of 1.5 s + 2.5 s. Oversleeping (the last step) is no useful work.
    metrics = phase_metrics("train", log((1, 3, 1, 4), (1, 0.5, 1, 1.5), (1, 0.5, 1, 2.5), (2, 0, 1, 1), (2, 0, 1, 1)).columns())
    assert metrics["train_au_percentage"] == pytest.approx([50, 100])
    assert metrics["train_au_mean_percentage"] == pytest.approx(75)
    assert metrics["train_au_stdev_percentage"] == pytest.approx(25)
    # All 3 steps of epoch 1 take 8 s: the first wait is part of what a user sees.
    assert metrics["train_throughput_samples_per_second"] == pytest.approx([6 / 8, 4 / 2])
    assert metrics["train_io_mean_MB_per_second"] == pytest.approx((3 / 8 + 2 / 2) / 2)


def test_an_epoch_of_one_step_has_no_utilisation_and_no_negative_rate() -> None:
    metrics = phase_metrics("train", log((1, 1, 1, 2)).columns())
    assert metrics["train_au_percentage"] == [None] and metrics["train_au_mean_percentage"] is None
    assert metrics["train_throughput_samples_per_second"] == [1.0]


def test_a_checkpoint_is_all_files_of_an_epoch() -> None:
    gib = 1 << 30
    written = [Written(1, "a", gib, 0, SECOND), Written(1, "b", gib, 0, 3 * SECOND), Written(2, "a", 2 * gib, 0, SECOND)]
    metrics = checkpoint_metrics(written)
    assert metrics["save_checkpoint_io_mean_GB_per_second"] == pytest.approx((2 / 4 + 2 / 1) / 2)
    assert metrics["save_checkpoint_duration_mean_seconds"] == pytest.approx(2.5)
    assert metrics["checkpoint_size_GB"] == pytest.approx(2)


def test_quantiles_are_in_seconds() -> None:
    quantiles = step_quantiles(log((1, 0.1, 1, 2), (1, 0.3, 1, 4), (1, 0.2, 1, 3)).columns())
    assert quantiles["data_wait_s"]["median"] == pytest.approx(0.2)
    assert (quantiles["step_time_s"]["min"], quantiles["step_time_s"]["max"]) == (2, 4)
    assert quantiles["compute_s"]["p99"] == 1


def test_the_table_has_every_step_in_order(tmp_path: Path) -> None:
    steps = log(*[(epoch, 0.1, 0.2, 0.3) for epoch in (1, 2) for _ in range(3)])
    steps.add("evaluation", 2, 1, (9, 8, 7, 6), Fetched(5, 4, 3, 2))
    steps.write_parquet(tmp_path / "metrics.parquet")
    frame = pd.read_parquet(tmp_path / "metrics.parquet")
    assert frame["phase"].tolist() == ["train"] * 6 + ["evaluation"]
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6, 1]
    assert frame.iloc[-1].drop("phase").tolist() == [2, 1, 9, 8, 7, 6, 5, 4, 3, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.parquet"]
