"""The passes of a rank over the data set: its epochs and evaluations, with the times of their steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.labels import Labelled
from iotwin.benchmark.fit.recorded.batches import find_batches
from iotwin.benchmark.fit.recorded.calls import find_replayable
from iotwin.benchmark.fit.traced_job import Job
from iotwin.common.errors import IotwinError
from iotwin.workload_yaml.recorded_structure import pass_bounds
from iotwin.workload_yaml.recording import RecordedBatches

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pass:
    """One pass of a rank. Arrays have an element for each batch, in the order of the requests; times are those of the trace."""

    training: bool
    epoch: int  # number of training passes up to this one, included
    rank: int  # pid of the process that takes the batches
    loaders: tuple[int, ...]  # pids of the processes that read the batches; empty if the rank reads them itself
    depth: int  # most batches that were requested and not yet taken; 0: the rank reads its batches itself
    batches: _Ints  # index of each batch in the column `batch` of the labelled calls
    samples: _Ints  # 0: unknown
    requested_ns: _Ints
    received_ns: _Ints
    delivered_ns: _Ints
    taken_ns: _Ints
    computed_ns: _Ints

    @property
    def computation_s(self) -> NDArray[np.float64]:
        """Seconds of each step in which the rank computes or unpacks the next batch, that is, does not wait for data."""
        seconds: NDArray[np.float64] = (self.computed_ns - self.taken_ns) / 1e9
        there = np.maximum(self.computed_ns[:-1], np.maximum.accumulate(self.delivered_ns)[1:])
        seconds[:-1] += np.maximum(self.taken_ns[1:] - there, 0) / 1e9
        return seconds


@dataclass(frozen=True)
class Passes:
    """The passes of the first rank that trains, in order of time, and those of the other ranks."""

    each: list[Pass]
    others: list[Pass]
    ranks: list[int]  # pids of the processes that train

    @property
    def training(self) -> list[Pass]:
        """The epochs."""
        return [part for part in self.each if part.training]

    @property
    def evaluations(self) -> list[Pass]:
        """The evaluations."""
        return [part for part in self.each if not part.training]


def find_passes(job: Job, labelled: Labelled) -> Passes:
    """Return the passes of the job. Raises IotwinError if the trace does not show when the ranks took their batches."""
    calls, _, tree, *_ = find_replayable(job)
    batches, index = find_batches(job, labelled, tree, calls)
    if batches is None:
        raise IotwinError(f"{job.trace.path}: the trace does not show when a rank took which batch, so it shows no epochs")
    of_batch = np.zeros(len(batches.loader), np.int64)
    known = np.flatnonzero(index >= 0)
    of_batch[index[known]] = known
    ranks = list(dict.fromkeys(tree.pids[each.process] for each in batches.passes if each.training))
    bounds, found = pass_bounds(batches), {pid: list[Pass]() for pid in [*ranks, *tree.pids]}
    for number, own in enumerate(batches.passes):
        of_process = found[tree.pids[own.process]]
        epoch = sum(part.training for part in of_process) + own.training
        rows = slice(int(bounds[number]), int(bounds[number + 1]))
        of_process.append(_pass(batches, number, rows, epoch, tree.pids, of_batch[rows], tree.begin_ns[0]))
    first = found.pop(ranks[0])
    return Passes(first, [part for parts in found.values() for part in parts], ranks)


def _pass(
    batches: RecordedBatches, number: int, rows: slice, epoch: int, pids: list[int], of_batch: _Ints, origin_ns: int
) -> Pass:
    own = batches.passes[number]
    loaders = tuple(pids[loader] for loader in dict.fromkeys(batches.loader[rows])) if own.depth else ()
    names = ("requested_ns", "received_ns", "delivered_ns", "taken_ns", "computed_ns")
    times = {name: np.array(getattr(batches, name)[rows], np.int64) + origin_ns for name in names}
    samples = np.array(batches.samples[rows], np.int64)
    return Pass(own.training, epoch, pids[own.process], loaders, own.depth, of_batch, samples, **times)
