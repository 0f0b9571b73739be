"""Spread block requests, accelerators' work and parts of steps over bins of time."""

import numpy as np
import pandas as pd

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.bins import CallLanes, Grid, LaneBins, RequestIntervals

BLOCK_LANES = ("read", "write")
DEVICE_LANES = ("kernel", "copy")
# parts that a job logs of a checkpoint concurrent with training: writing, copying, waiting
CHECKPOINT_PARTS = ("persist", "snapshot", "stall")
_MOST_PARTS = 6
_MOST_RANKS = 16
_MOST_DEVICES = 8


def block_lanes(trace: Trace, grid: Grid) -> CallLanes | None:
    """Return block reads and block writes as two lanes of bins, from issue to completion; None if they were not traced."""
    block = trace.block()
    return None if block is None else _binned(block, "issue_ns", block["op"], BLOCK_LANES, grid)


def device_lanes(trace: Trace, grid: Grid) -> CallLanes | None:
    """Return GPU kernels and copies as two lanes of bins of time; None if the trace has none."""
    gpu = trace.gpu()
    if gpu is None or not gpu["kind"].isin(DEVICE_LANES).any():
        return None
    return _binned(gpu, "start_ns", gpu["kind"], DEVICE_LANES, grid)


def device_rows(trace: Trace, grid: Grid) -> tuple[tuple[str, ...], CallLanes | None]:
    """Return names and lanes of GPU kernels, one for each GPU if several were used, and of copies.

    The name of a GPU's kernels may end with its index: ``kernel 0``. The lanes are None if the trace has no GPU work.
    """
    gpu = trace.gpu()
    kernels = None if gpu is None else gpu["kind"] == "kernel"
    used = [] if gpu is None or kernels is None else sorted(gpu.loc[kernels, "device"].dropna().unique())
    if gpu is None or not 1 < len(used) <= _MOST_DEVICES:
        return DEVICE_LANES, device_lanes(trace, grid)
    names = (*(f"kernel {device:.0f}" for device in used), "copy")
    kind = gpu["kind"].astype(str)
    own = kind.where(kind != "kernel", "kernel " + gpu["device"].fillna(-1).astype(int).astype(str))
    return names, _binned(gpu, "start_ns", own, names, grid)


def part_lanes(trace: Trace, grid: Grid) -> tuple[tuple[str, ...], CallLanes]:
    """Return names and lanes of the parts of steps that the lowest rank logged.

    First come the parts in which the rank spent most time, in order of first occurrence, then parts of checkpoints.
    """
    parts = trace.step_parts()
    if parts is None:
        return (), LaneBins(grid, 0).result()
    leading = parts[parts["rank"].fillna(0) == parts["rank"].fillna(0).min()]
    name = leading["name"].astype(str)
    longest = leading["duration_ns"].groupby(name).sum().drop(list(CHECKPOINT_PARTS), errors="ignore").nlargest(_MOST_PARTS).index
    names = tuple(each for each in name.unique() if each in longest)
    names += tuple(each for each in CHECKPOINT_PARTS if (name == each).any())
    return names, _binned(leading.assign(size_bytes=0), "start_ns", name, names, grid)


def pipeline_passes(trace: Trace) -> "pd.DataFrame | None":
    """Return the passes of a pipeline: columns of schema.PARTS whose `step` is the minibatch, `kind` (F or B), and `lane`.

    `lane` is the title of the rank's row for passes of the kind. Returns None if no part has these names and a stage.
    """
    parts = trace.step_parts()
    if parts is None:
        return None
    name = parts["name"].astype(str)
    passes = parts[name.isin(("f", "b")) & parts[["stage", "step", "rank"]].notna().all(axis=1)]
    if not len(passes):
        return None
    kind, rank, stage = name.str.upper(), passes["rank"].astype(int).astype(str), passes["stage"].astype(int).astype(str)
    return passes.assign(kind=kind, lane="rank " + rank + ", stage " + stage + ": " + kind)


def pass_lanes(trace: Trace, grid: Grid) -> tuple[tuple[str, ...], CallLanes]:
    """Return names and lanes of the forward and the backward passes of each rank of a pipeline, for at most 16 ranks."""
    passes = pipeline_passes(trace)
    if passes is None:
        return (), LaneBins(grid, 0).result()
    ranks = np.unique(passes["rank"].to_numpy())[:_MOST_RANKS]
    shown = passes[passes["rank"].isin(ranks)].drop_duplicates("lane").sort_values(["rank", "kind"], ascending=[True, False])
    names = tuple(shown["lane"])[: 2 * _MOST_RANKS]
    return names, _binned(passes.assign(size_bytes=0), "start_ns", passes["lane"], names, grid)


def _binned(table: pd.DataFrame, start: str, kind: "pd.Series[str]", names: tuple[str, ...], grid: Grid) -> CallLanes:
    lane = np.full(len(table), -1, dtype=np.int64)
    for index, name in enumerate(names):
        lane[(kind == name).to_numpy()] = index
    begin = table[start].to_numpy(dtype=np.int64)
    # If the trace ended before a request, its duration is unknown and counts as 0.
    duration = table["duration_ns"].fillna(0).to_numpy(dtype=np.int64)
    bins = LaneBins(grid, len(names))
    bins.add(RequestIntervals(begin, begin + duration, table["size_bytes"].fillna(0).to_numpy(dtype=np.int64)), lane)
    return bins.result()
