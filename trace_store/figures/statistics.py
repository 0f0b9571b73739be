"""Calls, errors, bytes and times by operation, file, process, host or rank, from tallies of bounded size.

A tally counts calls by key (operation, file or process) and by a bucket of the duration, with 32 buckets per doubling. Tallies of
stretches and traces add up exactly in any order. They yield percentiles without storing calls. A tally that would take more than
an eighth of the memory limit joins pairs of buckets, which doubles the error of percentiles.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from iotwin.common.processes.memory_limit import memory_limit
from iotwin.trace_store.columns import add_at
from iotwin.trace_store.figures.log_buckets import BUCKETS_PER_OCTAVE, bucket_from_zero
from iotwin.trace_store.figures.process_ranks import hosts_and_ranks
from iotwin.trace_store.figures.table_rows import TableRows
from iotwin.trace_store.fold import Events, Ints, TraceStretch, fold_all
from iotwin.trace_store.parallel_fold import Workers, in_this_process
from iotwin.trace_store.reader import Trace

BY = ("op", "file", "process", "host", "rank")
PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99}

_KEYS = {"op": ("op",), "file": ("file_id",), "op and process": ("pid", "op")} | dict.fromkeys(BY[2:], ("pid",))
_NAMES = {
    "op": ["op"], "file": ["path", "kind"], "process": ["trace", "host", "pid", "role", "comm"], "host": ["host"],
    "rank": ["host", "rank"],
}  # fmt: skip
_SUMS = ("calls", "errors", "read_bytes", "written_bytes", "total_ns")
_BUCKETS = 64 * BUCKETS_PER_OCTAVE + 1
_DENSE = 1 << 20  # most cells of a batch that are counted in an array; more are sorted
_TABLED = 1 << 16  # numbers in a range of this size are numbered by a table, in a tenth of the time of a sort
_ROW_BITS = 12  # 2**12 = 4096 rows in a range
_ROW_MASK = (1 << _ROW_BITS) - 1
_DURATION_BITS = 63 - _ROW_BITS
_MOST_NS = (1 << _DURATION_BITS) - 1  # 26 days; percentiles count longer calls as this long
_MOST_WAITING = 1 << 18  # most calls that wait to be added to the cells
_SHARE = 8  # a tally takes an eighth of the memory limit: an addition of two holds four, and then the table is made
_MOST_COARSE = 5  # most joins of pairs of buckets: then there is one bucket per doubling
_PART_BITS = 8
_PARTS = np.array([round(2 ** (_PART_BITS + part / BUCKETS_PER_OCTAVE)) for part in range(BUCKETS_PER_OCTAVE)], np.int64)


class Tally:
    """Sums calls by one of BY, or by "op and process", from which `rows` makes a table by operation or by process.

    If `percentiles` is False, the tally has no buckets of durations, which take most of the memory, and no longest durations. If
    `sums` is False, it has no errors and bytes, so that fewer columns are read.
    """

    def __init__(self, by: str, percentiles: bool = True, sums: bool = True) -> None:
        self.by, self._percentiles, self._sums = by, percentiles, sums
        self.columns = tuple(dict.fromkeys((*_KEYS[by], *(("op", "result") if sums else ()), "duration_ns")))
        self.keys: list[Any] = []  # the key of each row; a file's row is its id + 1, and row 0 is for calls without a file
        self._rows: dict[Any, int] = {}
        self.sums = np.zeros((len(_SUMS), 0), np.int64)
        self.max_ns = np.zeros(0, np.int64)
        self._cells = _Cells()

    def add(self, events: Events) -> None:
        """Add a batch."""
        place, row = self._row(events)
        sums, max_ns = (self.sums, self.max_ns) if place is None else (np.zeros((len(_SUMS), len(place)), np.int64), place * 0)
        calls, errors, read_bytes, written_bytes, total_ns = sums
        of_row, calls_of, time_of = row, None, events.duration_ns
        if self._percentiles:
            np.maximum.at(max_ns, row, time_of)
            of_row, calls_of, time_of = self._cells.add(row, events, place)
        add_at(calls, of_row, calls_of)
        add_at(total_ns, of_row, time_of)
        if self._sums:
            written = np.zeros_like(calls)
            add_at(written, row[events.writes], events.moved_bytes[events.writes])
            add_at(errors, row[events.failed])
            add_at(read_bytes, row, events.moved_bytes)
            read_bytes -= written
            written_bytes += written
        if place is not None:
            self._add_rows(place, sums, max_ns)
        self._fit()

    def later(self, other: "Tally") -> None:
        """Add the sums of `other`, of the same trace."""
        row = np.arange(len(other.max_ns)) if self.by == "file" else self._placed(other.keys)
        self._grow(len(other.max_ns))
        self._add_rows(row, other.sums, other.max_ns)
        self._cells.later(other._cells, row)
        self._fit()

    @property
    def percentile_error(self) -> float:
        """The largest relative error of a percentile."""
        return float(2 ** (2**self._cells.coarse / BUCKETS_PER_OCTAVE) - 1)

    def _fit(self) -> None:
        while self._cells.size > memory_limit() // _SHARE and self._cells.coarse < _MOST_COARSE:
            self._cells.coarsen()

    def cells(self, group: Ints, into: "_Cells") -> None:
        """Add the buckets of durations to `into`. `group`: for each row with a call, its row in `into`."""
        of_row = np.zeros(len(self.max_ns), np.int64)
        of_row[self.sums[0] > 0] = group
        into.later(self._cells, of_row)

    def _add_rows(self, row: Ints, sums: Ints, max_ns: Ints) -> None:
        """Add the columns of `sums` and `max_ns` to the rows `row`."""
        for total, more in zip(self.sums, sums, strict=True):
            np.add.at(total, row, more)
        np.maximum.at(self.max_ns, row, max_ns)

    def _row(self, events: Events) -> tuple[Ints | None, Ints]:
        """Return (by number of a key, its row, or None if numbers are rows; by event, the number of its key)."""
        if self.by == "file":
            self._grow(events.decoder.files + 1)
            return None, events.file_id + 1
        op, ops = events.op, events.decoder.ops  # `op` first, since decoding it adds names to `ops`
        if self.by == "op":
            return self._placed(ops), op
        pids, code = _numbered(events.column("pid"))
        if self.by != "op and process":
            return self._placed(pids.tolist()), code
        pairs, code = _numbered(code * len(ops) + op)
        process, name = np.divmod(pairs, len(ops))
        return self._placed([(pid, ops[at]) for pid, at in zip(pids[process].tolist(), name.tolist(), strict=True)]), code

    def _placed(self, keys: list[Any]) -> Ints:
        for key in keys:
            if key not in self._rows:
                self._rows[key] = len(self.keys)
                self.keys.append(key)
        self._grow(len(self.keys))
        return np.array([self._rows[key] for key in keys], np.int64)

    def _grow(self, rows: int) -> None:
        more = max(rows - len(self.max_ns), 0)
        if more:
            self.sums = np.pad(self.sums, ((0, 0), (0, more)))
            self.max_ns = np.pad(self.max_ns, (0, more))


class _Cells:
    """Calls and time by row and bucket of duration. Each range of rows has its own array, so that additions take little memory.

    Cells are sorted arrays of shape (3, n): row in its range * _BUCKETS + bucket, calls, time in ns.
    """

    def __init__(self) -> None:
        self._ranges: list[_Range] = []
        self.coarse = 0  # how often pairs of buckets were joined

    @property
    def size(self) -> int:
        """The bytes that the cells and the waiting calls take."""
        return sum(own.cells.nbytes + 8 * own.waiting for own in self._ranges)

    def coarsen(self) -> None:
        """Join pairs of neighbouring buckets of durations."""
        for own in self._ranges:
            own.cells = _coarsened(own.flushed(self.coarse), 1)
        self.coarse += 1

    def add(self, row: Ints, events: Events, place: Ints | None) -> tuple[Ints, Ints | None, Ints]:
        """Add the calls `events`, which have the rows `place[row]`, or `row` if `place` is None.

        Returns (elements of `row`; for each, a number of calls, None: 1 each; for each, the time of these calls). An element may
        occur several times. There are fewer elements than calls if the calls have few rows.
        """
        last, duration = int(row.max()), events.duration_ns
        if (last + 1) * _BUCKETS <= _DENSE:
            cell = row * _BUCKETS + _joined(events.duration_bucket, self.coarse)
            calls = np.bincount(cell)
            found, total_ns = np.flatnonzero(calls), np.zeros(len(calls), np.int64)
            add_at(total_ns, cell, duration)
            cells = np.stack([found, calls[found], total_ns[found]])
            self._later(cells, found // _BUCKETS if place is None else place[found // _BUCKETS])
            return found // _BUCKETS, cells[1], cells[2]
        at = row if place is None else place[row]
        order = np.argsort((at >> _ROW_BITS).astype(np.uint16), kind="stable")
        packed = ((at & _ROW_MASK) << _DURATION_BITS | np.minimum(duration, _MOST_NS))[order]
        for number, begin, end in _pieces(at[order] >> _ROW_BITS):
            self._of(number).add(packed[begin:end], self.coarse)
        return row, None, duration

    def later(self, other: "_Cells", row: Ints) -> None:
        """Add the cells of `other`, whose rows 0, 1, ... are the rows `row` here."""
        while self.coarse < other.coarse:
            self.coarsen()
        for number, own in enumerate(other._ranges):
            cells = _coarsened(own.flushed(other.coarse), self.coarse - other.coarse)
            self._later(cells, row[(number << _ROW_BITS) + cells[0] // _BUCKETS])

    def _later(self, cells: Ints, row: Ints) -> None:
        """Add `cells`, whose rows 0, 1, ... are the rows `row` here."""
        cell = row * _BUCKETS + cells[0] % _BUCKETS
        order = np.argsort(cell, kind="stable")
        moved = _runs(cell[order], *cells[1:, order])
        for target, begin, end in _pieces(moved[0] // _BUCKETS >> _ROW_BITS):
            shift = np.array([[(target << _ROW_BITS) * _BUCKETS], [0], [0]])
            self._of(target).merge(moved[:, begin:end] - shift)

    def __getstate__(self) -> tuple[int, list[bytes]]:
        """Return the state that a worker sends: the cells as `_packed`, which compresses to a tenth of the memory."""
        return self.coarse, [_packed(own.flushed(self.coarse), self.coarse) for own in self._ranges]

    def __setstate__(self, state: tuple[int, list[bytes]]) -> None:
        self.coarse, self._ranges = state[0], [_Range(_unpacked(packed, state[0])) for packed in state[1]]

    def __iter__(self) -> Iterator[tuple[int, Ints]]:
        """Yield the first row and the cells of each range of rows."""
        return ((number << _ROW_BITS, own.flushed(self.coarse)) for number, own in enumerate(self._ranges))

    def _of(self, number: int) -> "_Range":
        self._ranges += [_Range() for _ in range(number + 1 - len(self._ranges))]
        return self._ranges[number]


class _Range:
    """The cells of a range of rows, and calls that wait to be added to them, as row << _DURATION_BITS | duration."""

    def __init__(self, cells: Ints | None = None) -> None:
        self.cells = np.zeros((3, 0), np.int64) if cells is None else cells
        self.waiting = 0
        self._pending: list[Ints] = []

    def add(self, packed: Ints, coarse: int) -> None:
        self._pending.append(packed.copy())
        self.waiting += len(packed)
        if self.waiting > max(_MOST_WAITING, 3 * self.cells.shape[1]):
            self.flushed(coarse)

    def merge(self, cells: Ints) -> None:
        together = np.concatenate((self.cells, cells), axis=1)
        order = np.argsort(together[0], kind="stable")
        self.cells = _runs(*(each[order] for each in together))

    def flushed(self, coarse: int) -> Ints:
        """Return the cells with all calls. `coarse`: how often pairs of buckets were joined."""
        if self.waiting:
            packed = np.concatenate(self._pending)
            self.waiting, self._pending = 0, []
            packed.sort()  # one sort of numbers is several times faster than a sort by two keys
            duration = packed & _MOST_NS
            bucket = _joined(bucket_from_zero(duration, BUCKETS_PER_OCTAVE), coarse)
            cell = (packed >> _DURATION_BITS) * _BUCKETS + bucket
            self.merge(_runs(cell, np.ones_like(cell), duration))
        return self.cells


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in ascending order, and for each of `values` its index among them."""
    least = int(values.min())
    if int(values.max()) - least > max(len(values), _TABLED):
        return np.unique(values, return_inverse=True)
    counts = np.bincount(values - least)
    used = np.flatnonzero(counts)
    counts[used] = np.arange(len(used))
    return used + least, counts[values - least]


def _joined(bucket: Ints, times: int) -> Ints:
    """Return the number of each bucket after `times` joins of neighbouring pairs. Bucket 0 (duration 0) is never joined."""
    return (bucket + (1 << times) - 1) >> times if times else bucket


def _coarsened(cells: Ints, times: int) -> Ints:
    row, bucket = np.divmod(cells[0], _BUCKETS)
    return _runs(row * _BUCKETS + _joined(bucket, times), *cells[1:]) if times else cells


def _packed(cells: Ints, coarse: int) -> bytes:
    """Return `cells` as bytes that compress well: small numbers, whose bytes are sorted by significance.

    The numbers are the differences between neighbouring cells, the calls, and the calls' time minus that of as many calls with
    the shortest duration in the bucket.
    """
    cell, calls, total_ns = cells
    small = np.stack([np.diff(cell, prepend=0), calls, total_ns - calls * _least_ns(cell, coarse)])
    return small.view(np.uint8).reshape(-1, 8).T.tobytes()


def _unpacked(packed: bytes, coarse: int) -> Ints:
    """Return the cells that `_packed` packed."""
    steps, calls, above_ns = np.frombuffer(packed, np.uint8).reshape(8, -1).T.copy().view(np.int64).reshape(3, -1)
    cell = np.cumsum(steps)
    return np.stack([cell, calls, above_ns + calls * _least_ns(cell, coarse)])


def _least_ns(cell: Ints, coarse: int) -> Ints:
    """Return the approximate shortest duration in the bucket of each cell, in ns, computed equally on all machines."""
    octave, part = np.divmod(np.maximum(cell % _BUCKETS - 1, 0) << coarse, BUCKETS_PER_OCTAVE)
    return _PARTS[part] << octave >> _PART_BITS


def _pieces(sorted_numbers: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield (number, begin, end) of each run of equal numbers."""
    first = np.flatnonzero(np.diff(sorted_numbers, prepend=-1))
    return zip(sorted_numbers[first].tolist(), first.tolist(), [*first[1:].tolist(), len(sorted_numbers)], strict=False)


def _runs(cell: Ints, *values: Ints) -> Ints:
    """Return an array: a row with the distinct numbers of the sorted `cell`, then a row of sums for each of `values`."""
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    edges = np.append(first, len(cell))
    return np.stack([cell[first], *(np.diff(np.append(0, np.cumsum(each))[edges]) for each in values)])


def rows(tallies: Sequence[Tally], traces: Sequence[Trace], labels: Sequence[str], by: str | None = None) -> pd.DataFrame:
    """Return a table of calls, errors, bytes and times in ns with one row per name. `tallies`: one for each of `traces`.

    `by`: one of BY, by default that of the tallies. An operation or a host is called by its name, a file by path and kind, a rank
    by host and number. A process is called by its label in `labels`, host (only in a set), pid, role and command.

    Rows are in descending order of total time. `time_share` is the row's share of the total time of all rows. A percentile is the
    mean of the durations in its bucket: exact if these are equal, else within `attrs["percentile_error"]` of it, usually 2.2 %.
    It is NaN if the tally has none.
    """
    by = by or tallies[0].by
    names = _NAMES[by]
    each = [_named(tally, trace, label, by) for tally, trace, label in zip(tallies, traces, labels, strict=True)]
    frame = pd.concat(each, ignore_index=True)
    groups = frame.groupby(names, dropna=False, sort=True)
    table: pd.DataFrame = groups[list(_SUMS)].sum().reset_index()
    table["time_share"] = table["total_ns"] / max(int(table["total_ns"].sum()), 1)
    group, cells = groups.ngroup().to_numpy().astype(np.int64), _Cells()
    for tally, own in zip(tallies, np.split(group, np.cumsum([len(found) for found in each])[:-1]), strict=True):
        tally.cells(own, cells)
    _add_percentiles(table, cells)
    table["max_ns"] = groups["max_ns"].max().to_numpy()
    if by == "process" and table["host"].isna().all():
        table = table.drop(columns="host")
    table = table.sort_values(["total_ns", "calls"], ascending=False, kind="stable", ignore_index=True)
    table.attrs["percentile_error"] = max(tally.percentile_error for tally in tallies)
    return table


def _named(tally: Tally, trace: Trace, label: str, by: str) -> pd.DataFrame:
    """Return the names and sums of the rows of `tally` with a call, in the order of the rows."""
    names: pd.DataFrame
    used = np.flatnonzero(tally.sums[0])
    if by == "file":
        # Paths remain in Arrow's memory: a million Python strings would take 100 MB.
        names = trace.table("files", ["path", "kind"]).to_pandas().reindex(used - 1).astype({"kind": "str"})
    else:
        key = [tally.keys[row] for row in used.tolist()]
        key = key if by == tally.by else [pair[by == "op"] for pair in key]
        names = pd.DataFrame({"op": key})
        if by == "process":
            processes = trace.processes().drop_duplicates("pid", keep="last").set_index("pid")
            names = (
                processes[["host", "role", "comm"]].reindex(key).astype(object).assign(trace=label, pid=np.array(key, np.int64))
            )
        elif by != "op":
            found = hosts_and_ranks(trace).reindex(key).astype({"host": object})  # ranks remain whole numbers, or null
            names = found.fillna({"host": trace.manifest.host.hostname})[_NAMES[by]]
    sums = dict(zip((*_SUMS, "max_ns"), (*tally.sums[:, used], tally.max_ns[used]), strict=True))
    return names.assign(**sums)


def _add_percentiles(table: pd.DataFrame, cells: _Cells) -> None:
    calls_of = table["calls"].to_numpy()
    found = np.full((len(PERCENTILES), len(table)), np.nan)
    for begin, (cell, calls, total_ns) in cells:
        own, running = slice(begin, begin + _ROW_MASK + 1), np.cumsum(calls)
        first = np.searchsorted(cell, np.arange(len(calls_of[own])) * _BUCKETS)
        for number, share in enumerate(PERCENTILES.values()):
            at = np.searchsorted(running, np.append(0, running)[first] + np.maximum(1, np.ceil(share * calls_of[own])))
            found[number, own] = total_ns[at] / calls[at]
    table[list(PERCENTILES)] = found.T


def statistics(traces: Sequence[Trace], labels: Sequence[str], by: str, workers: Workers = in_this_process) -> pd.DataFrame:
    """Return the table of `rows` for all `traces` together. `workers` tally the stretches of the traces concurrently."""
    return rows(list(fold_all(traces, [partial(tally, by)] * len(traces), workers)), traces, labels)


def tally(by: str, stretch: TraceStretch) -> Tally:
    """Return an empty tally with percentiles, as `fold` makes it for `stretch`."""
    return Tally(by)


def document(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `table` as dictionaries for JSON, with None for missing values."""
    return TableRows(table)[:]
