"""Calls, errors, bytes and times by operation, file or process, from tallies of bounded size.

A tally counts calls by key (operation, file or process) and by a bucket of the duration, with 32 buckets per doubling. Tallies of
parts, traces and hosts add up exactly in any order. They yield percentiles without storing calls.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.columns import integers
from iotwin.trace_store.figures.log_buckets import bucket_from_zero
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.workers import Workers, in_this_process

BY = ("op", "file", "process")
BUCKETS_PER_OCTAVE = 32
PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99}

_KEY = {"op": "op", "file": "file_id", "process": "pid"}
_NAMES = {"op": ["op"], "file": ["path", "kind"], "process": ["trace", "pid", "role", "comm"]}
_SUMS = ("calls", "errors", "read_bytes", "written_bytes", "total_ns")


def tally(batch: pa.RecordBatch, by: str) -> pa.Table:
    """Return the tally of `batch` by one of BY: a row per key and duration bucket, with the columns _SUMS and `max_ns`."""
    duration = np.maximum(integers(batch.column("duration_ns")), 0)
    result = integers(batch.column("result"))
    moved, op = np.maximum(result, 0), batch.column("op")
    names, codes = op.dictionary.to_pylist(), op.indices.to_numpy(zero_copy_only=False)
    reads, writes = (np.array([name in group for name in names], bool)[codes] for group in (schema.READ_OPS, schema.WRITE_OPS))
    key = batch.column(_KEY[by])
    columns = {
        "key": key.indices if by == "op" else key,
        "bucket": bucket_from_zero(duration, BUCKETS_PER_OCTAVE).astype(np.int16),
        "calls": np.ones(len(duration), np.int64),
        "errors": (result < 0).astype(np.int64),
        "read_bytes": moved * reads,
        "written_bytes": moved * writes,
        "total_ns": duration,
        "max_ns": duration,
    }
    counted = _add_up(pa.table(columns), ["key"])
    if by == "op":
        counted = counted.set_column(0, "key", pc.take(key.dictionary, counted["key"].combine_chunks()))
    return counted


def add_up(tallies: Sequence[pa.Table]) -> pa.Table:
    """Return the sum of `tallies`, of which there must be at least one. All must have the same kind of key."""
    return _add_up(pa.concat_tables(tallies), ["key"])


def named(counted: pa.Table, trace: Trace, label: str, by: str) -> pa.Table:
    """Return the tally `counted` of `trace` with names instead of file ids and pids, which differ between traces.

    `label`: name of the trace, which becomes part of the names of processes.
    """
    key = counted["key"].to_pandas()
    if by == "op":
        names = pd.DataFrame({"op": key})
    elif by == "file":
        names = trace.files().set_index("file_id")[["path", "kind"]].reindex(key).astype(object)
    else:
        processes = trace.processes().drop_duplicates("pid", keep="last").set_index("pid")
        names = processes[["role", "comm"]].reindex(key).astype(object).assign(trace=label, pid=key.to_numpy())
    types = {"pid": pa.int64()}
    columns = {name: pa.array(names[name].tolist(), types.get(name, pa.string()), from_pandas=True) for name in _NAMES[by]}
    return pa.table(columns | {name: counted[name] for name in ("bucket", *_SUMS, "max_ns")})


def rows(tallies: Sequence[pa.Table], by: str) -> pd.DataFrame:
    """Return one row per name in `tallies`, which are results of `named`: calls, errors, bytes, times in ns.

    Rows are in descending order of total time. `time_share` is the row's share of the total time of all rows. A percentile is the
    mean of the durations in its bucket: exact if these are equal, else within 2.2 %.
    """
    names = _NAMES[by]
    counted = _add_up(pa.concat_tables(tallies), names).sort_by([(name, "ascending") for name in (*names, "bucket")])
    frame: pd.DataFrame = counted.to_pandas()
    if frame.empty:
        return frame.drop(columns=["bucket", "max_ns"]).assign(time_share=0.0, **dict.fromkeys((*PERCENTILES, "max_ns"), np.nan))
    first = np.flatnonzero(_changes(frame[names]))
    calls, time = frame["calls"].to_numpy(), frame["total_ns"].to_numpy()
    table = frame[names].iloc[first].reset_index(drop=True)
    for name in _SUMS:
        table[name] = np.add.reduceat(frame[name].to_numpy(), first)
    table["time_share"] = table["total_ns"] / max(int(time.sum()), 1)
    running = np.cumsum(calls)
    before = running[first] - calls[first]
    for name, share in PERCENTILES.items():
        at = np.searchsorted(running, before + np.maximum(1, np.ceil(share * table["calls"].to_numpy())))
        table[name] = time[at] / calls[at]
    table["max_ns"] = np.maximum.reduceat(frame["max_ns"].to_numpy(), first)
    return table.sort_values(["total_ns", "calls"], ascending=False, kind="stable", ignore_index=True)


def statistics(traces: Sequence[Trace], labels: Sequence[str], by: str, workers: Workers = in_this_process) -> pd.DataFrame:
    """Return the table of `rows` for all `traces` together. `workers` tally the Parquet files of events concurrently."""
    parts = [(trace.path, part, by) for trace in traces for part in range(trace.event_parts)]
    tallies = list(workers(_tally_part, parts))
    together, counted = [], 0
    for trace, label in zip(traces, labels, strict=True):
        own = [pa.ipc.open_stream(tally).read_all() for tally in tallies[counted : counted + trace.event_parts]]
        counted += trace.event_parts
        together.append(named(add_up(own) if own else _empty_tally(), trace, label, by))
    return rows(together, by)


def _tally_part(part: tuple[Path, int, str]) -> bytes:
    """Return the tally of one Parquet file in Arrow's stream format, which keeps columns aligned when it is sent to a process.

    `part`: path of the trace, index of the Parquet file, one of BY.
    """
    path, number, by = part
    counted = tally_trace(Trace(path), [by], [number])[by]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, counted.schema) as stream:
        stream.write_table(counted)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def tally_trace(trace: Trace, by: Iterable[str], parts: Sequence[int] | None = None) -> dict[str, pa.Table]:
    """Return one tally for each of `by`, in one pass over the trace. `parts`: indices of the Parquet files, None for all."""
    wanted = {kind: _RunningTally() for kind in by}
    columns = tuple(dict.fromkeys((*(_KEY[kind] for kind in wanted), "op", "duration_ns", "result")))
    for batch in trace.events(columns, batch_rows=1 << 19, parts=parts):
        for kind, growing in wanted.items():
            growing.add(tally(batch, kind))
    return {kind: growing.result() for kind, growing in wanted.items()}


class _RunningTally:
    """Sums the tallies of batches. It adds them up after every few batches, so that memory does not grow with the trace."""

    _MOST_ROWS = 1 << 20

    def __init__(self) -> None:
        self._tallies: list[pa.Table] = []
        self._rows = 0

    def add(self, counted: pa.Table) -> None:
        self._tallies.append(counted)
        self._rows += counted.num_rows
        if self._rows > self._MOST_ROWS + 2 * self._tallies[0].num_rows:
            self._tallies = [self.result()]
            self._rows = 0

    def result(self) -> pa.Table:
        return add_up(self._tallies) if self._tallies else _empty_tally()


def _empty_tally() -> pa.Table:
    return pa.table({"key": pa.nulls(0), **{name: pa.array([], pa.int64()) for name in ("bucket", *_SUMS, "max_ns")}})


def _add_up(table: pa.Table, keys: list[str]) -> pa.Table:
    sums = [(name, "sum") for name in _SUMS]
    added = table.group_by([*keys, "bucket"]).aggregate([*sums, ("max_ns", "max")])
    return added.select([*keys, "bucket", *(f"{name}_sum" for name in _SUMS), "max_ns_max"]).rename_columns(
        [*keys, "bucket", *_SUMS, "max_ns"]
    )


def _changes(names: pd.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the rows of the sorted table that differ from the row before; nulls are equal."""
    changed = np.zeros(len(names), dtype=bool)
    changed[0] = True
    for name in names:
        codes: NDArray[np.int64] = pd.factorize(names[name], use_na_sentinel=True)[0]
        changed[1:] |= codes[1:] != codes[:-1]
    return changed


def document(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `table` as dictionaries for JSON, with None for missing values."""
    plain = table.astype(object).where(table.notna(), None)
    return [dict(zip(plain.columns, row, strict=True)) for row in plain.itertuples(index=False)]
