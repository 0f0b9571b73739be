"""Summarise a trace: calls, errors, bytes and times by operation and kind of file, and the busiest files."""

from typing import Any

import pandas as pd

from iotwin.trace_store.figures.page_cache import summarise_page_cache
from iotwin.trace_store.figures.statistics import BY, document, named, rows, tally_trace
from iotwin.trace_store.reader import Trace

_BUSIEST = 10
_STORAGE = ("dataset", "checkpoint")


def summarise(trace: Trace) -> dict[str, Any]:
    """Return tables of a trace as rows for JSON, by name: operations, files by kind, phases, parts of steps, processes.

    Sizes are in bytes, times in ns unless their name ends in _s.
    """
    tallies = tally_trace(trace, BY)
    tables = {by: rows([named(counted, trace, str(trace.path), by)], by) for by, counted in tallies.items()}
    operations = tables["op"].assign(bytes=tables["op"]["read_bytes"] + tables["op"]["written_bytes"])
    files, processes = tables["file"].dropna(subset=["path"]), tables["process"].drop(columns="trace")
    return {
        "operations": document(operations),
        "files": _files(files, trace.files()),
        "busiest_files": document(files.head(_BUSIEST)),
        "busiest_storage_files": document(files[files["kind"].isin(_STORAGE)].head(_BUSIEST)),
        "page_cache": summarise_page_cache(trace),
        "phases": _phases(trace.phases()),
        "parts": _parts(trace.step_parts()),
        "processes": {
            str(role): int(count) for role, count in trace.processes()["role"].value_counts(sort=True).items() if count
        },
        "busiest_processes": document(processes.head(_BUSIEST)),
    }


def _files(by_file: pd.DataFrame, files: pd.DataFrame) -> list[dict[str, Any]]:
    totals = by_file.groupby("kind", as_index=False)[["calls", "read_bytes", "written_bytes", "total_ns"]].sum()
    counts = files["kind"].astype(str).value_counts().to_dict()
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
