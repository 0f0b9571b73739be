"""One pass over the events of traces. Collectors add the batches of a stretch of a trace, and their summaries combine.

A pass decodes the union of the columns that its collectors need. The division of a trace into stretches depends on the trace
alone, so results are equal for any number of workers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.compute import Expression

from iotwin.common.progress import Advance
from iotwin.trace_store.columns import integers
from iotwin.trace_store.figures.log_buckets import BUCKETS_PER_OCTAVE, bucket_from_zero
from iotwin.trace_store.parallel_fold import Workers, in_this_process
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import FILE_KINDS, GROUP_OF_OP, OP_GROUPS

Ints = NDArray[np.int64]

GROUPS = (*OP_GROUPS, "other")
READ, WRITE, OPEN, CLOSE, SYNC, MAP, NAME, WAIT = range(8)
_LEAST_EVENTS = 4_000_000  # least events per stretch; with fewer, combining summaries takes longer than parallel work saves
_FEW_ROWS = 1 << 14  # a batch with fewer rows is joined with the next one
_MOST_STRETCHES = 16  # most stretches of a trace, so that all summaries of a large trace fit in memory


class EventDecoder:
    """The data that all batches of a trace share: the kind of each file, and the names of the operations seen so far."""

    def __init__(self, kinds: pa.DictionaryArray, ops: list[str] | None = None) -> None:
        """`kinds`: the kind of each file, by file id. `ops`: names of operations; those of further operations are appended."""
        code = np.array([FILE_KINDS.index(kind) for kind in kinds.dictionary.to_pylist()], np.int8)
        # The last entry is for calls without a file, whose id is -1.
        self.kind_of_file = np.append(code[integers(kinds.indices)], np.int8(-1))
        self.files = len(self.kind_of_file) - 1
        self.ops: list[str] = [] if ops is None else ops

    @classmethod
    def of(cls, trace: Trace, ops: list[str] | None = None) -> Self:
        """Return a decoder of the events of `trace`."""
        return cls(trace.table("files", ["kind"])["kind"].combine_chunks(), ops)

    def op_codes(self, labels: pa.DictionaryArray | pa.ChunkedArray) -> Ints:
        """Return the index in `ops` of each of `labels`, shape (n,)."""
        labels = labels.combine_chunks() if isinstance(labels, pa.ChunkedArray) else labels
        names = labels.dictionary.to_pylist()
        self.ops.extend(name for name in names if name not in self.ops)
        codes: Ints = np.array([self.ops.index(name) for name in names], np.int64)[integers(labels.indices)]
        return codes


class Events:
    """A batch of events in order of start. Columns have shape (n,), and are decoded when they are first used."""

    def __init__(self, batch: pa.RecordBatch | pa.Table, decoder: EventDecoder) -> None:
        self.batch, self.decoder = batch, decoder

    def __len__(self) -> int:
        """Return the number of events."""
        return int(self.batch.num_rows)

    def column(self, name: str, missing: int = -1) -> Ints:
        """Return the numbers of the column `name`, with `missing` in place of null."""
        return integers(self.batch.column(name), missing)

    @cached_property
    def duration_ns(self) -> Ints:
        """The durations in ns; negative durations, as of a damaged trace, become 0."""
        return np.maximum(self.column("duration_ns", 0), 0)

    @cached_property
    def op(self) -> Ints:
        """The index of each operation in the decoder's `ops`."""
        return self.decoder.op_codes(self.batch.column("op"))

    @cached_property
    def group(self) -> Ints:
        """The index of each operation's group in GROUPS."""
        op = self.op
        groups = np.array([GROUPS.index(GROUP_OF_OP.get(name, "other")) for name in self.decoder.ops], np.int64)
        return groups[op]

    @cached_property
    def file_id(self) -> Ints:
        """The file of each event; -1 if it has none."""
        return self.column("file_id")

    @cached_property
    def result(self) -> Ints:
        """The result of each call."""
        return self.column("result", 0)

    @cached_property
    def kind(self) -> Ints:
        """The index in FILE_KINDS of the kind of each event's file; -1 if it has none."""
        return self.decoder.kind_of_file[self.file_id].astype(np.int64)

    @cached_property
    def failed(self) -> Ints:
        """The indices of the calls that failed."""
        return np.flatnonzero(self.result < 0)

    @cached_property
    def duration_bucket(self) -> Ints:
        """The bucket of each duration, with BUCKETS_PER_OCTAVE buckets per doubling; see `bucket_from_zero`."""
        return bucket_from_zero(self.duration_ns, BUCKETS_PER_OCTAVE)

    @cached_property
    def writes(self) -> Ints:
        """The indices of the writes."""
        return np.flatnonzero(self.group == WRITE)

    @cached_property
    def moved_bytes(self) -> Ints:
        """The bytes that each read or write transferred; 0 for other calls and for failures."""
        return np.where(self.group <= WRITE, np.maximum(self.result, 0), 0)


@dataclass(frozen=True)
class TraceStretch:
    """Consecutive Parquet files of the events of a trace, which one collector adds."""

    trace: Trace
    parts: Sequence[int]  # indices of the files

    @cached_property
    def decoder(self) -> EventDecoder:
        """The decoder of all batches of the stretch."""
        return EventDecoder.of(self.trace)

    @cached_property
    def begin_ns(self) -> int:
        """The start of the first event; 0 if there is none."""
        return self.trace.part_begin_ns(self.parts[0]) if self.parts else 0

    def in_flight(self, columns: Sequence[str]) -> Events:
        """Return the events of earlier stretches that end after this one begins."""
        earlier = self.parts[0] if self.parts else 0
        return Events(self.trace.in_flight(self.begin_ns, earlier, columns), self.decoder)


class Collector(Protocol):
    """Collects figures about the events of one stretch of a trace, or of several stretches that follow one another."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of events that `add` reads."""

    def add(self, events: Events) -> None:
        """Add a batch. Batches come in order of start."""

    def later(self, other: Self) -> None:
        """Add the figures of `other`, which collected the events that follow in the trace."""


class Combined:
    """Base class of summaries whose public attributes are summaries of the same stretch of a trace."""

    def later(self, other: Self) -> None:
        """Add to each attribute the figures of the same attribute of `other`, which summarises the stretch that follows."""
        for name, each in vars(self).items():
            if not name.startswith("_"):
                each.later(getattr(other, name))


class CollectorSet(Combined):
    """Base class of collectors whose attributes are collectors."""

    @property
    def columns(self) -> Sequence[str]:
        """The union of the collectors' columns."""
        return tuple(dict.fromkeys(name for each in vars(self).values() for name in each.columns))

    def add(self, events: Events) -> None:
        """Add a batch to each collector."""
        for each in vars(self).values():
            each.add(events)


Found = TypeVar("Found", bound=Collector)


def fold(
    trace: Trace, make: Callable[[TraceStretch], Found], each: Workers = in_this_process, where: Expression | None = None
) -> Found:
    """Return the collector that `make` creates, with the figures of all events of `trace` for which `where` is true.

    `each` folds the stretches of the trace, concurrently if it has several workers; then `make` must be picklable.
    """
    return next(fold_all([trace], [make], each, where))


def fold_all(
    traces: Sequence[Trace],
    makes: Sequence[Callable[[TraceStretch], Found]],
    each: Workers = in_this_process,
    where: Expression | None = None,
    advance: Advance | None = None,
) -> Iterator[Found]:
    """Yield the result of `fold` for each of `traces`, whose stretches `each` folds concurrently.

    `makes` has the `make` for each of `traces`. `advance` receives the number of events of each folded stretch.
    """
    rows = [trace.part_rows for trace in traces]
    cut = [stretches(own) for own in rows]
    tasks = [(trace, parts, make, where) for trace, own, make in zip(traces, cut, makes, strict=True) for parts in own]
    found = iter(each(_folded, tasks))
    for own, counts in zip(cut, rows, strict=True):
        yield _combined(found, [sum(counts[part] for part in parts) for parts in own], advance)


def _combined(found: Iterator[Found], events: Sequence[int], advance: Advance | None) -> Found:
    """Return the next summaries of `found` as one. `events` has the number of events of each."""
    whole = next(found)
    for index, count in enumerate(events):
        if index:
            whole.later(next(found))  # without a name, so that it is freed before the next is made
        if advance is not None:
            advance(count)
    return whole


def stretches(rows: Sequence[int]) -> list[list[int]]:
    """Return the indices of the Parquet files of each stretch. `rows`: number of events in each file."""
    least = max(_LEAST_EVENTS, -(-sum(rows) // _MOST_STRETCHES))
    stretches: list[list[int]] = [[]]
    held = 0
    for part, count in enumerate(rows):
        if held >= least:
            stretches.append([])
            held = 0
        stretches[-1].append(part)
        held += count
    return stretches


def _folded(task: tuple[Trace, Sequence[int], Callable[[TraceStretch], Found], Expression | None]) -> Found:
    trace, parts, make, where = task
    stretch = TraceStretch(trace, parts)
    found = make(stretch)
    for batch in _large_batches(trace.events(found.columns, where, parts=parts)):
        found.add(Events(batch, stretch.decoder))
    return found


def _large_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches that have few rows after a filter, since a collector spends about a millisecond on any batch."""
    few: list[pa.RecordBatch] = []
    for batch in batches:
        few.append(batch)
        if sum(each.num_rows for each in few) >= _FEW_ROWS:
            yield _joined(few)
            few = []
    if any(batch.num_rows for batch in few):
        yield _joined(few)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    return whole
