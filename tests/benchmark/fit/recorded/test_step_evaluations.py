"""Which evaluations after epochs belong to the last step of an epoch."""

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit.recorded.process_tree import Tree
from iotwin.benchmark.fit.recorded.step_evaluations import with_step_evaluations

_EVALUATION = 10  # ns from the first request of an evaluation until its loader ends
_BATCHES = 3


def run(steps: int, epoch: int, evaluated: list[int]) -> tuple[list[pd.DataFrame], pd.DataFrame, Tree]:
    """Passes, interrupting batches and tree of a rank with steps of 100 ns. It evaluates after the steps `evaluated`."""
    ends = range(epoch, steps + 1, epoch)
    passes, interrupting = [], list[int]()
    for end in ends:
        taken = 100 * np.arange(end - epoch, end)
        passes.append(pd.DataFrame({"requested_ns": taken - 5, "taken_ns": taken, "computed_ns": taken + 50}))
    for step in evaluated:
        asked = 100 * step - 40 + np.arange(_BATCHES)
        if step in ends:
            passes.append(pd.DataFrame({"requested_ns": asked, "taken_ns": asked + 1, "computed_ns": asked + 2}))
        else:
            interrupting += asked.tolist()
    passes.sort(key=lambda each: int(each["taken_ns"].iloc[0]))
    passes = [each.assign(process=0, loader=number + 1) for number, each in enumerate(passes)]
    loader_ends = [int(each["requested_ns"].iloc[0]) + _EVALUATION for each in passes]
    count = len(passes) + 1
    tree = Tree(list(range(count)), [-1] + [0] * (count - 1), [0] * count, [100 * steps, *loader_ends], [0], [0])
    return passes, pd.DataFrame({"requested_ns": interrupting}), tree


def test_evaluations_after_every_n_steps_prolong_the_last_steps_of_epochs():
    passes, interrupting, tree = run(60, 20, [15, 30, 45, 60])
    assert [len(each) for each in passes] == [20, 20, 20, _BATCHES]
    found = with_step_evaluations(passes, interrupting, tree)
    assert [len(each) for each in found] == [20, 20, 20]
    assert [int(each["computed_ns"].iloc[-1]) for each in found] == [1950, 3950, 6000 - 40 + _EVALUATION]


@pytest.mark.parametrize(
    ("steps", "epoch", "evaluated"),
    [
        (40, 20, [10, 20, 30, 40]),  # each epoch is evaluated, so each half of an epoch may be the rule
        (40, 20, [10, 20, 30]),  # step 40 would have been evaluated, too
        (60, 20, [10, 30, 50, 60]),  # no interval in steps
        (60, 20, [10, 25, 50]),  # no evaluation follows an epoch
        (12, 4, [2, 4, 6, 8, 10]),  # an interval of two steps is too short to be sure
    ],
)
def test_other_evaluations_after_epochs_remain_passes(steps, epoch, evaluated):
    passes, interrupting, tree = run(steps, epoch, evaluated)
    assert with_step_evaluations(passes, interrupting, tree) is passes


def test_ranks_without_evaluations_within_epochs_keep_their_passes():
    passes, interrupting, tree = run(60, 20, [20, 60])
    assert with_step_evaluations(passes, interrupting, tree) is passes
