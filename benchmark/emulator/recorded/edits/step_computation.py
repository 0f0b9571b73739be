"""How long an edited rank computes on a batch of recorded samples, also on a short last batch."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.rank_pass import RankPass
from iotwin.benchmark.emulator.recorded.edits.streams import DealtSample
from iotwin.benchmark.emulator.recorded.step_points import StepPoint

# The time of a step follows its number of samples if the median of `_share_saved` is above this; otherwise it is constant.
_PROPORTIONAL = 0.5


class StepComputation:
    """The computation times of steps. `training`: the recorded passes that train; `rare`: by pass, the mask of its rare steps.

    `factor`: factor for computation; the unpacking of batches from loaders is not multiplied by it.
    """

    def __init__(self, training: Sequence[RankPass], rare: Sequence[NDArray[np.bool_]], factor: float) -> None:
        self._factor, self._unpacked_ns = factor, 0
        shares = [_share_saved(each, is_rare) for each, is_rare in zip(training, rare, strict=True)]
        known = [share for share in shares if share is not None]
        self._follows_samples = bool(known) and float(np.median(known)) > _PROPORTIONAL

    def time_ns(
        self, each: RankPass, samples: Sequence[DealtSample], parts: Callable[[int], int], whole: int, has_loaders: bool
    ) -> float:
        """Return the time (ns) of a step of the pass on a batch with these samples. If the rank `has_loaders`, this includes
        unpacking.

        `parts`: returns the number of samples of a recorded batch. `whole`: number of samples of the pass's first edited batch. A
        smaller batch takes as long as that one, unless short batches of the recording took less time.
        """
        weights = np.zeros(len(each.batches))
        for sample in samples:
            weights[each.step_of[sample.batch]] += 1 / parts(sample.batch)
        found = float(weights @ each.computation_ns)
        if weights.any() and not self._follows_samples:
            found *= whole / each.size / float(weights.sum())
        recorded = found * each.unpacking_share
        unpacking = recorded * each.unpacking_left * has_loaders
        self._unpacked_ns += int(unpacking)
        return (found - recorded) * self._factor + unpacking

    def offset_at(self, point: StepPoint) -> int:
        """Return the `offset` of a step point of a pass with loaders (see step_points)."""
        if point == StepPoint.STARTED:
            self._unpacked_ns = 0
        return 1 + self._unpacked_ns


def _share_saved(each: RankPass, rare: NDArray[np.bool_]) -> float | None:
    """Return the time that a pass saved by its short last batch. 1 means in proportion to the missing samples, 0 means no saving.

    Returns None if the pass has no short last batch, or if the time is unknown. With loaders, only the sum of the times of the
    last steps is known, whose batches were requested in advance.
    """
    last = max(each.depth, 1)
    missing = 1 - int(each.sizes[-1]) / each.size
    usual = float(np.median(each.computation_ns[:-last])) if len(each.batches) > last else 0.0
    if not each.sizes[-1] or missing <= 0 or not usual or bool(rare[-last:].any()):
        return None
    return float(last * usual - each.computation_ns[-last:].sum()) / (usual * missing)
