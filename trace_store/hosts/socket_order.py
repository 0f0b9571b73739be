"""Find calls of two hosts whose order is known: no read of a socket ends before the write of the same bytes begins."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.columns import integers
from iotwin.trace_store.parquet_tables import TraceTables

# The path of a connected TCP socket ends in its own address and that of its peer.
_ADDRESSES = re.compile(r"socket:\[\d+\] (?P<own>\S+)->(?P<peer>\S+)")
_LOOPBACK = ("127.", "[::1]")  # each host has such addresses
# Time is divided into cells, and each cell keeps the tightest order of two hosts. Cells of all pairs of hosts, and of one pair:
_MOST_CELLS, _LEAST_CELLS = 100_000, 2000
_COLUMNS = ("start_ns", "duration_ns", "op", "file_id", "result")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class EventOrder:
    """Moments of two hosts, each on its host's clock in ns, shape (n,): those of `before_ns` are not later than `after_ns`."""

    before_ns: Ints
    after_ns: Ints


def socket_orders(traces: Sequence[TraceTables]) -> dict[tuple[int, int], EventOrder]:
    """Return what connections show of the order of calls, by the indices of the host that wrote and the host that read.

    A direction of a connection is used only if as many bytes were read as were written: then both ends were recorded whole.
    """
    ends: dict[tuple[str, str], tuple[int, int]] = {}
    for index, trace in enumerate(traces):
        if not trace.manifest.lost_events and trace.manifest.ring is None:
            ends |= {addresses: (index, file_id) for addresses, file_id in _sockets(trace)}
    links = {own: ends[own[::-1]] for own in ends if own[::-1] in ends and ends[own[::-1]][0] != ends[own][0]}
    calls = {index: _calls(traces[index], [ends[own][1] for own in links if ends[own][0] == index]) for index in
             {ends[own][0] for own in links}}  # fmt: skip
    found: dict[tuple[int, int], list[EventOrder]] = {}
    for own, (reader, socket_read) in links.items():
        writer, socket_written = ends[own]
        order = _order(calls[writer], socket_written, calls[reader], socket_read)
        if order is not None:
            found.setdefault((writer, reader), []).append(order)
    cells = max(_LEAST_CELLS, _MOST_CELLS // max(len(found), 1))
    return {hosts: _tightest(orders, cells) for hosts, orders in found.items()}


def _sockets(trace: TraceTables) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield, for each connection whose addresses no other one in the trace has, (own address, peer's address) and the file id."""
    files = trace.rows("files", schema.FILES)
    named = [] if files is None else [_ADDRESSES.fullmatch(path) for path in files["path"].to_pylist()]
    found = {(match["own"], match["peer"]): file_id for file_id, match in enumerate(named) if match}
    count = Counter((match["own"], match["peer"]) for match in named if match)
    return ((each, file_id) for each, file_id in found.items() if count[each] == 1 and not each[0].startswith(_LOOPBACK))


@dataclass(frozen=True)
class _SocketCalls:
    file_id: Ints
    is_read: NDArray[np.bool_]
    start_ns: Ints
    end_ns: Ints
    result: Ints


def _calls(trace: TraceTables, sockets: list[int]) -> _SocketCalls:
    """Return the reads and writes of the files `sockets` that transferred bytes, in order of start."""
    ops = [*schema.READ_OPS, *schema.WRITE_OPS]
    where = pc.field("file_id").isin(sockets) & pc.field("op").isin(ops) & (pc.field("result") > 0)
    expected = pa.schema([schema.EVENTS.field(name) for name in _COLUMNS])
    table = pa.Table.from_batches(trace.events(_COLUMNS, where), expected).unify_dictionaries()
    is_read = np.asarray(pc.is_in(table["op"].cast(pa.string()), pa.array(schema.READ_OPS)))
    start, duration, file_id, result = (integers(table[name]) for name in ("start_ns", "duration_ns", "file_id", "result"))
    return _SocketCalls(file_id, is_read, start, start + duration, result)


def _order(writer: _SocketCalls, written: int, reader: _SocketCalls, read: int) -> EventOrder | None:
    writes = np.flatnonzero((writer.file_id == written) & ~writer.is_read)
    reads = np.flatnonzero((reader.file_id == read) & reader.is_read)
    sent, received = np.cumsum(writer.result[writes]), np.cumsum(reader.result[reads])
    if not len(sent) or not len(received) or sent[-1] != received[-1]:
        return None
    last = np.searchsorted(sent, received)  # the write of the last byte of each read
    return EventOrder(writer.start_ns[writes][last], reader.end_ns[reads])


def _tightest(orders: list[EventOrder], cells: int) -> EventOrder:
    """Return, for each of `cells` cells of time, the pair of moments that are closest to one another."""
    before = np.concatenate([each.before_ns for each in orders])
    after = np.concatenate([each.after_ns for each in orders])
    width = max(int(before.max() - before.min()) // cells, 1)
    order = np.lexsort((after - before, before // width))
    first = np.flatnonzero(np.diff((before // width)[order], prepend=-1))
    return EventOrder(before[order][first], after[order][first])
