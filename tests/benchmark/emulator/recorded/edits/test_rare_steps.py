"""After which steps an edited rank does what the recorded one did after few of its steps."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.rare_steps import LastingHelpers, RareSteps, find_rare_steps, runs_of
from iotwin.benchmark.emulator.recorded.edits.think_clock import Stretch
from tests.benchmark.emulator.recorded.edits.test_requested_edits import recorded
from tests.benchmark.loader_job import LoaderJob


def due(rare: RareSteps, lengths: list[int]) -> list[tuple[int, int, int]]:
    """(epoch, index, rare step) of each step that is due in epochs of these lengths."""
    found, step = [], 0
    for epoch, length in enumerate(lengths):
        for index in range(length):
            if (number := rare.due(epoch, index, step, length)) is not None:
                found.append((epoch, index, number))
            step += 1
    return found


def test_an_interval_in_steps_of_the_run_remains():
    rare = RareSteps([3, 7, 11], [3, 1, 5], [0, 1, 1], [6, 6])
    assert due(rare, [6, 6]) == [(0, 3, 0), (1, 1, 1), (1, 5, 2)]
    assert due(rare, [3, 3]) == [(1, 0, 0)]
    assert due(rare, [6, 6, 6]) == [(0, 3, 0), (1, 1, 1), (1, 5, 2), (2, 3, 0)]


def test_a_thread_may_act_in_the_step_after():
    rare = RareSteps([5, 10, 15, 21], [5, 2, 7, 5], [0, 1, 1, 2], [8, 8, 8])
    assert due(rare, [8, 8, 8]) == [(0, 5, 0), (1, 2, 1), (1, 7, 2), (2, 4, 3)] and due(rare, [4, 4]) == [(1, 1, 0)]


def test_the_same_steps_of_each_epoch_remain():
    rare = RareSteps([2, 8], [2, 2], [0, 1], [6, 6])
    assert due(rare, [6, 6, 6]) == [(0, 2, 0), (1, 2, 0), (2, 2, 0)] and due(rare, [2, 2]) == []


@pytest.mark.parametrize(("lengths", "expected"), [([6, 6], [(0, 1, 0), (1, 4, 1)]), ([12, 12], [(0, 2, 0), (1, 8, 1)])])
def test_other_steps_remain_at_their_share_of_the_epoch(lengths, expected):
    assert due(RareSteps([1, 10], [1, 4], [0, 1], [6, 6]), lengths) == expected


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(("evaluated", "expected"), [(True, [2, 5, 8]), (False, [5, 11])])
def test_evaluations_at_each_quarter_of_an_epoch_remain_there(epochs, evaluated, expected):
    """24 steps an epoch, then 12. Without an evaluation at the end, the interval in steps remains."""
    quarters, numbers = [5, 11, 17], range(epochs)
    steps = [24 * epoch + at for epoch in numbers for at in quarters]
    rare = RareSteps(steps, quarters * epochs, [epoch for epoch in numbers for _ in quarters], [24] * epochs, evaluated)
    assert due(rare, [12]) == [(0, at, number) for number, at in enumerate(expected)]


def test_neighbours_are_one_rare_step():
    """A thread saves while the next step computes."""

    def stretch(calls: int) -> Stretch:
        return Stretch(np.arange(calls), np.zeros(calls, np.int64), 0, 10, 0, 10)

    calls = [0, 0, 3, 2, 0, 0, 3, 0]
    alone = SimpleNamespace(calls=lambda _: 0, keep_those_within=lambda _: False)
    found, rare = find_rare_steps([SimpleNamespace(training=True, steps=[stretch(count) for count in calls])], alone, [])
    assert (found.steps, found.within, found.epochs, found.lengths) == ([2, 6], [2, 6], [0, 0], [8])
    assert rare[0].tolist() == [count > 0 for count in calls] and runs_of(rare[0]) == [[2, 3], [6]]


def test_stretches_that_are_joined_leave_out_what_was_between():
    first = Stretch(np.array([1]), np.array([5]), 0, 10, 0, 10, [(1, np.array([7]), np.array([3]))])
    second = Stretch(
        np.array([2]), np.array([24]), 20, 30, 20, 30, [(1, np.array([8]), np.array([4])), (2, np.array([9]), np.array([1]))]
    )
    both = first.followed_by(second)
    assert (both.rows.tolist(), both.at.tolist(), both.begin, both.end) == ([1, 2], [5, 14], 0, 20)
    assert [(position, rows.tolist(), thinks.tolist()) for position, rows, thinks in both.others] == [
        (1, [7, 8], [3, 4]),
        (2, [9], [1]),
    ]


def test_helpers_make_all_their_calls_in_several_of_the_stretches():
    made = recorded(LoaderJob(evaluated=8, evaluate_every=9, interrupt_every=10, files=96, held_lives=True))
    loaders, end = set(made.header.batches.loader), int(made.columns["at_ns"].max()) + 1
    moments = [0, end // 3, end // 3 * 2, end]
    thirds = [Stretch(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0, *pair) for pair in pairwise(moments)]
    whole = Stretch(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0, 0, end)
    for stretches, are_kept in ((thirds, True), (thirds[:2], False), ([whole], False)):
        helpers = LastingHelpers(made, 0, np.ones(made.rows, np.bool_), {0, *loaders})
        before = [process for process in range(len(made.header.parents)) if process in helpers]
        assert len(before) == 2 and (helpers.calls(thirds) > 0).all()
        assert helpers.keep_those_within(stretches) != are_kept
        assert [process in helpers for process in before] == [are_kept] * 2
