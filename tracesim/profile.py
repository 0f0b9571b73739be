"""Collects from each trace a profile: all values that a comparison needs. It reads the calls once, in bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.progress import Advance
from iotwin.trace_store.columns import integers
from iotwin.trace_store.fold import Combined, EventDecoder, Events, TraceStretch, fold_all
from iotwin.trace_store.parallel_fold import Workers
from iotwin.trace_store.reader import Trace
from iotwin.tracesim.block import BLOCK_OPS, block_bytes
from iotwin.tracesim.busy_time import BUSY_BINS, ROWS, BusyTime
from iotwin.tracesim.call_sums import CallSums
from iotwin.tracesim.calls import COLUMNS, FILE_KINDS, GROUPS, CallSelection, removals
from iotwin.tracesim.checkpoint_writing import CheckpointWriting
from iotwin.tracesim.concurrency import InFlight, Readers
from iotwin.tracesim.logbins import BINS, BINS_PER_OCTAVE, shared_histogram
from iotwin.tracesim.order import PARTS, STEPS, FileParts, OffsetSteps, Order, Visits, order_of
from iotwin.tracesim.phases import PHASES, Occurrences, occurrences, phases_of, whole_run
from iotwin.tracesim.read_pauses import Arrivals, ReadRhythm
from iotwin.tracesim.steps_and_waits import StepTimes

Floats = NDArray[np.float64]
REREAD_ONE = 20 * BINS_PER_OCTAVE  # histogram bin of files whose bytes are read once; bin 0: a millionth of the bytes is read
_NEVER = np.iinfo(np.int64).max
_MOST_DIGITS = 255  # of a number in a path: the longest name that file systems permit


@dataclass(frozen=True)
class PerOccurrence:
    """Sums over the calls of each phase occurrence. The n occurrences are the first axis of every array."""

    duration_ns: Floats  # (n,)
    calls: Floats  # (n, kinds * groups): number of calls by kind of file and operation
    bytes: Floats  # (n, kinds * groups): bytes that these calls read or wrote
    size_calls: Floats  # (n, kinds * 2 * BINS): number of reads and of writes by size
    size_bytes: Floats  # same shape: bytes of the calls in size_calls
    step_calls: Floats  # (n, 2 * STEPS): number of reads and of writes by step (order.py)
    step_bytes: Floats  # same shape: bytes of the calls in step_calls
    activity: Floats  # (n, ACTIVITY_BINS): bytes read or written in each time bin of the occurrence
    busy_ns: Floats  # (n,): time in which a thread reads the data set, summed over threads
    pause_ns: Floats  # (n, BINS): time between two reads of a thread, by length
    burst_bytes: Floats  # (n, BINS): bytes that a thread reads between two pauses, by size
    in_flight_ns: Floats  # (n, LEVEL_BINS): time by number of calls in flight
    readers: Floats  # (n,): threads that read the data set
    windows: Floats  # (n, LEVEL_BINS): time windows by number of threads that read in them
    written_files: Floats  # (n,): number of checkpoint files written
    gap_ns: Floats  # (n, BINS): time between a read and the job's next read, by length
    row_ns: Floats  # (n, rows * BUSY_BINS): busy time of each row of a timeline
    block_bytes: Floats  # (n, 2 * BINS): bytes of block requests by direction and size
    typical_step_ns: Floats  # (n,): median length of the training steps; 0 without steps
    step_ns: Floats  # (n, BINS): time in training steps, by their length
    wait_ns: Floats  # (n,): time that ranks wait for data; 0 if the trace has no waits


@dataclass(frozen=True)
class TraceProfile:
    """All values of one trace that a comparison needs: sums over each phase occurrence, and over the whole run."""

    path: str
    occurrences: Occurrences
    each: PerOccurrence
    order: Order
    file_sizes: Floats  # (kinds, BINS): number of files used, by size in bytes
    rereads: Floats  # (BINS,): number of data-set files, by bytes read over file size; bin REREAD_ONE is a ratio of 1
    # (BINS,): shares of all data-set bytes that are read between two checkpoint files, by size of the share.
    between_saves: Floats
    rate_during_saves: float  # rate of reading the data set while checkpoints are written, over the rate otherwise; 0 to 1
    saves_at_once: float  # mean number of checkpoint files being written, while at least one is
    removed_files: float  # number of checkpoint files removed
    latency: Floats  # (groups, BINS): number of calls, by duration in ns

    @property
    def trainings(self) -> int:
        """The number of occurrences of training."""
        return int((self.occurrences.phase == PHASES.index("training")).sum())


@dataclass(frozen=True)
class Summary:
    """A trace's profile, summed by phase. Axis `phases` has an entry for each of PHASES. PerOccurrence explains most fields."""

    occurrences: Floats  # (phases,)
    duration_ns: Floats  # (phases,)
    calls: Floats  # (phases, kinds, groups)
    bytes: Floats
    size_calls: Floats  # (kinds, 2, BINS)
    size_bytes: Floats
    step_calls: Floats  # (2, STEPS)
    step_bytes: Floats
    activity: Floats  # (phases, ACTIVITY_BINS)
    busy_ns: Floats  # (phases,)
    pause_ns: Floats  # (phases, BINS)
    burst_bytes: Floats  # (phases, BINS)
    in_flight_ns: Floats  # (phases, LEVEL_BINS)
    readers: Floats  # (phases,): mean over the occurrences
    windows: Floats  # (phases, LEVEL_BINS)
    written_files: float
    gap_ns: Floats  # (phases, BINS)
    row_shares: Floats  # (phases, rows, BUSY_BINS): share of the time in which the row is busy
    block_bytes: Floats  # (phases, 2, BINS)
    quickest_ns: Floats  # (phases,): duration of the shortest occurrence
    quickest_step_ns: Floats  # (phases,): least typical_step_ns among the occurrences
    least_without_waits_ns: Floats  # (phases,): least duration without waits for data; 0 if the trace has no waits
    step_ns: Floats  # (phases, BINS)
    wait_ns: Floats  # (phases,)
    scatter: Floats  # (phases,): mean over the occurrences; NaN if the order is unknown
    scatter_variance: Floats  # (phases,): variance of this mean under a random order
    drift: Floats
    drift_variance: Floats
    jumps: Floats
    jumps_variance: Floats
    file_sizes: Floats
    rereads: Floats
    between_saves: Floats
    rate_during_saves: float
    saves_at_once: float
    removed_files: float


def has_phases(trace: Trace) -> bool:
    """Return True if the trace has training phases."""
    return not phases_of(trace.phases()).empty


class _Collectors(Combined):
    """All collectors, for the calls of one stretch of a trace or of consecutive stretches."""

    columns = COLUMNS

    def __init__(self, when: Occurrences, selection: CallSelection, data_bytes: NDArray[np.int64], stretch: TraceStretch) -> None:
        n, files, before = when.number, stretch.decoder.files, selection.of(stretch.in_flight(COLUMNS))
        self._when, self._selection = when, selection
        self.tallies, self.steps, self.visits = CallSums(when, files), OffsetSteps(n, files), Visits(files)
        self.rhythm, self.arrivals, self.readers = ReadRhythm(when.phase), Arrivals(n), Readers(when)
        self.saving, self.parts = CheckpointWriting(when), FileParts(data_bytes)
        self.in_flight, self.busy = InFlight(when, stretch.begin_ns, before.start_ns + before.duration_ns), BusyTime(when)
        self.busy.begin_with(before)

    def add(self, events: Events) -> None:
        """Add a batch of events in order of start."""
        calls = self._selection.of(events)
        self.saving.removed_files += removals(events)
        if not len(calls.start_ns):
            return
        occurrence = self._when.at(calls.start_ns)
        each = (self.tallies, self.steps, self.visits, self.rhythm, self.arrivals, self.readers, self.saving, self.parts)
        for collector in each:
            collector.add(calls, occurrence)
        self.in_flight.add(calls)
        self.busy.add(calls)


class _Extent:
    """The thread ids of a trace. If the trace has no phases, also the time from its first call to the end of its last call."""

    def __init__(self, phases: bool, stretch: TraceStretch) -> None:
        self.columns = ("tid",) if phases else COLUMNS
        self.threads = np.empty(0, np.int64)
        self.begin_ns, self.end_ns = _NEVER, 0

    def add(self, events: Events) -> None:
        """Add a batch of events."""
        self.threads = np.union1d(self.threads, integers(events.batch.column("tid").unique()))
        if len(self.columns) > 1:
            calls = CallSelection(self.threads).of(events)
            self.begin_ns = min(self.begin_ns, int(calls.start_ns.min(initial=_NEVER)))
            self.end_ns = max(self.end_ns, int((calls.start_ns + calls.duration_ns).max(initial=0)))

    def later(self, other: "_Extent") -> None:
        """Add the figures of `other`."""
        self.threads = np.union1d(self.threads, other.threads)
        self.begin_ns, self.end_ns = min(self.begin_ns, other.begin_ns), max(self.end_ns, other.end_ns)


def profiles_of(
    traces: Sequence[Trace], by_phase: bool, groups: frozenset[str], each: Workers, advance: Advance
) -> list[TraceProfile]:
    """Return the profile of each trace, from its calls of the operations `groups`, a subset of GROUPS.

    If `by_phase` is False, each run is profiled as a single phase. `each` maps a function over stretches, possibly in processes.
    Raises IotwinError if a trace has no call on a data-set or checkpoint file.
    """
    extents = list(fold_all(traces, [partial(_Extent, by_phase)] * len(traces), each))
    whens = [
        occurrences(phases_of(trace.phases())) if by_phase else whole_run(extent.begin_ns % _NEVER, extent.end_ns)
        for trace, extent in zip(traces, extents, strict=True)
    ]
    makes = [
        partial(_Collectors, when, CallSelection(extent.threads, groups), np.where(_is_data(trace), _size_bytes(trace), 0))
        for trace, extent, when in zip(traces, extents, whens, strict=True)
    ]
    return list(map(_profile, traces, whens, fold_all(traces, makes, each, advance=advance)))  # one collector at a time


def _profile(trace: Trace, when: Occurrences, found: _Collectors) -> TraceProfile:
    n, tallies = when.number, found.tallies
    found.in_flight.finish()
    if not tallies.calls.any():
        kinds = " or ".join(FILE_KINDS)
        raise IotwinError(f"{trace.path} has no call on a {kinds} file: nothing to compare; see: iotwin info {trace.path}")
    pauses, bursts = found.rhythm.pauses_and_bursts()
    readers_each, windows = found.readers.counts()
    block, step_times = trace.block(), StepTimes(trace, when)
    if block is not None:
        found.busy.add_block(block)
    each = PerOccurrence(
        duration_ns=when.duration_ns.astype(float), calls=tallies.calls, bytes=tallies.bytes, size_calls=tallies.size_calls,
        size_bytes=tallies.size_bytes, step_calls=found.steps.calls, step_bytes=found.steps.bytes, activity=tallies.activity,
        busy_ns=found.rhythm.busy_ns, pause_ns=pauses, burst_bytes=bursts, in_flight_ns=found.in_flight.time_ns,
        readers=readers_each, windows=windows, written_files=found.visits.written_files(n), gap_ns=found.arrivals.gap_ns,
        row_ns=found.busy.time_ns().reshape(n, -1), block_bytes=block_bytes(block, when),
        typical_step_ns=step_times.typical_step_ns,
        step_ns=step_times.step_ns, wait_ns=step_times.wait_ns,
    )  # fmt: skip
    ranks = _name_ranks(trace.table("files", ["path"])["path"], np.flatnonzero(_is_data(trace)))
    order = order_of(found.visits.of_each(n), when.phase, ranks, found.parts.of_each(n), PARTS)
    sizes, rereads = _file_figures(trace, tallies)
    saving = found.saving
    saves = (saving.between_reads(), saving.rate_during(), saving.at_once(), float(saving.removed_files))
    return TraceProfile(str(trace.path), when, each, order, sizes, rereads, *saves, tallies.latency)


def _is_data(trace: Trace) -> NDArray[np.bool_]:
    """Return a mask by file_id that is True for each data-set file."""
    is_data: NDArray[np.bool_] = EventDecoder.of(trace).kind_of_file[:-1] == 0
    return is_data


def _size_bytes(trace: Trace) -> NDArray[np.int64]:
    """Return the size in bytes of each file, by file_id; 0 if it is unknown."""
    return integers(trace.table("files", ["size_bytes"])["size_bytes"])


def _name_ranks(paths: pa.ChunkedArray, data: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the rank of each of the files `data` in order of path, by file_id. Digits compare as numbers: 9 precedes 10."""
    # Each number gets its length in front, which sorts as numbers do. Python's strings would take several times the memory.
    keys = pc.replace_substring_regex(paths.take(pa.array(data)), "0*([0-9]+)", "\0\\1\0")  # no path has a zero byte
    for length in range(1, _MOST_DIGITS + 1):
        if not pc.any(pc.match_substring_regex(keys, "\\x00[0-9]+\\x00")).as_py():
            break
        keys = pc.replace_substring_regex(keys, f"\\x00([0-9]{{{length}}})\\x00", f"\0{length:03}\\1")
    ranks = np.zeros(len(paths), np.int32)
    ranks[data[np.asarray(pc.sort_indices(keys))]] = np.arange(len(data))
    return ranks


def _file_figures(trace: Trace, tallies: CallSums) -> tuple[Floats, Floats]:
    """Return TraceProfile's `file_sizes` and `rereads`."""
    read, written = tallies.file_read_bytes, tallies.file_written_bytes
    size, kinds = np.maximum(_size_bytes(trace), tallies.file_extent_bytes), EventDecoder.of(trace).kind_of_file[:-1]
    used = (read + written) > 0
    sizes = [shared_histogram(size[used & (kinds == kind)]) for kind in range(len(FILE_KINDS))]
    reading = (read > 0) & (kinds == 0)
    times = read[reading] / np.maximum(size[reading], 1) * 2.0 ** (REREAD_ONE / BINS_PER_OCTAVE)
    return np.stack(sizes), shared_histogram(times)


def summarise(profile: TraceProfile, weight: Floats | None = None) -> Summary:
    """Return the sums of `profile` by phase. Phase occurrence i counts `weight[i]` times; by default, each counts once."""
    each, when = profile.each, profile.occurrences
    weight = np.ones(when.number) if weight is None else weight
    by_phase = (when.phase == np.arange(len(PHASES))[:, None]) * weight
    counts = by_phase.sum(axis=1)
    kinds, groups, steps = len(FILE_KINDS), len(GROUPS), len(STEPS)
    sizes, jumps = (kinds, 2, BINS), (2, steps)
    part_ns = np.maximum(by_phase @ when.span_ns / BUSY_BINS, 1)
    return Summary(
        occurrences=counts, duration_ns=by_phase @ each.duration_ns,
        calls=(by_phase @ each.calls).reshape(-1, kinds, groups), bytes=(by_phase @ each.bytes).reshape(-1, kinds, groups),
        size_calls=(weight @ each.size_calls).reshape(sizes), size_bytes=(weight @ each.size_bytes).reshape(sizes),
        step_calls=(weight @ each.step_calls).reshape(jumps), step_bytes=(weight @ each.step_bytes).reshape(jumps),
        activity=by_phase @ each.activity, busy_ns=by_phase @ each.busy_ns, pause_ns=by_phase @ each.pause_ns,
        burst_bytes=by_phase @ each.burst_bytes, in_flight_ns=by_phase @ each.in_flight_ns,
        readers=by_phase @ each.readers / np.maximum(counts, 1), windows=by_phase @ each.windows,
        gap_ns=by_phase @ each.gap_ns, row_shares=(by_phase @ each.row_ns / part_ns[:, None]).reshape(-1, len(ROWS), BUSY_BINS),
        block_bytes=(by_phase @ each.block_bytes).reshape(-1, len(BLOCK_OPS), BINS),
        quickest_ns=_least(by_phase, each.duration_ns), quickest_step_ns=_least(by_phase, each.typical_step_ns),
        least_without_waits_ns=_least(by_phase, np.where(each.wait_ns > 0, each.duration_ns - each.wait_ns, 0)),
        step_ns=by_phase @ each.step_ns, wait_ns=by_phase @ each.wait_ns,
        written_files=float(weight @ each.written_files), file_sizes=profile.file_sizes, rereads=profile.rereads,
        between_saves=profile.between_saves, rate_during_saves=profile.rate_during_saves, saves_at_once=profile.saves_at_once,
        removed_files=profile.removed_files,
        **_order_by_phase(profile.order, by_phase),
    )  # fmt: skip


def _least(by_phase: Floats, values: Floats) -> Floats:
    """Return, per phase, the smallest positive value among its occurrences of positive weight; 0 if there is none."""
    least = np.where((by_phase > 0) & (values > 0), values, np.inf).min(axis=1)
    return np.where(np.isinf(least), 0.0, least)


def _order_by_phase(order: Order, by_phase: Floats) -> dict[str, Floats]:
    result = {}
    for name, values, variances in (
        ("scatter", order.scatter, order.scatter_variance),
        ("drift", order.drift, order.drift_variance),
        ("jumps", order.jumps, order.jumps_variance),
    ):
        weights = by_phase * ~np.isnan(values)
        total = weights.sum(axis=1)
        known = np.where(total > 0, total, np.nan)
        result[name] = weights @ np.nan_to_num(values) / known
        result[f"{name}_variance"] = weights**2 @ np.nan_to_num(variances) / known**2
    return result
