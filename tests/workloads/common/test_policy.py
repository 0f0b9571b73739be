"""When a checkpoint is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.workloads.policies.cadence import Cadence, LoopPosition, Policy


def reasons(policy, steps, seconds_a_step=1.0):
    return {step: found for step in range(1, steps + 1) if (found := policy.due(LoopPosition(1, step), step * seconds_a_step))}


def test_steps_and_lists_and_epochs():
    assert reasons(Policy(steps=Cadence(4, 4)), 10) == {4: "steps", 8: "steps"}
    assert reasons(Policy(listed=[3, 7]), 10) == {3: "list", 7: "list"}
    assert reasons(Policy(steps=Cadence(3, 3), listed=[3, 4]), 5) == {3: "steps", 4: "list"}
    assert reasons(Policy(), 10) == {}
    policy = Policy(epochs=Cadence(2, 2).due, steps=Cadence(1, 1))
    assert [policy.due(LoopPosition(epoch, 9, epoch_ended=True), 0) for epoch in (1, 2, 3, 4)] == [None, "epoch", None, "epoch"]


@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 100))
def test_by_time_a_whole_period_lies_between(period, step_s, start):
    policy = Policy(seconds=period, now=start)
    times = [now for step in range(100) if policy.due(LoopPosition(1, step), now := start + step * step_s)]
    assert all(b - a >= period for a, b in zip([start, *times], times, strict=False))
    assert all(b - a < period + step_s for a, b in zip([start, *times], times, strict=False))


def test_another_reason_puts_the_next_one_by_time_off():
    policy = Policy(steps=Cadence(5, 100), seconds=7)
    assert reasons(policy, 20) == {5: "steps", 12: "seconds", 19: "seconds"}


def test_a_checkpoint_that_took_long_is_not_followed_by_another():
    policy = Policy(seconds=7)
    assert policy.due(LoopPosition(1, 7), 7) == "seconds"
    policy.restart(20)
    assert policy.due(LoopPosition(1, 8), 26) is None and policy.due(LoopPosition(1, 9), 27) == "seconds"


@pytest.mark.parametrize("ended", [True, False])
def test_a_signal_asks_for_one(ended):
    policy = Policy(seconds=100)
    policy.ask()
    assert policy.due(LoopPosition(1, 1, ended), 0) == "signal" and policy.due(LoopPosition(1, 2, ended), 0) is None
