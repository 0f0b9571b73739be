"""One pass of a recorded rank over samples: its batches, its loaders, and the rank's calls in each step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.balanced_ranks import waits_for_ranks
from iotwin.benchmark.emulator.recorded.edits.dealing import are_shuffled
from iotwin.benchmark.emulator.recorded.edits.think_clock import Stretch
from iotwin.benchmark.emulator.recorded.step_points import unpacking_ns
from iotwin.workload_yaml.recorded_structure import PARTS, is_requested_at_once
from iotwin.workload_yaml.recording import Op, TwinRecording

_Ints = NDArray[np.int64]


class RankPass:
    """A recorded pass of the rank: its stretches, its batches, and its loaders in the order of their first batch.

    `others`: the passes of other ranks whose samples are dealt together with this pass's. `dealt`: the batches of all these
    passes, step by step. `decode`: factor for the decoding time of loaders.
    """

    def __init__(self, recording: TwinRecording, index: int, bounds: _Ints, others: Sequence[int], decode: float) -> None:
        batches = recording.batches
        own = slice(int(bounds[index]), int(bounds[index + 1]))
        self.training, self.depth = batches.passes[index].training, batches.passes[index].depth
        self.batches = np.arange(own.start, own.stop)
        self.loader_of = np.array(batches.loader, np.int64)[own]
        self.loaders: list[int] = list(dict.fromkeys(self.loader_of.tolist()))
        self.sizes = sizes = np.array(batches.samples, np.int64)[own]
        every = [self.batches, *(np.arange(bounds[other], bounds[other + 1]) for other in others)]
        steps = [(step, rank, batch) for rank, theirs in enumerate(every) for step, batch in enumerate(theirs.tolist())]
        self.step_of = {batch: min(step, len(self.batches) - 1) for step, _, batch in sorted(steps)}
        self.dealt = np.array(list(self.step_of), np.int64)
        self.dealt_loader = np.array(batches.loader, np.int64)[self.dealt]
        self.known = bool((sizes > 0).any())  # True if the samples of batches are known
        self.size = int(np.bincount(sizes[sizes > 0]).argmax()) if self.known else PARTS
        requested, taken, computed = (
            np.array(each, np.int64)[own] for each in (batches.requested_ns, batches.taken_ns, batches.computed_ns)
        )
        self._late_ns = waits_for_ranks(batches, every)
        unpacked = unpacking_ns(recording, own.start, own.stop) if self.depth else np.zeros(0, np.int64)
        self._unpacking_ns, self.unpacking_left = int(unpacked.sum()), unpacking_left(unpacked, decode)
        if self.depth:  # calls of other threads during the rank's wait for its next batch belong to the step
            computed = np.append(taken[1:], computed[-1:])
        self.moments = np.stack([taken if self.depth else np.maximum(taken, requested), computed], axis=1).ravel()
        self.begin_ns = int(requested[0])
        # A rank may end loaders within a step. As an edit may repeat or leave out this step, loaders end after the pass instead.
        op, subject, at_ns = (recording.columns[name] for name in ("op", "subject", "at_ns"))
        within = (op == Op.JOIN) & (at_ns >= self.begin_ns) & (at_ns < self.moments[-1])
        self.ends = [loader for loader in self.loaders if self.depth and loader in subject[within]]
        self.opening: Stretch
        self.steps: list[Stretch] = []
        self.computation_ns = np.zeros(0, np.int64)

    def time_steps(self) -> None:
        """Set how long each step computes and unpacks.

        Its calls, and its wait for ranks that took their batch later, do not count.
        """
        self.computation_ns = np.array([stretch.think_ns for stretch in self.steps], np.int64)
        self.computation_ns -= np.minimum(self._late_ns, self.computation_ns)

    @property
    def unpacking_share(self) -> float:
        """Return the share (0 to 1) of unpacking batches in `computation_ns`."""
        return min(self._unpacking_ns / max(int(self.computation_ns.sum()), 1), 1.0)

    def ahead(self, count: int, batches: int, prefetch: int | None) -> int:
        """Return how many of the `batches` of an edited pass with `count` loaders are requested before the first one is taken.

        `prefetch`: batches in flight over all loaders; None: as many per loader as recorded.
        """
        if prefetch is not None:
            return -(-prefetch // count) * count
        if not self.depth:
            return 2 * count
        if is_requested_at_once(self.depth, len(self.batches), len(self.loaders)):
            return batches
        return max(1, round(self.depth / max(len(self.loaders), 1))) * count

    def leave_out(self, rare: NDArray[np.bool_]) -> None:
        """Replace the steps in the mask `rare` by usual steps: with the typical computation time, and without calls."""
        if rare.any() and not rare.all():
            self.computation_ns[rare] = int(np.median(self.computation_ns[~rare]))
            for index in np.flatnonzero(rare).tolist():
                step = self.steps[index]
                self.steps[index] = replace(step, rows=step.rows[:0], at=step.at[:0], others=[])


def unpacking_left(unpacking_ns: NDArray[np.int64], decode: float) -> float:
    """Return the share (0 to 1) of the unpacking time that remains if loaders need `decode` times their time for decoding.

    A rank unpacks with the help of a thread of the loader, and this thread waits while the loader decodes. So quicker decoding
    shortens each of `unpacking_ns`, the times by batch of a pass, towards the shortest of them (0: no
    unpacking of that batch). Returns 1 if no batch was unpacked.
    """
    unpacked = unpacking_ns[unpacking_ns > 0]
    if not len(unpacked):
        return 1.0
    prompt = float(unpacked.min() / unpacked.mean())
    return prompt + (1 - prompt) * min(decode, 1.0)


def are_dealt_shuffled(recording: TwinRecording, passes: Sequence[RankPass], training: bool) -> bool:
    """Return True if the passes of one kind, training or evaluation, read samples in different orders."""
    columns, orders = recording.columns, []
    for each in passes:
        if each.training == training:
            rows = np.flatnonzero(np.isin(columns["batch"], each.batches) & np.isin(columns["op"], [Op.READ, Op.TOUCH]))
            key = columns["subject"][rows].astype(np.int64) * (1 << 40) + columns["offset"][rows]
            _, first = np.unique(columns["batch"][rows], return_index=True)
            orders.append(key[first])
    return are_shuffled(orders)
