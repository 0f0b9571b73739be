"""Divide a trace into chunks of time for parallel work. A chunk also holds the earlier calls in flight when it begins.

The division depends on the trace alone, so results are equal to the last bit for any number of workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.progress import Advance
from iotwin.trace_store import schema
from iotwin.trace_store.fold import stretches
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.workers import Workers


class ChunkSummary(Protocol):
    """Figures about one or more consecutive chunks of a trace."""

    def later(self, other: Self, /) -> None:
        """Add the figures of `other`, which covers the following chunks."""


Found = TypeVar("Found", bound=ChunkSummary)


@dataclass(frozen=True)
class Chunk:
    """A span of a trace: consecutive Parquet files of its events."""

    path: Path
    parts: tuple[int, ...]  # indices of the Parquet files
    rows: int
    begin_ns: int  # start of the first event
    end_ns: int  # begin of the next chunk; the largest int64 for the last one
    threads: NDArray[np.int64]  # thread ids of the whole trace, sorted
    in_flight: pa.Table  # schema.EVENTS: calls of earlier chunks that end after this chunk begins


def chunks_of(trace: Trace, each: Workers) -> list[Chunk]:
    """Return the chunks of a trace, in order of time. `each` scans them, concurrently if it has several workers."""
    rows = trace.part_rows
    groups = stretches(rows)
    begins = [trace.part_begin_ns(group[0]) if group else 0 for group in groups]
    ends = [*begins[1:], np.iinfo(np.int64).max]
    if len(groups) == 1:
        scans = [_scan((trace.path, groups[0], ends[0]))]
    else:
        scans = list(each(_scan, [(trace.path, group, end) for group, end in zip(groups, ends, strict=True)]))
    threads = np.unique(np.concatenate([tids for tids, _ in scans]))
    late = pa.concat_tables([table for _, table in scans]).unify_dictionaries()
    late_end = pc.add(late["start_ns"], late["duration_ns"])
    chunks = []
    for group, begin, end in zip(groups, begins, ends, strict=True):
        in_flight = late.filter(pc.and_(pc.less(late["start_ns"], begin), pc.greater(late_end, begin)))
        chunks.append(Chunk(trace.path, tuple(group), sum(rows[part] for part in group), begin, end, threads, in_flight))
    return chunks


def _scan(task: tuple[Path, Sequence[int], int]) -> tuple[NDArray[np.int64], pa.Table]:
    """Return (thread ids of a chunk, the chunk's events that end after the chunk's end).

    `task`: path of the trace, indices of the chunk's parts, end of the chunk in ns.
    """
    path, parts, end_ns = task
    trace = Trace(path)
    threads, earliest = [np.empty(0, np.int64)], None
    for batch in trace.events(["start_ns", "duration_ns", "tid"], parts=parts):
        threads.append(batch["tid"].unique().to_numpy().astype(np.int64))
        start = batch["start_ns"].to_numpy()
        late = start[start + batch["duration_ns"].to_numpy() > end_ns] if end_ns < np.iinfo(np.int64).max else start[:0]
        if len(late) and earliest is None:
            earliest = int(late[0])
    found = []
    if earliest is not None:
        ends = pc.field("start_ns") + pc.field("duration_ns")
        found = list(trace.events(where=(pc.field("start_ns") >= earliest) & (ends > end_ns), parts=parts))
    return np.unique(np.concatenate(threads)), pa.Table.from_batches(found, schema.EVENTS)


def folded(found: Iterator[Found], chunks: Sequence[Chunk], advance: Advance) -> Found:
    """Merge the results `found`, one per chunk and in the chunks' order. Pass each chunk's number of events to `advance`."""
    whole = next(found)
    advance(chunks[0].rows)
    for chunk in chunks[1:]:
        whole.later(next(found))
        advance(chunk.rows)
    return whole
