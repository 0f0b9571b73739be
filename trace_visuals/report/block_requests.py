"""Compare the bytes that calls moved with the bytes that block devices moved. The page cache explains the difference."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.bins import CallLanes, Floats
from iotwin.trace_visuals.call_columns import Ints
from iotwin.trace_visuals.report.timeline_rows import LaneName

_CURVE_POINTS = 400
_PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "most_ns": 1.0}


@dataclass(frozen=True)
class BlockAnalysis:
    """Block requests by operation and origin, and the bytes of calls and of requests, over time and by phase."""

    requests: pd.DataFrame  # a row per operation and origin
    phases: pd.DataFrame  # a row per phase: bytes that calls and that requests read and wrote
    time_ns: Floats  # (points,): ends of bins
    curves: dict[str, Floats]  # cumulative bytes at `time_ns`, by name: `read calls`, `read block`, `write calls`, `write block`


class PhaseBytes:
    """Sums the bytes of the transfers that start in each phase, reads and writes separately. Phases may overlap."""

    def __init__(self, phases: pd.DataFrame) -> None:
        self.phases = phases[phases["phase"] != "step"]
        self._edges = np.unique(self.phases[["start_ns", "end_ns"]].to_numpy(dtype=np.int64))
        self._sums = np.zeros((2, len(self._edges) + 1))  # bytes read and written, before each edge and after the last

    def add(self, start_ns: Ints, way: Ints, size_bytes: Ints) -> None:
        """Add transfers. `way`: 0 for a read, 1 for a write; transfers with another `way` are ignored."""
        for index, sums in enumerate(self._sums):
            chosen = np.flatnonzero(way == index)
            place = np.searchsorted(self._edges, start_ns[chosen], side="right")
            sums += np.bincount(place, weights=size_bytes[chosen], minlength=len(sums))

    def later(self, other: "PhaseBytes") -> None:
        """Add the sums of `other`."""
        self._sums += other._sums

    def result(self) -> tuple[Floats, Floats]:
        """Return (bytes read, bytes written), each with one value per phase."""
        begin, end = (np.searchsorted(self._edges, self.phases[name]) + 1 for name in ("start_ns", "end_ns"))
        so_far = np.concatenate((np.zeros((2, 1)), np.cumsum(self._sums, axis=1)), axis=1)
        read, written = so_far[:, end] - so_far[:, begin]
        return read, written


def analyse_block(trace: Trace, calls: PhaseBytes, lanes: CallLanes, names: list[LaneName]) -> BlockAnalysis | None:
    """Return the analysis of the trace's block requests; None if they were not traced.

    `calls` has the bytes of the calls by phase. `lanes`, whose names are `names`, must include the lanes of block requests.
    """
    block = trace.block()
    if block is None:
        return None
    place = {(name.section, name.group): lane for lane, name in enumerate(names)}
    moved = {
        "read calls": lanes.size_bytes[place["storage", "read"]],
        "read block": lanes.size_bytes[place["block", "block read"]],
        "write calls": lanes.size_bytes[place["storage", "write"]],
        "write block": lanes.size_bytes[place["block", "block write"]],
    }
    so_far = {name: np.concatenate(([0], np.cumsum(size))).astype(np.float64) for name, size in moved.items()}
    edges = lanes.grid.edges().astype(np.float64)
    shown = np.unique(np.linspace(0, len(edges) - 1, _CURVE_POINTS).astype(int))
    curves = {name: values[shown] for name, values in so_far.items()}
    return BlockAnalysis(_requests(block), _by_phase(block, calls), edges[shown], curves)


def _requests(block: pd.DataFrame) -> pd.DataFrame:
    block = block.assign(end_sector=block["sector"] + block["size_bytes"] // 512)
    before = block.groupby(["device", "op"], observed=True, dropna=False)["end_sector"].shift()
    block = block.assign(sequential=block["sector"] == before, queue_ns=block["issue_ns"] - block["queued_ns"])
    rows: list[dict[str, Any]] = []
    for (op, origin), chosen in block.groupby(["op", "origin"], observed=True):
        latency = chosen["duration_ns"].dropna()
        times = {name: float(latency.quantile(share)) if len(latency) else None for name, share in _PERCENTILES.items()}
        rows.append({
            "op": str(op), "origin": str(origin), "requests": len(chosen), "size_bytes": int(chosen["size_bytes"].sum()),
            "p50_bytes": float(chosen["size_bytes"].median()), "sequential_share": float(chosen["sequential"].mean()),
            "queue_ns": float(chosen["queue_ns"].median()), **times,
        })  # fmt: skip
    names = ("op", "origin", "requests", "size_bytes", "p50_bytes", "sequential_share", "queue_ns", *_PERCENTILES)
    return pd.DataFrame(rows, columns=list(names)).sort_values("size_bytes", ascending=False, ignore_index=True)


def _by_phase(block: pd.DataFrame, calls: PhaseBytes) -> pd.DataFrame:
    """Return a row for each phase: the bytes of the calls and of the requests that begin in it."""
    requests = PhaseBytes(calls.phases)
    way = np.select([block["op"] == "read", block["op"] == "write"], [0, 1], -1)
    requests.add(block["issue_ns"].to_numpy(), way, block["size_bytes"].fillna(0).to_numpy(dtype=np.int64))
    table = pd.DataFrame({name: calls.phases[name] for name in ("epoch", "start_ns")})
    table["phase"] = calls.phases["phase"].astype(str)
    for name, found in (("calls", calls.result()), ("block", requests.result())):
        table[f"read_{name}_bytes"], table[f"write_{name}_bytes"] = found
    read = table["read_calls_bytes"]
    table["cached_share"] = (1 - table["read_block_bytes"] / read.where(read > 0)).clip(0, 1)
    return table.reset_index(drop=True)
