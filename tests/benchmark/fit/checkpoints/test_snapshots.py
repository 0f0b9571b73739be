"""Snapshots of the state that training waits for, and their times apart from the computation of the steps."""

import numpy as np
import pytest

from iotwin.benchmark.fit.checkpoints.find_checkpoints import SeenCheckpoints
from iotwin.benchmark.fit.checkpoints.snapshots import apart_from_snapshots
from iotwin.benchmark.fit.passes import Pass
from tests.benchmark.fit.checkpoints.test_asynchronous_checkpoints import RANK, checkpoints_at
from tests.synthetic import MILLISECOND


def steps_of(begins_ns: np.ndarray, compute_s: np.ndarray) -> Pass:
    """An epoch of steps that begin so, each as soon as its batch is delivered, and compute so."""
    ends_ns, none = begins_ns + np.round(compute_s * 1e9).astype(np.int64), np.zeros(len(begins_ns), np.int64)
    return Pass(True, 1, RANK, (), 0, none, none, none, none, delivered_ns=begins_ns, taken_ns=begins_ns, computed_ns=ends_ns)


def steps_with_snapshots(
    snapshot_s: float, opened_ms: float = 15, every: int = 5, steps: int = 60
) -> tuple[Pass, SeenCheckpoints]:
    """Steps of 10 ms that vary by a tenth, of which every fifth copies its state before its checkpoint begins to be written.

    `opened_ms`: from the step's begin to the opening of the checkpoint's file.
    """
    draws = np.random.default_rng(3)
    holds = np.arange(1, steps + 1) % every == 0
    compute_s = 0.01 * draws.uniform(0.9, 1.1, steps) + snapshot_s * holds
    begins_ns = np.arange(steps) * 100 * MILLISECOND
    opened = [(step * 100 + opened_ms, step * 100 + 90) for step in np.flatnonzero(holds).tolist()]
    return steps_of(begins_ns, compute_s), checkpoints_at(*opened)


def test_a_snapshot_is_told_from_computation():
    part, checkpoints = steps_with_snapshots(0.004)
    rest_s, snapshots_s = apart_from_snapshots([part], checkpoints)
    assert (len(rest_s), len(snapshots_s)) == (48, 12)
    assert np.median(snapshots_s) == pytest.approx(0.004, rel=0.15)
    assert rest_s.max() < 0.0112


def test_a_snapshot_that_waits_for_room_is_told_without_the_wait():
    """The third checkpoint and those after it wait 10 ms for the one before the last to be whole."""
    part, _ = steps_with_snapshots(0.004)
    steps = np.arange(4, 60, 5)
    waits_ms = np.where(steps < 14, 0, 10)
    part.computed_ns[steps] += waits_ms * MILLISECOND
    opened_ms, whole_ms = steps * 100 + 14 + waits_ms, (steps + 10) * 100 + 20
    checkpoints = checkpoints_at(*zip(opened_ms.tolist(), whole_ms.tolist(), strict=True))
    assert checkpoints.in_flight == 2
    assert np.median(apart_from_snapshots([part], checkpoints)[1]) == pytest.approx(0.004, rel=0.15)


def steps_back_to_back(waits: bool) -> tuple[Pass, SeenCheckpoints]:
    """Steps that all hold a checkpoint: if it waits for the writing of the one before, 4 ms follow that; else none does."""
    room_ms = np.random.default_rng(4).uniform(2, 40 if waits else 8, 60)
    lengths_ms = np.maximum(6, room_ms) + 4 if waits else np.random.default_rng(5).uniform(9, 11, 60)
    begins_ms = np.concatenate([[0], np.cumsum(lengths_ms + 50)[:-1]])
    opened_ms = begins_ms + lengths_ms
    whole_ms = np.append(begins_ms[1:] + room_ms[1:], opened_ms[-1] + 30)
    return (
        steps_of(np.round(begins_ms * MILLISECOND).astype(np.int64), lengths_ms / 1e3),
        checkpoints_at(*zip(opened_ms.tolist(), whole_ms.tolist(), strict=True)),
    )


def test_a_wait_in_each_step_is_no_computation():
    part, checkpoints = steps_back_to_back(waits=True)
    assert checkpoints.in_flight == 1 and np.median(part.computation_s) > 0.02
    rest_s, snapshots_s = apart_from_snapshots([part], checkpoints)
    assert np.median(snapshots_s) == pytest.approx(0.004, abs=1e-6)
    assert np.min(rest_s) == pytest.approx(0.006, abs=1e-6) and np.median(rest_s) < 0.012
    alone, checkpoints = steps_back_to_back(waits=False)
    assert apart_from_snapshots([alone], checkpoints)[0].tolist() == alone.computation_s.tolist()


def test_no_snapshot_is_made_of_chance():
    part, checkpoints = steps_with_snapshots(0.0)
    rest_s, snapshots_s = apart_from_snapshots([part], checkpoints)
    assert rest_s.tolist() == part.computation_s.tolist() and not len(snapshots_s)


@pytest.mark.parametrize(("snapshot_s", "found"), [(0.001, 0), (0.0016, 12)])
def test_a_snapshot_is_found_if_its_steps_are_three_standard_errors_longer(snapshot_s, found):
    part, checkpoints = steps_with_snapshots(snapshot_s, opened_ms=12)
    assert len(apart_from_snapshots([part], checkpoints)[1]) == found


def test_a_checkpoint_that_training_waits_for_has_no_snapshot():
    part, checkpoints = steps_with_snapshots(0.004)
    for point in checkpoints.each:
        point.beside = False
    assert not len(apart_from_snapshots([part], checkpoints)[1])
