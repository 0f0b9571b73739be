"""After which steps an edited rank does what the recorded one did after few of its steps."""

import pytest

from iotwin.benchmark.emulator.recorded.edits.rare_steps import RareSteps


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


def test_the_same_steps_of_each_epoch_remain():
    rare = RareSteps([2, 8], [2, 2], [0, 1], [6, 6])
    assert due(rare, [6, 6, 6]) == [(0, 2, 0), (1, 2, 0), (2, 2, 0)] and due(rare, [2, 2]) == []


@pytest.mark.parametrize(("lengths", "expected"), [([6, 6], [(0, 1, 0), (1, 4, 1)]), ([12, 12], [(0, 2, 0), (1, 8, 1)])])
def test_other_steps_remain_at_their_share_of_the_epoch(lengths, expected):
    assert due(RareSteps([1, 10], [1, 4], [0, 1], [6, 6]), lengths) == expected
