"""A trace in numbers: calls, errors, bytes and times by operation and kind of file."""

from typing import Any

import numpy as np
import pandas as pd

from tracing_tools.trace import schema
from tracing_tools.trace.reader import Trace


def summarise(trace: Trace) -> dict[str, Any]:
    """Return the operations, files by kind, phases and processes of a trace as JSON-able rows; times in ns, sizes in bytes."""
    events = trace.events_frame(columns=["op", "duration_ns", "file_id", "result"])
    files = trace.files()
    moves = events["op"].isin((*schema.READ_OPS, *schema.WRITE_OPS))
    events["bytes"] = np.where(moves & (events["result"] > 0), events["result"], 0)
    return {
        "operations": _operations(events),
        "files": _files(events, files),
        "phases": _phases(trace.phases()),
        "processes": {
            str(role): int(count) for role, count in trace.processes()["role"].value_counts(sort=True).items() if count
        },
    }


def _operations(events: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for op, group in events.groupby("op", observed=True):
        durations = group["duration_ns"].to_numpy()
        p50, p99 = np.percentile(durations, (50, 99))
        rows.append({
            "op": str(op), "calls": len(group), "errors": int((group["result"] < 0).sum()), "bytes": int(group["bytes"].sum()),
            "total_ns": int(durations.sum()), "p50_ns": float(p50), "p99_ns": float(p99),
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["total_ns"])


def _files(events: pd.DataFrame, files: pd.DataFrame) -> list[dict[str, Any]]:
    named = events.dropna(subset=["file_id"])
    kinds = files["kind"].astype(str).to_numpy()[named["file_id"].to_numpy(np.int64)]
    read = named["op"].isin(schema.READ_OPS).to_numpy()
    frame = pd.DataFrame({
        "kind": kinds, "calls": 1,
        "read_bytes": np.where(read, named["bytes"], 0), "written_bytes": np.where(read, 0, named["bytes"]),
    })  # fmt: skip
    totals = frame.groupby("kind", as_index=False)[["calls", "read_bytes", "written_bytes"]].sum()
    counts = files["kind"].astype(str).value_counts().to_dict()
    rows: list[dict[str, Any]] = [
        {"kind": kind, "files": int(counts[kind]), "calls": calls, "read_bytes": read_bytes, "written_bytes": written_bytes}
        for kind, calls, read_bytes, written_bytes in totals.to_numpy().tolist()
    ]
    return sorted(rows, key=lambda row: -row["read_bytes"] - row["written_bytes"])


def _phases(phases: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for phase, group in phases.groupby("phase", observed=True, sort=False):
        durations = group["end_ns"] - group["start_ns"]
        rows.append(
            {"phase": str(phase), "count": len(group), "mean_ns": float(durations.mean()), "total_ns": int(durations.sum())}
        )
    return rows
