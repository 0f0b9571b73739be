"""What reached the block devices, against what the calls asked for: the work of the page cache in between."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from trace_visuals.bins import Floats, Lanes
from trace_visuals.lanes import LaneName
from tracing_tools.trace.reader import Trace

_CURVE_POINTS = 400
_PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "most_ns": 1.0}


@dataclass(frozen=True)
class BlockAnalysis:
    """Block requests by operation and origin, and bytes of calls against bytes of requests, in time and by phase."""

    requests: pd.DataFrame  # a row per operation and origin
    phases: pd.DataFrame  # a row per phase: bytes that calls read and wrote, bytes that requests did
    time_ns: Floats  # (points,): ends of bins
    curves: dict[str, Floats]  # (points,): bytes so far, by `read calls`, `read block`, `write calls`, `write block`


def analyse_block(trace: Trace, phases: pd.DataFrame, lanes: Lanes, names: list[LaneName]) -> BlockAnalysis | None:
    """Return the analysis of the trace's block requests, None when they were not traced; `lanes` must hold theirs."""
    block = trace.block()
    if block is None:
        return None
    place = {(name.section, name.group): lane for lane, name in enumerate(names)}
    moved = {
        "read calls": lanes.size_bytes[place["storage", "read"]],
        "read block": lanes.size_bytes[place["block", "block read"]],
        "write calls": lanes.size_bytes[place["storage", "write"]],
        "write block": lanes.size_bytes[place["block", "block write"]],
    }  # fmt: skip
    so_far = {name: np.concatenate(([0], np.cumsum(size))).astype(np.float64) for name, size in moved.items()}
    edges = lanes.grid.edges().astype(np.float64)
    shown = np.unique(np.linspace(0, len(edges) - 1, _CURVE_POINTS).astype(int))
    curves = {name: values[shown] for name, values in so_far.items()}
    return BlockAnalysis(_requests(block), _by_phase(phases, edges, so_far), edges[shown], curves)


def _requests(block: pd.DataFrame) -> pd.DataFrame:
    block = block.assign(end_sector=block["sector"] + block["size_bytes"] // 512)
    before = block.groupby(["device", "op"], observed=True, dropna=False)["end_sector"].shift()
    block = block.assign(sequential=block["sector"] == before, queue_ns=block["issue_ns"] - block["queued_ns"])
    rows: list[dict[str, Any]] = []
    for (op, origin), mine in block.groupby(["op", "origin"], observed=True):
        latency = mine["duration_ns"].dropna()
        times = {name: float(latency.quantile(share)) if len(latency) else None for name, share in _PERCENTILES.items()}
        rows.append({
            "op": str(op), "origin": str(origin), "requests": len(mine), "size_bytes": int(mine["size_bytes"].sum()),
            "p50_bytes": float(mine["size_bytes"].median()), "sequential_share": float(mine["sequential"].mean()),
            "queue_ns": float(mine["queue_ns"].median()), **times,
        })  # fmt: skip
    return pd.DataFrame(rows).sort_values("size_bytes", ascending=False, ignore_index=True)


def _by_phase(phases: pd.DataFrame, edges: Floats, so_far: dict[str, Floats]) -> pd.DataFrame:
    """Return bytes of calls and requests in each phase but steps; a bin on a border counts by the share of it that is inside."""
    shown = phases[phases["phase"] != "step"]
    table = pd.DataFrame({"phase": shown["phase"].astype(str), "epoch": shown["epoch"], "start_ns": shown["start_ns"]})
    for name, values in so_far.items():
        begin, end = (np.interp(shown[edge].to_numpy(np.float64), edges, values) for edge in ("start_ns", "end_ns"))
        table[name.replace(" ", "_") + "_bytes"] = np.rint(end - begin)
    read = table["read_calls_bytes"]
    table["cached_share"] = (1 - table["read_block_bytes"] / read.where(read > 0)).clip(0, 1)
    return table.reset_index(drop=True)
