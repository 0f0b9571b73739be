"""What a rank does after few of its steps, such as a checkpoint, and after which steps an edited rank does it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.think_clock import Stretch


class RareSteps(NamedTuple):
    """The steps of training, over all epochs, after which the rank does more than after others.

    `steps`: their indices in the run; `within`: their indices in their epochs; `epochs`: their epochs; `lengths`: steps of each
    recorded epoch.
    """

    steps: list[int]
    within: list[int]
    epochs: list[int]
    lengths: list[int]

    def due(self, epoch: int, index: int, step: int, length: int) -> int | None:
        """Return which of the rare steps an edited rank repeats after the step at `index` of `epoch`, None for none.

        `step`: index of the step in the edited run; `length`: steps of the edited epoch. A regular interval in steps of the run
        remains, else the same steps of each epoch, else the same shares of the epochs.
        """
        every = self._interval()
        if every:
            number = (step + 1) // every - 1
            return number % len(self.steps) if (step + 1) % every == 0 else None
        of_epochs = [
            [at for at, own in zip(self.within, self.epochs, strict=True) if own == each] for each in sorted(set(self.epochs))
        ]
        if len(of_epochs) > 1 and all(each == of_epochs[0] for each in of_epochs):
            return of_epochs[0].index(index) if index in of_epochs[0] else None
        own = epoch % len(self.lengths)
        found = [
            number
            for number, (at, each) in enumerate(zip(self.within, self.epochs, strict=True))
            if each == own and at * length // self.lengths[own] == index
        ]
        return found[0] if found else None

    def _interval(self) -> int | None:
        """Return the interval in steps of the run; None if it is irregular."""
        intervals = set(np.diff([-1, *self.steps]).tolist())
        return intervals.pop() if len(intervals) == 1 else None


def find_rare_steps(epochs: list[list[Stretch]]) -> tuple[RareSteps, list[NDArray[np.bool_]]]:
    """Return the rare steps of training, and by epoch which of its steps are rare: those with over twice the usual calls."""
    counts = [np.array([_calls(stretch) for stretch in steps], np.int64) for steps in epochs]
    usual = float(np.median(np.concatenate(counts))) if counts else 0.0
    rare = [count > 2 * usual for count in counts]
    begins = np.append(0, np.cumsum([len(each) for each in rare]))
    found = [
        (int(begins[epoch]) + index, index, epoch) for epoch, each in enumerate(rare) for index in np.flatnonzero(each).tolist()
    ]
    steps, within, numbers = ([each[i] for each in found] for i in range(3))
    return RareSteps(steps, within, numbers, [len(each) for each in rare]), rare


def _calls(stretch: Stretch) -> int:
    return len(stretch.rows) + sum(len(rows) for _, rows, _ in stretch.others)
