"""Summarise a trace: calls, errors, bytes and times by operation and kind of file, and the busiest files."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from iotwin.trace_store.figures.page_cache_hits import FileReads, summarise_page_cache
from iotwin.trace_store.figures.statistics import PERCENTILES, Tally, document, rows
from iotwin.trace_store.fold import CollectorSet, TraceStretch, fold
from iotwin.trace_store.reader import Trace

_BUSIEST = 10
_STORAGE = ("dataset", "checkpoint")


def summarise(trace: Trace) -> dict[str, Any]:
    """Return tables of a trace as rows for JSON, by name: operations, files by kind, phases, parts of steps, processes.

    Sizes are in bytes, times in ns unless their name ends in _s.
    """
    found = fold(trace, _Totals)
    operations, processes = (rows([found.calls], [trace], [""], by) for by in ("op", "process"))
    by_file = rows([found.file], [trace], [""])
    files = by_file.dropna(subset=["path"])
    busiest = _with_percentiles(trace, files)
    return {
        "operations": document(operations.assign(bytes=operations["read_bytes"] + operations["written_bytes"])),
        "files": _files(files, trace.table("files", ["kind"])["kind"]),
        "busiest_files": document(busiest.head(_BUSIEST)),
        "busiest_storage_files": document(busiest[busiest["kind"].isin(_STORAGE)].head(_BUSIEST)),
        "page_cache": summarise_page_cache(trace, getattr(found, "page_cache", None)),
        "phases": _phases(trace.phases()),
        "parts": _parts(trace.step_parts()),
        "processes": {
            str(role): int(count) for role, count in trace.processes()["role"].value_counts(sort=True).items() if count
        },
        "busiest_processes": document(processes.drop(columns="trace").head(_BUSIEST)),
    }


class _Totals(CollectorSet):
    def __init__(self, stretch: TraceStretch) -> None:
        self.calls = Tally("op and process")
        self.file = Tally("file", percentiles=False)
        if stretch.trace.block() is not None:
            self.page_cache = FileReads(stretch)


def _with_percentiles(trace: Trace, files: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the busiest of all `files`, and of the busiest files of storage, with percentiles and longest durations.

    These figures take a second pass over few columns, for the few files that are shown. For all files, they would take far more
    memory.
    """
    figures = [*PERCENTILES, "max_ns"]
    shown = pd.concat([files.head(_BUSIEST), files[files["kind"].isin(_STORAGE)].head(_BUSIEST)])
    shown = files[files.index.isin(shown.index)]
    is_shown = pc.is_in(trace.table("files", ["path"])["path"], pa.array(shown["path"], pa.string()))
    ids = np.flatnonzero(is_shown).tolist()
    detailed = rows([fold(trace, lambda stretch: Tally("file", sums=False), where=pc.field("file_id").isin(ids))], [trace], [""])
    found = shown.drop(columns=figures).merge(detailed[["path", "kind", *figures]], "left", ["path", "kind"])
    return found[shown.columns]


def _files(by_file: pd.DataFrame, kinds: pa.ChunkedArray) -> list[dict[str, Any]]:
    totals = by_file.groupby("kind", as_index=False)[["calls", "read_bytes", "written_bytes", "total_ns"]].sum()
    counts = {str(each["values"]): each["counts"] for each in pc.value_counts(kinds.cast("string")).to_pylist()}
    found: list[dict[str, Any]] = [
        {
            "kind": kind,
            "files": int(counts[kind]),
            "calls": calls,
            "read_bytes": read_bytes,
            "written_bytes": written_bytes,
            "total_ns": total_ns,
        }
        for kind, calls, read_bytes, written_bytes, total_ns in totals.to_numpy().tolist()
    ]
    return sorted(found, key=lambda row: -row["read_bytes"] - row["written_bytes"])


def _phases(phases: pd.DataFrame) -> list[dict[str, Any]]:
    found = []
    for phase, group in phases.groupby("phase", observed=True, sort=False):
        durations = group["end_ns"] - group["start_ns"]
        found.append(
            {"phase": str(phase), "count": len(group), "mean_ns": float(durations.mean()), "total_ns": int(durations.sum())}
        )
    return found


def _parts(parts: pd.DataFrame | None) -> list[dict[str, Any]]:
    if parts is None:
        return []
    seconds = (parts["duration_ns"] / 1e9).groupby(parts["name"].astype(str), sort=False)
    return [
        {"name": name, "count": len(each), "total_s": float(each.sum()), "median_s": float(each.median())}
        for name, each in seconds
    ]
