"""Export as Perfetto's protobuf (https://ui.perfetto.dev): calls become slices on one track per thread, samples become counters.

Field numbers, which never change: protos/perfetto/trace/ of https://github.com/google/perfetto.
"""

import itertools
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.manifest import ClockPair
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.syscalls import NUMBER_OF_OP
from iotwin.tracing_tools.exports import protobuf as pb
from iotwin.tracing_tools.exports.tracks import Counter, Slices, counters, pieces, process_names, slices

_PACKET = 1  # field of the message Trace
_CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _SEQUENCE_FLAGS = 6, 8, 10, 11, 12, 13
_CLOCK_ID, _DEFAULTS, _TRACK_DESCRIPTOR = 58, 59, 60
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_TYPE, _NAME_ID, _TRACK, _ANNOTATION, _CATEGORY_ID, _DOUBLE_COUNTER = 9, 10, 11, 4, 3, 44  # fields of TrackEvent
_BEGIN, _END, _COUNTER = 1, 2, 4
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER_TRACK = 1, 2, 3, 4, 5, 8  # fields of TrackDescriptor
_CATEGORIES, _EVENT_NAMES, _ANNOTATION_NAMES, _ANNOTATION_STRINGS = 1, 2, 3, 29  # fields of InternedData
_ANNOTATION_NAME_ID, _ANNOTATION_INTEGER, _ANNOTATION_STRING_ID = 1, 4, 17
_REALTIME, _MONOTONIC, _BOOTTIME = 1, 3, 6

_ANNOTATIONS = ("file", "fd", "offset", "requested", "result")
_COLUMNS = ["start_ns", "duration_ns", "op", "pid", "tid", "file_id", "fd", "offset", "requested", "result"]
_BATCH_ROWS = 1 << 14  # the matrices of a batch take about 500 bytes per row
_OPS = list(NUMBER_OF_OP)
_GROUPS = [*schema.OP_GROUPS, "other"]
_GROUP_IDS = np.array([_GROUPS.index(schema.GROUP_OF_OP.get(op, "other")) + 1 for op in _OPS])
_SEQUENCE_ID = pb.integer(_SEQUENCE, 1)

# The upper half of a track's id identifies its kind.
_PROCESS_TRACK, _THREAD_TRACK, _SIDE_TRACK = 1 << 32, 2 << 32, 3 << 32


def write_perfetto(trace: Trace, out: BinaryIO) -> int:
    """Write `trace` to `out` and return the number of events written."""
    names = _Names()
    out.write(_packet(pb.integer(_SEQUENCE_FLAGS, _STATE_CLEARED) + pb.text(_DEFAULTS, pb.integer(_CLOCK_ID, _MONOTONIC))))
    for pair in trace.manifest.clock or [ClockPair(trace.manifest.start_ns, 0, 0)]:
        out.write(_packet(_clocks(pair)))
    out.write(_interned(_CATEGORIES, enumerate(_GROUPS, 1)))
    out.write(_interned(_ANNOTATION_NAMES, enumerate(_ANNOTATIONS, 1)))
    out.write(names.intern(_OPS))
    paths = trace.files()["path"].tolist()
    for rows in pieces(len(paths), _BATCH_ROWS):
        out.write(_interned(_ANNOTATION_STRINGS, enumerate(paths[rows], rows.start + 1)))
    written = _write_events(trace, out)
    numbers = itertools.count(1)
    for track in slices(trace):
        side = next(numbers)
        out.write(_side_track(side, track.track, track.pid) + names.intern(pd.unique(track.names)))
        for rows in pieces(len(track.names), _BATCH_ROWS):
            out.write(_slice_packets(side, track, rows, names))
    for counter in counters(trace):
        side = next(numbers)
        out.write(_side_track(side, counter.track, None, is_counter=True))
        for rows in pieces(len(counter.values), _BATCH_ROWS):
            out.write(_counter_packets(side, counter, rows))
    return written


class _Names:
    """Ids of the event names that were written already. Later events refer to a name by its id."""

    def __init__(self) -> None:
        self.id_of: dict[str, int] = {}

    def intern(self, names: Iterable[str]) -> bytes:
        """Return the packet that defines the new names among `names`; empty bytes if none is new."""
        new = [name for name in dict.fromkeys(names) if name not in self.id_of]
        first = len(self.id_of) + 1
        self.id_of |= {name: number for number, name in enumerate(new, first)}
        return _interned(_EVENT_NAMES, enumerate(new, first)) if new else b""


def _packet(content: bytes) -> bytes:
    return pb.text(_PACKET, content + _SEQUENCE_ID)


def _interned(field: int, entries: Iterable[tuple[int, str]]) -> bytes:
    strings = b"".join(pb.text(field, pb.integer(1, number) + pb.text(2, name)) for number, name in entries)
    return _packet(pb.integer(_SEQUENCE_FLAGS, _NEEDS_STATE) + pb.text(_INTERNED, strings))


def _clocks(pair: ClockPair) -> bytes:
    # Viewers show BOOTTIME. Declare it equal to MONOTONIC, so that viewers show the times of the trace.
    readings = [(_MONOTONIC, pair.monotonic_ns), (_BOOTTIME, pair.monotonic_ns)]
    readings += [(_REALTIME, pair.realtime_ns)] if pair.realtime_ns else []
    clocks = b"".join(pb.text(1, pb.integer(1, clock) + pb.integer(2, time_ns)) for clock, time_ns in readings)
    return pb.text(_CLOCK_SNAPSHOT, clocks) + pb.integer(_TIMESTAMP, pair.monotonic_ns)


def _write_events(trace: Trace, out: BinaryIO) -> int:
    processes = process_names(trace)
    known_processes: set[int] = set()
    known_threads: set[int] = set()
    written = 0
    for batch in trace.events(columns=_COLUMNS, batch_rows=_BATCH_ROWS):
        threads = pd.DataFrame({name: batch[name].to_numpy() for name in ("pid", "tid")}).drop_duplicates()
        for pid, tid in threads.to_numpy(np.int64).tolist():
            if pid not in known_processes:
                known_processes.add(pid)
                out.write(_process_track(pid, processes.get(pid, f"process {pid}")))
            if tid not in known_threads:
                known_threads.add(tid)
                out.write(_thread_track(pid, tid))
        out.write(_event_packets(batch))
        written += batch.num_rows
    return written


def _process_track(pid: int, name: str) -> bytes:
    described = pb.integer(1, pid) + pb.text(6, name)
    return _packet(pb.text(_TRACK_DESCRIPTOR, pb.integer(_UUID, _PROCESS_TRACK | pid) + pb.text(_PROCESS, described)))


def _thread_track(pid: int, tid: int) -> bytes:
    track = pb.integer(_UUID, _THREAD_TRACK | tid) + pb.integer(_PARENT, _PROCESS_TRACK | pid)
    return _packet(pb.text(_TRACK_DESCRIPTOR, track + pb.text(_THREAD, pb.integer(1, pid) + pb.integer(2, tid))))


def _side_track(side: int, name: str, pid: int | None, is_counter: bool = False) -> bytes:
    track = pb.integer(_UUID, _SIDE_TRACK | side) + pb.text(_NAME, name)
    track += pb.integer(_PARENT, _PROCESS_TRACK | pid) if pid is not None else b""
    return _packet(pb.text(_TRACK_DESCRIPTOR, track + (pb.text(_COUNTER_TRACK, b"") if is_counter else b"")))


def _packets(time_ns: NDArray[np.int64], event: list[pb.Part]) -> pb.Part:
    rows = len(time_ns)
    needs_state, sequence = np.full(rows, _NEEDS_STATE), np.ones(rows)
    content = [
        pb.integers(_TIMESTAMP, time_ns),
        pb.messages(_TRACK_EVENT, event),
        pb.integers(_SEQUENCE, sequence),
        pb.integers(_SEQUENCE_FLAGS, needs_state),
    ]
    return pb.messages(_PACKET, content)


def _begin_and_end(
    start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64], track: NDArray[np.int64], event: list[pb.Part]
) -> bytes:
    rows = len(start_ns)
    begin = _packets(start_ns, [pb.integers(_TYPE, np.full(rows, _BEGIN)), pb.integers(_TRACK, track), *event])
    end = _packets(start_ns + duration_ns, [pb.integers(_TYPE, np.full(rows, _END)), pb.integers(_TRACK, track)])
    return pb.joined((np.hstack([begin[0], end[0]]), np.hstack([begin[1], end[1]])))


def _event_packets(batch: pa.RecordBatch) -> bytes:
    track = _THREAD_TRACK | batch["tid"].to_numpy().astype(np.int64)
    op = pc.index_in(batch["op"].cast(pa.string()), pa.array(_OPS)).to_numpy()
    event = [pb.integers(_CATEGORY_ID, _GROUP_IDS[op]), pb.integers(_NAME_ID, op.astype(np.int64) + 1)]
    for number, column in enumerate(_ANNOTATIONS, 1):
        values = batch["file_id" if column == "file" else column]
        field = _ANNOTATION_STRING_ID if column == "file" else _ANNOTATION_INTEGER
        content = values.fill_null(0).to_numpy().astype(np.int64) + (column == "file")
        annotation = [pb.integers(_ANNOTATION_NAME_ID, np.full(len(content), number)), pb.integers(field, content)]
        event.append(pb.messages(_ANNOTATION, annotation, values.is_valid().to_numpy(zero_copy_only=False)))
    return _begin_and_end(batch["start_ns"].to_numpy(), batch["duration_ns"].to_numpy(), track, event)


def _slice_packets(side: int, track: Slices, rows: slice, names: _Names) -> bytes:
    ids = np.array([names.id_of[name] for name in track.names[rows]], np.int64)
    on = np.full(len(ids), _SIDE_TRACK | side)
    return _begin_and_end(track.start_ns[rows], track.duration_ns[rows], on, [pb.integers(_NAME_ID, ids)])


def _counter_packets(side: int, counter: Counter, rows: slice) -> bytes:
    time_ns = counter.time_ns[rows]
    event = [pb.integers(_TYPE, np.full(len(time_ns), _COUNTER)), pb.integers(_TRACK, np.full(len(time_ns), _SIDE_TRACK | side))]
    return pb.joined(_packets(time_ns, [*event, pb.doubles(_DOUBLE_COUNTER, counter.values[rows])]))
