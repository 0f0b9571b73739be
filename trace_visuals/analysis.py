"""Everything the report says about one trace, from two passes over its calls: a survey, then all analyses side by side."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from trace_visuals.bins import Grid, LaneBins, Lanes
from trace_visuals.block import BlockAnalysis, PhaseBytes, analyse_block
from trace_visuals.calls import READ, STORAGE_KINDS, WRITE, CallReader, Calls, Ints
from trace_visuals.heatmap import Heat, HeatMap
from trace_visuals.lanes import LaneName, LanePlan
from trace_visuals.picks import EveryCall, SlowestCalls
from trace_visuals.requests import BLOCK_LANES, DEVICE_LANES, block_lanes, device_lanes
from trace_visuals.survey import Survey, survey
from trace_visuals.tables import FileTable, OperationTable, ProcessTable
from trace_visuals.windows import leading_phases
from tracing_tools.trace.progress import Advance
from tracing_tools.trace.reader import Trace

_SLOWEST = 50


@dataclass(frozen=True)
class Detail:
    """How finely a report shows a trace: what keeps the page's size bounded."""

    bins: int  # along the whole trace
    most_calls: int  # with at most this many calls on the timeline, each is on the page


@dataclass(frozen=True)
class Analysis:
    """One trace, analysed."""

    label: str
    trace: Trace
    zero_ns: int
    survey: Survey
    lane_names: list[LaneName]
    lanes: Lanes
    processes_left_out: int  # of the timeline's rows
    every_call: tuple[Calls, Ints] | None  # with the lane of each; None when there are too many
    ops: list[str]
    operations: OperationTable
    files: pd.DataFrame  # as FileTable.frame
    processes: pd.DataFrame  # as ProcessTable.frame
    slowest: pd.DataFrame
    reads_heat: Heat | None  # of data-set files
    writes_heat: Heat | None  # of checkpoint files
    phases: pd.DataFrame  # of the lowest rank
    block: BlockAnalysis | None  # None when block requests were not traced

    @property
    def storage_files(self) -> pd.DataFrame:
        """The rows of `files` that are the job's storage."""
        return self.files[self.files["kind"].isin(STORAGE_KINDS)]

    @property
    def checkpoints(self) -> pd.DataFrame:
        """The rows of `files` that are checkpoints written in this run, in order of time."""
        written = self.files[(self.files["kind"] == "checkpoint") & (self.files["written_bytes"] > 0)]
        return written.sort_values("first_ns", ignore_index=True)


def analyse(trace: Trace, label: str, zero_ns: int, detail: Detail, advance: Advance) -> Analysis:
    """Return the analysis of a trace; `advance` is told twice of each event."""
    surveyed = survey(trace, advance)
    begin, end = surveyed.begin_ns, surveyed.end_ns
    files, processes = trace.files(), trace.processes()
    plan = LanePlan(processes, surveyed.busiest)
    bins = LaneBins(Grid.covering(begin, end, detail.bins), len(plan.names))
    every = EveryCall() if surveyed.calls <= detail.most_calls else None
    operations = OperationTable()
    file_table, process_table = FileTable(files, surveyed.extent_bytes), ProcessTable(processes, surveyed.pids)
    reads = HeatMap(files, surveyed.extent_bytes, "dataset", READ, begin, end)
    writes = HeatMap(files, surveyed.extent_bytes, "checkpoint", WRITE, begin, end)
    slowest, phase_bytes = SlowestCalls(_SLOWEST), PhaseBytes(leading_phases(trace))
    reader = CallReader(trace)
    for calls in reader:
        for analysis in (operations, file_table, process_table, reads, writes, slowest):
            analysis.add(calls)
        phase_bytes.add(calls.start_ns, np.where(calls.storage, calls.group, -1), calls.size_bytes)
        lane = plan.by_operation(calls)
        bins.add(calls, lane)
        bins.add(calls, plan.by_process(calls))
        if every is not None:
            every.add(calls, lane)
        advance(len(calls))
    names, lanes = with_requests(trace, plan.names, bins.result())
    return Analysis(
        label, trace, zero_ns, surveyed, names, lanes, plan.left_out, every.result() if every else None, reader.ops,
        operations, file_table.frame(), process_table.frame(), slowest.frame(reader.ops, files), reads.result(), writes.result(),
        leading_phases(trace), analyse_block(trace, phase_bytes, lanes, names),
    )  # fmt: skip


def with_requests(trace: Trace, names: list[LaneName], lanes: Lanes) -> tuple[list[LaneName], Lanes]:
    """Return the lanes with those of block requests and of the accelerators, where the trace has them, at their end."""
    found = [(block_lanes(trace, lanes.grid), "block", BLOCK_LANES), (device_lanes(trace, lanes.grid), "device", DEVICE_LANES)]
    for more, section, titles in found:
        if more is not None:
            names = [*names, *(LaneName(section, f"{section} {title}", f"{section} {title}") for title in titles)]
            columns = ("calls", "busy", "in_flight", "size_bytes")
            lanes = Lanes(lanes.grid, *(np.concatenate((getattr(lanes, name), getattr(more, name))) for name in columns))
    return names, lanes
