"""Compares the ranks of a recording: how long steps wait for the slowest one, and whose loaders are few or slow."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.emulator.recorded.edits.think_clock import ProcessRows
from iotwin.workload_yaml.recorded_structure import pass_bounds
from iotwin.workload_yaml.recording import Op, RecordedBatches, TwinRecording

_Ints = NDArray[np.int64]
_NEARLY_ALL = 0.95  # share of the steps; below 1, since the time at which a rank takes a batch is not known exactly


def waits_for_ranks(batches: RecordedBatches, ranks: Sequence[_Ints]) -> _Ints:
    """Return, for each step of a pass, the time (ns) between the first and the last rank's taking of their batches.

    `ranks`: the batches of each rank in that pass. Returns zeros if ranks do not wait for one another. If they do, no step ends
    before all ranks have taken their batches.
    """
    steps = min(map(len, ranks))
    taken, computed = (
        np.stack([np.array(column, np.int64)[own[:steps]] for own in ranks]) for column in (batches.taken_ns, batches.computed_ns)
    )
    last, found = taken.max(axis=0), np.zeros(len(ranks[0]), np.int64)
    if (computed.min(axis=0) >= last).mean() >= _NEARLY_ALL:
        found[:steps] = last - taken[0]
    return found


def usual_loaders(batches: RecordedBatches) -> int:
    """Return the number of loaders that most ranks have in training; with two ranks, the larger number."""
    counts = sorted(len(set(own)) * bool(depth) for own, depth in _training(batches).values())
    return counts[len(counts) // 2]


def decode_factors(recording: TwinRecording, edits: Edits) -> dict[int, float]:
    """Return, by loader, the factor for its time between calls.

    If ranks are balanced, loaders that need more time per byte than the median rank's loaders are made as quick as these. Of two
    ranks, the quicker one counts as the median.
    """
    batches = recording.batches
    found = dict.fromkeys(batches.loader, edits.decode)
    if not edits.balanced:
        return found
    times = {rank: _ns_per_byte(recording, set(own)) for rank, (own, _) in _training(batches).items()}
    known = sorted(time for time in times.values() if time)
    usual = known[(len(known) - 1) // 2] if known else 0.0
    for each, first, end in zip(batches.passes, *_bounds(batches), strict=True):
        factor = min(usual / times[each.process], 1.0) if times.get(each.process) else 1.0
        found |= dict.fromkeys(batches.loader[first:end], edits.decode * factor)
    return found


def _training(batches: RecordedBatches) -> dict[int, tuple[list[int], int]]:
    """Return, by rank, the loaders and the `depth` (see RecordedPass) of the rank's training pass with the most batches.

    The loaders are a list with one process for each batch.
    """
    found: dict[int, tuple[list[int], int]] = {}
    for each, first, end in zip(batches.passes, *_bounds(batches), strict=True):
        if each.training and each.batches > len(found.get(each.process, ([], 0))[0]):
            found[each.process] = batches.loader[first:end], each.depth
    return found


def _bounds(batches: RecordedBatches) -> tuple[list[int], list[int]]:
    bounds = pass_bounds(batches).tolist()
    return bounds[:-1], bounds[1:]


def _ns_per_byte(recording: TwinRecording, loaders: set[int]) -> float:
    """Return the time (ns) outside of calls that the loaders take for a byte that they read; 0 if they read none."""
    batches, columns = recording.batches, recording.columns
    served, spent = np.isin(batches.loader, list(loaders)), 0
    received, delivered, own = (np.array(each, np.int64) for each in (batches.received_ns, batches.delivered_ns, batches.loader))
    for loader in loaders:
        rows = ProcessRows(recording, loader, np.ones(recording.rows, np.bool_))
        spent += int((rows.readings(delivered[own == loader]) - rows.readings(received[own == loader])).sum())
    reads = np.isin(columns["op"], [Op.READ, Op.TOUCH]) & np.append(served, False)[columns["batch"]]
    size = int(columns["size"][reads].sum())
    return spent / size if size else 0.0
