"""The figures of training that all twins share, against values worked out by hand."""

import pytest

from iotwin.benchmark.emulator.journal import StepLog, StepParts
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.benchmark.emulator.results.training import TrainedPass, passes_of, training_document


def rank_log(*steps: tuple[int, int, int, int, int]) -> StepLog:
    """Steps of (epoch, start, wait, computation, wait for ranks); each step ends when its parts have passed."""
    made = StepLog()
    for number, (epoch, start, wait, compute, barrier) in enumerate(steps, 1):
        parts = StepParts(start, wait, compute, barrier, 0, wait + compute + barrier)
        made.add("train", epoch, 1, number, parts, Fetched(1, 1, 1, 1))
    return made


def test_passes_leave_out_the_first_step_but_not_its_time():
    table = StepTable([rank_log((1, 100, 50, 10, 5), (1, 165, 20, 10, 3), (1, 200, 0, 10, 1), (2, 300, 1, 2, 3))])
    first, second = passes_of(table, {(0, 1): 4})
    assert first == TrainedPass(0, 1, 3, 111, 20, 20, 4, 4)
    assert second == TrainedPass(0, 2, 1, 6, 0, 0, 0, 0)


def test_figures_are_sums_over_ranks_and_the_slowest_rank_decides_an_epoch():
    found = training_document([TrainedPass(0, 1, 4, 8_000_000_000, 3, 1, 0, 7), TrainedPass(1, 1, 4, 6_000_000_000, 3, 0, 1, 0)])
    assert found is not None
    assert found["step_s"] == pytest.approx(14 / 8) and found["epoch_s"] == [8.0] and found["steps"] == 8
    assert found["au"] == pytest.approx(6 / 8)
    assert found["storage_s"] == pytest.approx(7e-9) and found["rank_wait_s"] == pytest.approx(1e-9)


def test_without_passes_nothing_is_known_and_with_single_steps_no_utilisation():
    assert training_document([]) is None
    found = training_document([TrainedPass(0, 1, 1, 5, 0, 0, 0, 0)])
    assert found is not None and found["au"] is None
