"""Export as Chrome's JSON for chrome://tracing, ui.perfetto.dev and speedscope: complete events and counters.

Format: "Trace Event Format" of the Chromium project. Times are microseconds with three decimals.
"""

import json
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.syscalls import NUMBER_OF_OP
from iotwin.tracing_tools.exports.tracks import Counter, Slices, counters, pieces, process_names, slices

_COLUMNS = ["start_ns", "duration_ns", "op", "pid", "tid", "file_id", "fd", "offset", "requested", "result"]
_MACHINE = 0  # pid for tracks without a process
_PIECE_ROWS = 1 << 16
_CATEGORY_OF_OP = pa.array([schema.GROUP_OF_OP.get(op, "other") for op in NUMBER_OF_OP])


def write_chrome(trace: Trace, out: BinaryIO) -> int:
    """Write `trace` to `out` and return the number of events written."""
    out.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    out.write(_name("process_name", _MACHINE, 0, "machine"))
    for pid, comm in process_names(trace).items():
        out.write(b",\n" + _name("process_name", pid, pid, comm))
    paths = pa.array([json.dumps(path) for path in trace.files()["path"]], pa.string())
    written = 0
    for batch in trace.events(columns=_COLUMNS, batch_rows=_PIECE_ROWS):
        out.write(_lines(_event_lines(batch, paths)))
        written += batch.num_rows
    for number, track in enumerate(slices(trace), 1):
        pid = _MACHINE if track.pid is None else track.pid
        out.write(b",\n" + _name("thread_name", pid, _side_thread(number), track.track))
        for rows in pieces(len(track.names), _PIECE_ROWS):
            out.write(_lines(_slice_lines(track, rows, pid, _side_thread(number))))
    for counter in counters(trace):
        for rows in pieces(len(counter.values), _PIECE_ROWS):
            out.write(_lines(_counter_lines(counter, rows)))
    out.write(b"\n]}\n")
    return written


def _side_thread(number: int) -> int:
    return (1 << 30) + number  # larger than every thread id of Linux, as PID_MAX_LIMIT is 2**22


def _name(kind: str, pid: int, tid: int, name: str) -> bytes:
    return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}).encode()


def _lines(lines: pa.Array) -> bytes:
    return b",\n" + ",\n".join(lines.to_pylist()).encode() if len(lines) else b""


def _microseconds(time_ns: pa.Array) -> pa.Array:
    whole = pc.divide(time_ns, 1000)
    rest = pc.subtract(time_ns, pc.multiply(whole, 1000)).cast(pa.string())
    return pc.binary_join_element_wise(whole.cast(pa.string()), pc.utf8_lpad(rest, 3, "0"), ".")


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _argument(name: str, column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(f',"{name}":', _text(column), "").fill_null("")


def _event_lines(batch: pa.RecordBatch, paths: pa.Array) -> pa.Array:
    op = _text(batch["op"])
    category = _CATEGORY_OF_OP.take(pc.index_in(op, pa.array(list(NUMBER_OF_OP))))
    arguments = [_argument("file", paths.take(batch["file_id"]))]
    arguments += [_argument(name, batch[name]) for name in ("fd", "offset", "requested")]
    return pc.binary_join_element_wise(
        '{"ph":"X","name":"', op, '","cat":"', category, '","pid":', _text(batch["pid"]), ',"tid":', _text(batch["tid"]),
        ',"ts":', _microseconds(batch["start_ns"]), ',"dur":', _microseconds(batch["duration_ns"]), ',"args":{"result":',
        _text(batch["result"]), *arguments, "}}", "",
    )  # fmt: skip


def _slice_lines(track: Slices, rows: slice, pid: int, tid: int) -> pa.Array:
    codes, names = pd.factorize(track.names[rows])
    quoted = pa.array([json.dumps(str(name)) for name in names], pa.string()).take(pa.array(codes))
    return pc.binary_join_element_wise(
        '{"ph":"X","name":',
        quoted,
        f',"pid":{pid},"tid":{tid},"ts":',
        _microseconds(pa.array(track.start_ns[rows])),
        ',"dur":',
        _microseconds(pa.array(track.duration_ns[rows])),
        "}",
        "",
    )


def _counter_lines(counter: Counter, rows: slice) -> pa.Array:
    head = f'{{"ph":"C","name":{json.dumps(counter.track)},"pid":{_MACHINE},"ts":'
    values = _text(pa.array(np.asarray(counter.values[rows])))
    times = _microseconds(pa.array(counter.time_ns[rows]))
    return pc.binary_join_element_wise(head, times, ',"args":{"value":', values, "}}", "")
