"""Read everything that a timeline shows of one trace, in one pass over its calls."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from iotwin.common.progress import Advance
from iotwin.trace_store.fold import Combined, Events, TraceStretch, fold_all
from iotwin.trace_store.manifest import Manifest
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.bins import CallLanes, Grid, LaneBins
from iotwin.trace_visuals.call_columns import COLUMNS, GROUPS, OPEN, READ, SYNC, WRITE, CallColumns, Ints, calls_of, span_ns
from iotwin.trace_visuals.gaps import sample_gaps
from iotwin.trace_visuals.moments import Moment, moments
from iotwin.trace_visuals.report.recompute import memory_shares, recompute_shares
from iotwin.trace_visuals.report.survey import surveys
from iotwin.trace_visuals.requests import block_lanes, device_rows, part_lanes
from iotwin.trace_visuals.timeline.grouping import Grouping, group_processes
from iotwin.trace_visuals.timeline.pipeline_rows import PassRows, pass_rows
from iotwin.trace_visuals.windows import TimeWindow, leading_phases

# The operations that have a row in every group of processes. The lane of a row is group * len(ROW_GROUPS) + row.
ROW_GROUPS = (READ, WRITE, OPEN, SYNC)
_MOST_GROUPS = 12
_BINS_A_SAMPLE = 4  # least width of a sample, in bins of calls; narrower samples would look like a black band
# When samples are joined, these columns are summed; other columns are averaged.
_ADDED = ("interval_ns", "read_bytes", "written_bytes", "reads", "writes")


@dataclass(frozen=True)
class TraceTimeline:
    """The data of one trace in a timeline. Data that the trace lacks are None."""

    label: str
    manifest: Manifest
    window: TimeWindow
    groups: Grouping
    lanes: CallLanes
    phases: pd.DataFrame
    phases_inferred: bool  # True if the phases are inferred, because the job logged none
    cpu: pd.DataFrame | None
    gpu: pd.DataFrame | None
    disk: pd.DataFrame | None
    gaps: dict[str, Ints]  # times without samples in the whole trace, by kind of sample; see `sample_gaps`
    block: CallLanes | None  # a lane for each of requests.BLOCK_LANES
    device_names: tuple[str, ...]
    device: CallLanes | None  # work of the accelerators; a lane for each of device_names
    part_names: tuple[str, ...]
    parts: CallLanes  # parts of the lowest rank's steps; a lane for each of part_names
    passes: PassRows | None  # passes of a pipeline's ranks
    moments: list[Moment]  # kills and resumptions
    recompute: pd.DataFrame | None  # see `recompute_shares`, in the bins of `lanes`
    tensors: tuple[str, pd.DataFrame] | None  # see `memory_shares`, in the bins of `lanes`


class _Lanes(Combined):
    """Collects the bins of the storage calls of each group of processes."""

    columns = COLUMNS

    def __init__(self, groups: Grouping, grid: Grid, stretch: TraceStretch) -> None:
        self._groups, self.bins = groups, LaneBins(grid, len(groups.titles) * len(ROW_GROUPS))
        self._row_of_group = np.full(len(GROUPS), -1, dtype=np.int64)
        self._row_of_group[list(ROW_GROUPS)] = np.arange(len(ROW_GROUPS))
        before = calls_of(stretch.in_flight(COLUMNS))
        self.bins.begin_with(before, self._lane(before))

    def add(self, events: Events) -> None:
        """Add a batch of events."""
        calls = calls_of(events)
        self.bins.add(calls, self._lane(calls))

    def _lane(self, calls: CallColumns) -> Ints:
        row, group = self._row_of_group[calls.group], self._groups.of(calls.pid)
        return np.where((row >= 0) & (group >= 0) & calls.storage, group * len(ROW_GROUPS) + row, -1)


def load_timeline(trace: Trace, label: str, window: TimeWindow, bins: int, how: str, advance: Advance) -> TraceTimeline:
    """Return the data of the trace within `window`, in `bins` bins of time. `how` is as for `group_processes`.

    `advance` receives the number of events read.
    """
    busiest = surveys([trace])[0].busiest if how != "all" else []
    groups = group_processes(trace, how, busiest, _MOST_GROUPS)
    grid = Grid.covering(window.begin_ns, window.end_ns, bins)
    shown = pc.field("start_ns") < window.end_ns
    lanes = next(fold_all([trace], [partial(_Lanes, groups, grid)], where=shown, advance=advance)).bins.result()
    samples = {kind: trace.samples(kind) for kind in ("cpu", "gpu", "disk")}
    gaps = {
        kind: sample_gaps(table["time_ns"].to_numpy(), *span_ns(trace)) for kind, table in samples.items() if table is not None
    }
    cpu, gpu, disk = (coarser(_in_window(table, window), bins // _BINS_A_SAMPLE) for table in samples.values())
    return TraceTimeline(
        label, trace.manifest, window, groups, lanes, leading_phases(trace), trace.inferred is not None, cpu, gpu,
        disk, gaps, block_lanes(trace, grid), *device_rows(trace, grid), *part_lanes(trace, grid), pass_rows(trace, window),
        moments(trace), recompute_shares(trace, grid), memory_shares(trace, grid),
    )  # fmt: skip


def coarser(samples: pd.DataFrame | None, most: int) -> pd.DataFrame | None:
    """Return at most `most` samples, by joining neighbours: amounts are summed, shares averaged."""
    if samples is None:
        return None
    moments = np.unique(samples["time_ns"].to_numpy())
    together = -(-len(moments) // max(most, 1))
    if together == 1:
        return samples
    ends = np.append(moments[together - 1 :: together], moments[-1])
    end = ends[np.searchsorted(ends, samples["time_ns"].to_numpy())]
    keys = [name for name in ("time_ns", "device") if name in samples]
    how = {name: "sum" if name in _ADDED else "mean" for name in samples if name not in keys}
    return samples.assign(time_ns=end).groupby(keys, as_index=False, observed=True).agg(how)


def _in_window(samples: pd.DataFrame | None, window: TimeWindow) -> pd.DataFrame | None:
    """Return the samples in the window, and those at the next time after it, since their intervals may begin in the window.

    Returns None if there are no such samples.
    """
    if samples is None:
        return None
    after = samples.loc[samples["time_ns"] > window.end_ns, "time_ns"]
    last = after.min() if len(after) else window.end_ns
    keep = (samples["time_ns"] >= window.begin_ns) & (samples["time_ns"] <= last)
    return samples[keep] if keep.any() else None
