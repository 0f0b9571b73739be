"""Read the traces of a set's hosts as one trace, in place: times are moved to the first host's clock, and ids are made unique.

Two hosts may use the same process ids, so the ids of host n are increased by n * PIDS_PER_HOST. A file has one row per host.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.compute import Expression

from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.trace_store import schema
from iotwin.trace_store.clocks import interpolated
from iotwin.trace_store.columns import column, integers, plain_labels
from iotwin.trace_store.hosts.set_file import PIDS_PER_HOST, SetHost, read_set
from iotwin.trace_store.hosts.set_manifest import set_manifest
from iotwin.trace_store.manifest import SET_NAME, Manifest, TracedTask
from iotwin.trace_store.parquet_tables import BATCH_ROWS, SAMPLES, TraceTables

_PART_ROWS = 1 << 20
_LEAST_BATCH = 1 << 10  # fewest rows of a batch
_DEVICES_PER_HOST = 64  # most accelerators of a host
_NOT_TIMES = ("duration_ns", "interval_ns")
_SORTED_BY = {"files": "", "block": "issue_ns"}  # tables that are not in order of start_ns or time_ns; files are in order already
_EARLIEST = -(1 << 62)
_NAMED: set[tuple[Path, str]] = set()  # sets and hosts that a note has named as left out


class HostTables:
    """The tables of one host of a set, with its times on the set's clock and with ids that no other host has."""

    def __init__(self, entry: SetHost, tables: TraceTables, index: int, file_base: int) -> None:
        self.entry, self.tables = entry, tables
        self._bases = dict.fromkeys(("pid", "tid", "ppid"), index * PIDS_PER_HOST) | {"file_id": file_base}
        self._first_device = index * _DEVICES_PER_HOST
        knots = np.array(entry.shifts or [(tables.manifest.start_ns, entry.shift_ns)], np.int64)
        self._at, self._shifts = knots[:, 0], knots[:, 1]

    def moved(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return times of the host on the set's clock, both in ns."""
        return times + interpolated(times, self._at, self._shifts)

    @property
    def tasks(self) -> list[TracedTask]:
        """The tasks that a launcher started on the host. Their pids are those by which the set knows the processes."""
        tasks = self.tables.manifest.target.tasks
        return [msgspec.structs.replace(task, pid=task.pid + self._bases["pid"]) for task in tasks]

    def span(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        """Return (begin, end) on the host's clock of a span that has all its events from `begin_ns` to `end_ns` of the set."""
        return begin_ns - int(self._shifts.max()), end_ns - int(self._shifts.min())

    @cached_property
    def _ranks(self) -> dict[int | None, int]:
        """The ranks of the set by the ranks that the host logged."""
        own = logged_ranks(self.tables)
        if set(own) <= set(self.entry.ranks):
            return {}
        return dict(zip(own, self.entry.ranks, strict=False)) if len(own) <= len(self.entry.ranks) else {}

    def changed(self, table: pa.Table, name: str) -> pa.Table:
        """Return rows of the host's table `name` with the times, ids, ranks and names of the set."""
        for index, field in enumerate(table.schema):
            values = table.column(index)
            if field.name.endswith("_ns") and field.name not in _NOT_TIMES:
                missing = np.asarray(values.is_null()) if values.null_count else None
                values = column(self.moved(integers(values)), pa.int64(), missing)
            elif field.name in self._bases:
                values = pc.add(values, pa.scalar(self._bases[field.name], field.type))
            elif field.name == "rank" and self._ranks:
                values = pa.array([self._ranks[rank] for rank in values.to_pylist()], field.type)
            elif field.name == "host":
                values = pa.array([self.entry.host] * len(table), field.type)
            elif field.name == "device" and name == f"{SAMPLES}disk":
                values = pc.binary_join_element_wise(self.entry.host, values, " ")
            elif field.name == "device" and "gpu" in name:
                values = pc.add(values, pa.scalar(self._first_device, field.type))
            table = table.set_column(index, field, values)
        return table

    def events(self, columns: list[str], begin_ns: int, end_ns: int, batch_rows: int) -> Iterator[pa.Table]:
        """Yield the events from `begin_ns` to before `end_ns`, which are times of the set, in order of start."""
        for batch in self.tables.events_by_page(columns, *self.span(begin_ns, end_ns), batch_rows):
            table = self.changed(pa.Table.from_batches([batch]), "events")
            first, last = np.searchsorted(integers(table["start_ns"]), [begin_ns, end_ns])
            if first < last:
                yield table.slice(int(first), int(last - first))


def trace_of_host(path: Path) -> TraceTables:
    """Open the trace at `path`. Raises IotwinError if it cannot be read, or is itself of several hosts."""
    tables = TraceTables(path)
    if tables.manifest.hosts:
        raise IotwinError(f"{path} is a merged trace; give the traces of its hosts")
    return tables


def logged_ranks(tables: TraceTables) -> list[int | None]:
    """Return the ranks of the phases and parts of a trace, in order. If rows have no rank, None is the last entry."""
    found: set[int | None] = set()
    for name in ("phases", "parts"):
        table = tables.rows(name, schema.TABLES[name])
        found.update([] if table is None else pc.unique(table["rank"]).to_pylist())
    return sorted(found, key=lambda rank: (rank is None, rank))


class SetTables:
    """The tables of a set of hosts; see TraceTables, whose methods these are."""

    def __init__(self, directory: Path, entries: Sequence[SetHost]) -> None:
        """Open the traces of the hosts that are not missing. Raises IotwinError if there are none."""
        self.hosts: list[HostTables] = []
        self.left_out: dict[str, str] = {}  # why hosts are not read, by host
        files = 0
        for index, entry in enumerate(entries):
            try:
                if entry.status == "missing":
                    raise IotwinError(entry.note or "it was missing when the set was made")
                tables = trace_of_host(directory / entry.trace)
            except IotwinError as error:
                self.left_out[entry.host] = str(error)
                continue
            self.hosts.append(HostTables(entry, tables, index, files))
            files += tables.number_of_files
        self.number_of_files = files
        if not self.hosts:
            reason = next(iter(self.left_out.values()), "it is empty")
            raise IotwinError(f"{directory / SET_NAME}: no host of this set has a trace that can be read: {reason}")
        found = {host.entry.host: host.tables.manifest for host in self.hosts}
        ends = [host.moved(np.array([m.start_ns, m.end_ns])) for host, m in zip(self.hosts, found.values(), strict=True)]
        self.manifest: Manifest = set_manifest(entries, found, np.stack(ends), self.left_out)
        tasks = [task for host in self.hosts for task in host.tasks]
        self.manifest.target = msgspec.structs.replace(self.manifest.target, tasks=tasks)

    @cached_property
    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The time at which each part begins, and its number of rows. Row groups count where they begin."""
        starts: list[NDArray[np.int64]] = []
        counts: list[int] = []
        for host in self.hosts:
            groups = list(host.tables.row_groups())
            starts.append(host.moved(np.array([at for at, _ in groups], np.int64)))
            counts += [rows for _, rows in groups]
        start, rows = np.concatenate(starts), np.array(counts, np.int64)
        order = np.argsort(start, kind="stable")
        part = (np.cumsum(rows[order]) - rows[order]) // _PART_ROWS
        begins = np.unique(start[order][np.flatnonzero(np.diff(part, prepend=-1))])
        found = np.searchsorted(begins, start, side="right") - 1
        return begins, np.bincount(found, rows, len(begins)).astype(np.int64)

    @property
    def part_rows(self) -> list[int]:
        """The number of events in each part. A part is a stretch of time, which has the events of all hosts."""
        return [int(rows) for rows in self._parts[1]]

    def part_begin_ns(self, part: int) -> int:
        """Return the time at which a part begins; 0 if there are no events."""
        begins = self._parts[0]
        return int(begins[part]) if len(begins) else 0

    def in_flight(self, time_ns: int, parts: int, columns: Sequence[str]) -> pa.Table:
        """Return the events that begin before `time_ns` and end after it, in order of start. `time_ns`: start of part `parts`."""
        names = list(dict.fromkeys((*columns, "start_ns", "duration_ns")))
        found = [_empty(names)]
        for host in self.hosts if parts else []:
            earliest_ns, latest_ns = host.span(time_ns, time_ns)
            found.append(host.changed(host.tables.in_flight(earliest_ns, None, names, latest_ns), "events"))
        table = pa.concat_tables(found).unify_dictionaries().sort_by("start_ns")
        start = integers(table["start_ns"])
        chosen = (start < time_ns) & (start + integers(table["duration_ns"]) > time_ns)
        return table.filter(pa.array(chosen)).select(list(columns))

    def events(
        self,
        columns: Sequence[str] | None = None,
        where: Expression | None = None,
        batch_rows: int = BATCH_ROWS,
        parts: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events of all hosts in order of start; see Trace.events."""
        wanted = schema.EVENTS.names if columns is None else list(columns)
        # Arrow does not list the columns of an expression, but its text contains their names.
        text = "" if where is None else str(where)
        read = [name for name in schema.EVENTS.names if name in (*wanted, "start_ns") or name in text]
        begin_ns, end_ns = self._times(parts)
        share = batch_rows // len(self.hosts)
        # Small tables cost much CPU time for each row. So up to four batches of rows may wait if there are many hosts.
        rows = max(share, min(4 * share, batch_rows // 16), _LEAST_BATCH)
        for table in _in_order([host.events(read, begin_ns, end_ns, rows) for host in self.hosts]):
            chosen = table if where is None else table.filter(where)
            yield from chosen.select(wanted).combine_chunks().to_batches(max_chunksize=batch_rows)

    def _times(self, parts: Sequence[int] | None) -> tuple[int, int]:
        if parts is None:
            return _EARLIEST, -_EARLIEST
        begins = [*self._parts[0].tolist(), -_EARLIEST]
        if not parts or len(begins) == 1:
            return 0, 0
        return _EARLIEST if parts[0] == 0 else begins[parts[0]], begins[parts[-1] + 1]

    def rows(self, name: str, expected: pa.Schema, columns: list[str] | None = None) -> pa.Table | None:
        """Return `columns` (None: all) of the table `name` of all hosts; None if no host has it.

        Rows are in order of time, if its column is among `columns`, or of file ids.
        """
        chosen = expected if columns is None else pa.schema([expected.field(column) for column in columns])
        plain = plain_labels(chosen)
        found = []
        for host in self.hosts:
            table = host.tables.rows(name, expected, columns) if name != "clock" else None  # jumps of one host's virtual clock
            if table is not None:
                found.append(host.changed(table, name).cast(plain))
        if not found:
            return None
        if name in (f"{SAMPLES}cpu", f"{SAMPLES}memory") and len(found) > 1:
            return _mean_of_hosts(found, expected)
        by = _SORTED_BY.get(name, "time_ns" if name.startswith(SAMPLES) else "start_ns")
        whole = pa.concat_tables(found)
        if by in chosen.names:
            whole = whole.take(pc.sort_indices(whole, [(by, "ascending")], null_placement="at_start"))
        return whole.cast(chosen)

    def scanned(self, name: str, expected: pa.Schema) -> Any:
        """Return a table as what DuckDB scans; None if no host has it."""
        return _ScannedEvents(self) if name == "events" else self.rows(name, expected)


class _ScannedEvents:
    """Lets DuckDB read a set's events as often as it needs, in bounded memory."""

    def __init__(self, tables: SetTables) -> None:
        self._tables = tables

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(schema.EVENTS, self._tables.events())
        return reader.__arrow_c_stream__(requested_schema)


def _empty(columns: list[str]) -> pa.Table:
    return schema.EVENTS.empty_table().select(columns)


def _in_order(streams: list[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Yield the rows of all `streams` in order of start. Each yielded table ends at a time up to which all were read."""
    waiting: list[pa.Table | None] = [next(stream, None) for stream in streams]
    while any(table is not None for table in waiting):
        bound = min(table["start_ns"][-1].as_py() for table in waiting if table is not None)
        ready = []
        for index, table in enumerate(waiting):
            if table is None:
                continue
            count = int(np.searchsorted(integers(table["start_ns"]), bound, side="right"))
            ready.append(table.slice(0, count))
            waiting[index] = table.slice(count) if count < table.num_rows else next(streams[index], None)
        yield pa.concat_tables(ready).unify_dictionaries().combine_chunks().sort_by("start_ns")


def _mean_of_hosts(tables: list[pa.Table], expected: pa.Schema) -> pa.Table:
    """Return samples of a machine as means over the hosts: one row for each of the longest interval between a host's samples."""
    whole = pa.concat_tables(tables)
    time_ns = integers(whole["time_ns"])
    gaps = [np.median(np.diff(integers(table["time_ns"]))) for table in tables if table.num_rows > 1]
    cell = (time_ns - time_ns.min(initial=0)) // max(int(max(gaps, default=1)), 1)
    means = whole.append_column("cell", pa.array(cell)).group_by("cell").aggregate([(name, "mean") for name in expected.names])
    columns = [pc.cast(pc.round(means[f"{field.name}_mean"]), field.type) if pa.types.is_integer(field.type)
               else means[f"{field.name}_mean"].cast(field.type) for field in expected]  # fmt: skip
    return pa.table(columns, schema=expected).sort_by("time_ns")


def open_set(directory: Path) -> SetTables:
    """Open the set `directory`, and name once the hosts that are left out.

    Raises IotwinError if the set is damaged, or if the trace of no host can be read.
    """
    tables = SetTables(directory, read_set(directory))
    for host, reason in tables.left_out.items():
        if parent_process() is None and (directory, host) not in _NAMED:  # workers open the set again
            _NAMED.add((directory, host))
            note(f"{directory}: host {host} is left out: {reason}")
    return tables
