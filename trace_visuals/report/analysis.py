"""Analyse traces for the report. Their calls are read twice: for a Survey of each trace, and then for all analyses at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from iotwin.common.progress import Advance
from iotwin.trace_store.figures.demand import Demand, demand_of
from iotwin.trace_store.fold import Combined, EventDecoder, Events, TraceStretch, fold_all
from iotwin.trace_store.parallel_fold import Workers
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import FILE_KINDS
from iotwin.trace_visuals.bins import CallLanes, Grid, LaneBins
from iotwin.trace_visuals.call_columns import COLUMNS, READ, STORAGE_KINDS, WRITE, CallColumns, Ints, calls_of
from iotwin.trace_visuals.report.block_requests import BlockAnalysis, PhaseBytes, analyse_block
from iotwin.trace_visuals.report.call_tables import OperationTable, ProcessTable, ReportedFiles
from iotwin.trace_visuals.report.checkpoint_writes import ReadsDuringCheckpoints, checkpoint_writes_ns
from iotwin.trace_visuals.report.heatmap import Heat, HeatMap
from iotwin.trace_visuals.report.slowest_calls import EveryCall, SlowestCalls
from iotwin.trace_visuals.report.survey import Survey, surveys
from iotwin.trace_visuals.report.timeline_rows import LaneName, LanePlan
from iotwin.trace_visuals.requests import (
    BLOCK_LANES,
    CHECKPOINT_PARTS,
    DEVICE_LANES,
    block_lanes,
    device_lanes,
    part_lanes,
    pass_lanes,
)
from iotwin.trace_visuals.windows import leading_phases

_SLOWEST = 50


@dataclass(frozen=True)
class Detail:
    """Limits on the detail that a report holds of one trace, which bound the page's size."""

    bins: int  # number of bins of time along the whole trace
    most_calls: int  # if the timeline has at most this many calls, the page contains each call


@dataclass(frozen=True)
class Analysis:
    """The results of all analyses of one trace."""

    label: str
    trace: Trace
    zero_ns: int
    survey: Survey
    lane_names: list[LaneName]
    lanes: CallLanes
    processes_left_out: int  # number of processes without a row in the timeline
    hosts_left_out: int  # number of hosts without a row in the timeline
    every_call: tuple[CallColumns, Ints] | None  # all calls, and the lane of each; None if too many for the page
    ops: list[str]
    operations: OperationTable
    files: pd.DataFrame  # the table of ReportedFiles.frame
    processes: pd.DataFrame  # the table of ProcessTable.frame
    slowest: pd.DataFrame
    reads_heat: Heat | None  # bytes read from data-set files; None if there are none
    writes_heat: Heat | None  # bytes written to checkpoint files; None if there are none
    phases: pd.DataFrame  # phases of the lowest rank
    block: BlockAnalysis | None  # None if block requests were not traced
    reads_during_checkpoints: ReadsDuringCheckpoints

    @cached_property
    def demand(self) -> Demand | None:
        """The rates at which the job read its data during training; None if it read no data in that time."""
        return demand_of(self.trace)

    def on_storage(self, name: str) -> int:
        """Return the sum of a column of `files` over the files whose kind is one of STORAGE_KINDS."""
        return int(self.files.loc[self.files["kind"].isin(STORAGE_KINDS), name].sum())

    @property
    def read_data(self) -> pd.DataFrame:
        """Columns of the rows of `files` that are data-set files and were read."""
        read = (self.files["kind"] == "dataset") & (self.files["reads"] > 0)
        return self.files.loc[read, ["read_bytes", "extent_bytes"]]

    @property
    def checkpoints(self) -> pd.DataFrame:
        """The rows of `files` that are checkpoints written in this run, in order of time."""
        written = self.files[(self.files["kind"] == "checkpoint") & (self.files["written_bytes"] > 0)]
        return written.sort_values("first_ns", ignore_index=True)


class _Analyses(Combined):
    """Collects all analyses over the calls of one stretch of a trace, or of several successive stretches."""

    columns = COLUMNS

    def __init__(self, surveyed: Survey, detail: Detail, by_path: Mapping[str, Ints], stretch: TraceStretch) -> None:
        trace, begin, end = stretch.trace, surveyed.begin_ns, surveyed.end_ns
        self._ops, self._plan = surveyed.ops, LanePlan(trace.processes(), surveyed.busiest)
        self._keep = surveyed.calls <= detail.most_calls  # each call, for the page
        self.operations, self.files, self.processes = (
            OperationTable(),
            ReportedFiles(stretch.decoder.files),
            ProcessTable(surveyed.pids),
        )
        self.reads = HeatMap(by_path["dataset"], surveyed.extent_bytes, READ, begin, end)
        self.writes = HeatMap(by_path["checkpoint"], surveyed.extent_bytes, WRITE, begin, end)
        self.reads_during_checkpoints = ReadsDuringCheckpoints(checkpoint_writes_ns(trace))
        self.slowest, self.phase_bytes = SlowestCalls(_SLOWEST), PhaseBytes(leading_phases(trace))
        self.bins, self.every = LaneBins(Grid.covering(begin, end, detail.bins), len(self._plan.names)), EveryCall()
        before = calls_of(stretch.in_flight(COLUMNS), self._ops)
        for lane in self._plan.lanes(before):
            self.bins.begin_with(before, lane)

    def add(self, events: Events) -> None:
        """Add a batch of events."""
        calls = calls_of(events, self._ops)
        for analysis in (
            self.operations,
            self.files,
            self.processes,
            self.reads,
            self.writes,
            self.slowest,
            self.reads_during_checkpoints,
        ):
            analysis.add(calls)
        self.phase_bytes.add(calls.start_ns, np.where(calls.storage, calls.group, -1), calls.size_bytes)
        lanes = self._plan.lanes(calls)
        for lane in lanes:
            self.bins.add(calls, lane)
        if self._keep:
            self.every.add(calls, lanes[0])


def analyse(
    traces: Sequence[Trace], labels: Sequence[str], zeros_ns: Sequence[int], detail: Detail, each: Workers, advance: Advance
) -> list[Analysis]:
    """Return the analyses of the traces. `each` maps a function over stretches. `advance` counts each event twice."""
    surveyed = surveys(traces, each, advance)
    makes = [partial(_Analyses, survey, detail, _by_path(trace)) for trace, survey in zip(traces, surveyed, strict=True)]
    found = fold_all(traces, makes, each, advance=advance)
    return list(map(partial(_analysis, detail), traces, labels, zeros_ns, surveyed, found))  # one collector at a time


def _by_path(trace: Trace) -> dict[str, Ints]:
    """Return the ids of the files of each kind with a heat map, in order of path."""
    kinds, paths = EventDecoder.of(trace).kind_of_file[:-1], trace.table("files", ["path"])["path"]
    own = {kind: np.flatnonzero(kinds == FILE_KINDS.index(kind)) for kind in ("dataset", "checkpoint")}
    return {kind: ids[np.asarray(pc.sort_indices(paths.take(pa.array(ids))))] for kind, ids in own.items()}


def _analysis(detail: Detail, trace: Trace, label: str, zero_ns: int, surveyed: Survey, found: _Analyses) -> Analysis:
    processes = trace.processes()
    plan = LanePlan(processes, surveyed.busiest)
    names, lanes = with_requests(trace, plan.names, found.bins.result())
    every = found.every.result() if surveyed.calls <= detail.most_calls else None
    return Analysis(
        label, trace, zero_ns, surveyed, names, lanes, plan.processes_left_out, plan.hosts_left_out, every, surveyed.ops,
        found.operations, found.files.frame(EventDecoder.of(trace).kind_of_file, surveyed.extent_bytes),
        found.processes.frame(processes), found.slowest.frame(surveyed.ops, trace),
        found.reads.result(), found.writes.result(), leading_phases(trace),
        analyse_block(trace, found.phase_bytes, lanes, names), found.reads_during_checkpoints,
    )  # fmt: skip


def with_requests(trace: Trace, names: list[LaneName], lanes: CallLanes) -> tuple[list[LaneName], CallLanes]:
    """Return `names` and `lanes` with further lanes for block requests, accelerators and parts of steps that the trace has."""
    grid = lanes.grid
    part_names, parts = part_lanes(trace, grid)
    pass_names, passes = pass_lanes(trace, grid)
    found: list[tuple[CallLanes | None, str, tuple[str, ...]]] = [
        (block_lanes(trace, grid), "block", BLOCK_LANES),
        (device_lanes(trace, grid), "device", DEVICE_LANES),
        (parts if part_names else None, "part", part_names),
        (passes if pass_names else None, "part", pass_names),
    ]
    for more, section, titles in found:
        if more is not None:
            whose = [_titled(section, title) for title in titles]
            names = [*names, *(LaneName(section, name, name) for name in whose)]
            columns = ("calls", "busy", "in_flight", "size_bytes")
            lanes = CallLanes(lanes.grid, *(np.concatenate((getattr(lanes, name), getattr(more, name))) for name in columns))
    return names, lanes


def _titled(section: str, title: str) -> str:
    if title.startswith("rank "):
        return title
    return f"{'checkpoint' if title in CHECKPOINT_PARTS else section} {title}"
