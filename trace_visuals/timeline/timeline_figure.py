"""Draws the timeline figure: phases, samples, calls, requests and rates of one or more traces on one time axis."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from iotwin.common.errors import UsageError
from iotwin.common.files import check_output, check_type
from iotwin.common.progress import progress
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.call_columns import GROUPS, READ, SYNC, WRITE
from iotwin.trace_visuals.labels import command_line, failure_line, loss_line, machine_line, plain, trace_labels
from iotwin.trace_visuals.requests import BLOCK_LANES
from iotwin.trace_visuals.style import (
    BLACK,
    CPU_COLOURS,
    FIGURE_RC,
    GREEN,
    GREY,
    GROUP_COLOURS,
    MOMENT_COLOURS,
    MOMENT_MARKERS,
    PASS_COLOURS,
    PHASE_COLOURS,
    PICTURE_TYPES,
    PURPLE,
    RECOMPUTE_COLOURS,
    VERMILLION,
    Origin,
    save_figure,
)
from iotwin.trace_visuals.timeline import rows as draw_row
from iotwin.trace_visuals.timeline.plotted_data import identities, write_plotted_data
from iotwin.trace_visuals.timeline.read_timeline import ROW_GROUPS, TraceTimeline, load_timeline
from iotwin.trace_visuals.windows import View, choose_view

_SECOND = 1e9
_DPI = 250
_STRIP_IN, _GRAPH_IN, _LOW_GRAPH_IN, _PHASES_IN, _GAP_IN = 0.2, 0.42, 0.3, 0.17, 0.055
_HEAD_IN, _GROUP_HEAD_IN, _BLOCK_GAP_IN = 0.36, 0.14, 0.16
_AXIS_IN, _LEGEND_ROW_IN, _NOTE_IN = 0.34, 0.14, 0.17
_LEGEND_LETTER_IN, _LEGEND_HANDLE_IN = 0.047, 0.34
_COMMAND_LETTER_IN = 0.062  # inches of a typical letter of 7 points


@dataclass(frozen=True)
class Form:
    """The shape of a picture: its width (a page of text, or one of two columns), and whether it has titles."""

    short: bool = False
    paper: bool = False  # True for a picture without titles and without the CPU row
    legend: bool = True
    origin: Origin | None = None  # for a paper's picture: its origin, for the metadata

    @property
    def width_in(self) -> float:
        """Width of the picture in inches."""
        return 3.5 if self.short else 7.2

    @property
    def left_in(self) -> float:
        """Width in inches of the left margin, which has the names of rows."""
        return 0.65 if self.short else 0.7

    @property
    def plot_in(self) -> float:
        """Width of the time axis in inches."""
        return self.width_in - self.left_in - (0.85 if self.short else 1.15)

    @property
    def columns(self) -> int:
        """Number of bins on the time axis: about one per pixel of a PNG."""
        return round(self.plot_in * _DPI)

    @property
    def head_in(self) -> float:
        """Height of a trace's title in inches."""
        return 0.0 if self.paper else _HEAD_IN


def plot_timeline(
    paths: list[Path],
    output: Path,
    zoom: str | None = None,
    how: str = "all",
    form: Form | None = None,
    legend: Path | None = None,
    open_trace: Callable[[Path], Trace] = Trace,
) -> list[TraceTimeline]:
    """Draw the traces at `paths` into the picture `output`. Return the data drawn of each trace.

    `zoom` is as for `windows.choose_view`, `how` as for `group_processes`. `legend`: file for the legend; if None, the legend is
    in the picture. For a picture with an origin, also writes the data to a .csv of the same name. Raises UsageError if a file
    type or the zoom is unknown, and IotwinError if a trace cannot be read or a file cannot be written.
    """
    for path in (output, legend):
        if path is not None:
            check_type(path, PICTURE_TYPES)
            check_output(path)
    if legend is not None and legend.resolve() == output.resolve():
        raise UsageError(f"{legend} cannot hold both the picture and its legend; give the legend another name")
    form = form or Form(legend=legend is None)
    traces = [open_trace(path) for path in paths]
    view = choose_view(traces, zoom)
    begin, end = view.limits_s()
    bin_ns = (end - begin) * _SECOND / form.columns
    blocks = []
    with progress("timeline: reading calls", sum(trace.manifest.events for trace in traces), "calls") as advance:
        for trace, label, window in zip(traces, trace_labels(paths), view.windows, strict=True):
            bins = max(1, round((window.end_ns - window.begin_ns) / bin_ns))
            blocks.append(load_timeline(trace, label, window, bins, how, advance))
    with matplotlib.rc_context(FIGURE_RC):
        origin = form.origin and form.origin._replace(subject=identities(paths))
        save_figure(draw(blocks, view, form), output, _DPI, origin=origin)
        if legend is not None:
            save_figure(_draw_legend(blocks, view, form), legend, _DPI, origin=origin)
    if origin is not None:
        write_plotted_data(blocks, output.with_suffix(".csv"))
    return blocks


@dataclass(frozen=True)
class _TimelineRow:
    """One row of a trace in the picture: its height, and the function that draws it."""

    height_in: float
    draw: Callable[[Axes], None]
    head: str = ""  # if a group of processes begins with this row, its title


def draw(blocks: list[TraceTimeline], view: View, form: Form) -> Figure:
    """Return the figure. `blocks` has the data of the traces, which are drawn one below the other."""
    shared = _shared(blocks)
    spelt = draw_row.spellings(blocks, view.limits_s(), form.plot_in)
    plans = [_plan(block, shared, form, spelt) for block in blocks]
    legend = _legend_rows(_handles(spelt, shared, form), form.width_in) if form.legend else []
    foot = _AXIS_IN - _BLOCK_GAP_IN + _LEGEND_ROW_IN * len(legend) + (_NOTE_IN if form.legend else 0)
    height = foot + sum(_block_height(rows, form) for rows in plans) + (0 if not form.paper else 0.06)
    figure = Figure(figsize=(form.width_in, height))
    top = height - (0.06 if form.paper else 0)
    axes: list[Axes] = []
    for block, rows in zip(blocks, plans, strict=True):
        if not form.paper:
            _write_head(figure, block, top / height, form)
        top -= form.head_in
        for row in rows:
            if row.head:
                top -= _GROUP_HEAD_IN
                place = (form.left_in / form.width_in, (top + 0.02) / height)
                figure.text(*place, plain(row.head, 40 if form.short else 80), fontsize=6.5, color="#444444")
            top -= row.height_in
            axes.append(_add_axes(figure, top, row, block, view, form))
            top -= _GAP_IN
        top -= _BLOCK_GAP_IN
    axes[-1].tick_params(axis="x", labelbottom=True, bottom=True)
    axes[-1].set_xlabel(view.axis_label, labelpad=2)
    if form.legend:
        _write_legend(figure, legend, height, _NOTE_IN)
        _write_note(figure, blocks, form, height)
    return figure


def _block_height(rows: list[_TimelineRow], form: Form) -> float:
    return form.head_in + _BLOCK_GAP_IN + sum(row.height_in + _GAP_IN + _GROUP_HEAD_IN * bool(row.head) for row in rows)


@dataclass(frozen=True)
class _Shared:
    """Rows and scales that are equal for all traces of a picture, so that the traces can be compared by eye."""

    moments: list[str]  # kinds of moments that are marked
    rows: list[int]  # indices into ROW_GROUPS: reads, writes and opens, and syncs if any trace has one
    cpu: bool
    gpu: bool
    device: bool
    disk: bool
    block: bool
    passes: bool
    recompute: bool
    tensors: bool
    peak_bytes_per_s: float
    peak_disk_bytes_per_s: float
    peak_in_flight: float
    peak_gpu_bytes: float


def _shared(blocks: list[TraceTimeline]) -> _Shared:
    syncs = any(block.lanes.calls[ROW_GROUPS.index(SYNC) :: len(ROW_GROUPS)].any() for block in blocks)
    rows = [row for row, group in enumerate(ROW_GROUPS) if group != SYNC or syncs]
    peak = max(float(rate.max(initial=0)) for block in blocks for rate in draw_row.throughput(block).values())
    flight = max(float(count.max(initial=0)) for block in blocks for count in draw_row.in_flight(block).values())
    disks = [found[1] for found in map(draw_row.disk_rates, blocks) if found is not None]
    disk_peak = max((float(rate.max(initial=0)) for rates in disks for rate in rates.values()), default=0.0)
    return _Shared(
        [what for what in MOMENT_COLOURS if any(each.what == what for block in blocks for each in block.moments)],
        rows, any(b.cpu is not None for b in blocks), any(b.gpu is not None for b in blocks),
        any(b.device is not None for b in blocks), bool(disk_peak), any(b.block is not None for b in blocks),
        any(b.passes is not None for b in blocks), any(b.recompute is not None for b in blocks),
        any(b.tensors is not None for b in blocks), peak, disk_peak,
        flight, max(draw_row.gpu_memory_peak(block.gpu) for block in blocks),
    )  # fmt: skip


def _plan(block: TraceTimeline, shared: _Shared, form: Form, spelt: Mapping[str, int]) -> list[_TimelineRow]:
    rows = [_TimelineRow(_PHASES_IN, lambda ax: draw_row.draw_phases(ax, block, form.plot_in, spelt))]
    if shared.cpu and not form.paper:
        rows.append(_TimelineRow(_GRAPH_IN, lambda ax: draw_row.draw_cpu(ax, block)))
    if shared.gpu:
        rows.append(_TimelineRow(_GRAPH_IN, lambda ax: draw_row.draw_gpu(ax, block)))
    if shared.peak_gpu_bytes:
        rows.append(_TimelineRow(_LOW_GRAPH_IN, lambda ax: draw_row.draw_gpu_memory(ax, block, shared.peak_gpu_bytes)))
    if shared.recompute:
        rows.append(_TimelineRow(_LOW_GRAPH_IN, lambda ax: draw_row.draw_recompute(ax, block)))
    if shared.tensors:
        rows.append(_TimelineRow(_LOW_GRAPH_IN, lambda ax: draw_row.draw_tensors(ax, block)))
    if shared.device:
        rows += [_strip(draw_row.draw_device, block, lane) for lane in range(len(block.device_names))]
    for lane in range(len(block.passes.ranks) if block.passes else 0):
        rows.append(_TimelineRow(_STRIP_IN, partial(draw_row.draw_rank_passes, block=block, lane=lane, width_in=form.plot_in)))
    rows += [_strip(draw_row.draw_part, block, lane) for lane in range(len(block.part_names))]
    for group, title in enumerate(block.groups.titles):
        lanes = [group * len(ROW_GROUPS) + row for row in shared.rows]
        # If there are several groups of processes, empty rows are left out. A single group has all rows, so that traces' rows
        # align.
        lanes = [lane for lane in lanes if not title or block.lanes.calls[lane].any() or block.lanes.busy[lane].any()]
        rows += [_strip(draw_row.draw_calls, block, lane, title if not index else "") for index, lane in enumerate(lanes)]
    if shared.block:
        head = "whole job" if block.groups.titles[0] else ""
        rows += [_strip(draw_row.draw_block, block, lane, head if not lane else "") for lane in range(len(BLOCK_LANES))]
    if shared.disk:
        rows.append(_TimelineRow(_LOW_GRAPH_IN, lambda ax: draw_row.draw_disk(ax, block, shared.peak_disk_bytes_per_s)))
    rows.append(_TimelineRow(_LOW_GRAPH_IN, lambda ax: draw_row.draw_in_flight(ax, block, shared.peak_in_flight)))
    return [*rows, _TimelineRow(_GRAPH_IN, lambda ax: draw_row.draw_throughput(ax, block, shared.peak_bytes_per_s))]


def _strip(drawing: Callable[[Axes, TraceTimeline, int], None], block: TraceTimeline, lane: int, head: str = "") -> _TimelineRow:
    return _TimelineRow(_STRIP_IN, lambda ax: drawing(ax, block, lane), head)


def _add_axes(figure: Figure, bottom_in: float, row: _TimelineRow, block: TraceTimeline, view: View, form: Form) -> Axes:
    width, height = form.width_in, figure.get_figheight()
    ax = figure.add_axes((form.left_in / width, bottom_in / height, form.plot_in / width, row.height_in / height))
    begin, end = view.limits_s()
    ax.set_xlim(begin, end)
    ax.tick_params(axis="x", labelbottom=False, bottom=False, length=2, pad=1.5)
    ax.tick_params(axis="y", length=1.5, pad=1.5)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#777777")
    first, last = block.window.seconds()
    for nothing in ((begin, first), (last, end)):
        if nothing[1] - nothing[0] > (end - begin) / form.columns:
            ax.axvspan(*nothing, facecolor="#EFEFEF", edgecolor="none", zorder=0)
    row.draw(ax)
    return ax


def _write_head(figure: Figure, block: TraceTimeline, top: float, form: Form) -> None:
    manifest, height_in = block.manifest, figure.get_figheight()
    command = " · ".join(part for part in (manifest.workload, command_line(manifest)) if part)
    title = figure.text(
        0.01, top - 0.03 / height_in, plain(block.label, 30 if form.short else 60), fontsize=8.5, fontweight="bold", va="top"
    )
    title_end = title.get_window_extent().x1 / figure.bbox.width + 0.012
    flaw = "; ".join(part for part in (failure_line(manifest), loss_line(manifest)) if part)
    flaw_begin = 0.99
    if flaw:
        flaw, place = plain(flaw, 44 if form.short else 110), (0.99, top - 0.03 / height_in)
        words = figure.text(*place, flaw, fontsize=6.2, va="top", ha="right", color=VERMILLION, fontweight="bold")
        flaw_begin = words.get_window_extent().x0 / figure.bbox.width - 0.012
    room = int((flaw_begin - title_end) * form.width_in / _COMMAND_LETTER_IN)
    if room > 1:
        figure.text(title_end, top - 0.038 / height_in, plain(command, min(room, 78)), fontsize=7, va="top", color="#333333")
    most = 74 if form.short else 150
    figure.text(0.01, top - 0.19 / height_in, plain(machine_line(manifest), most), fontsize=6.2, va="top", color="#555555")


def _handles(phases: Iterable[str], shared: _Shared, form: Form) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        *(Patch(facecolor=PHASE_COLOURS[name], label=name) for name in phases),
        Patch(facecolor=GREY, label="height: share of time with a call in flight"),
        Patch(facecolor=(*to_rgb(GREY), 0.3), label="pale: some call starts or is in flight, darker for more"),
    ]
    if shared.passes:
        handles += [Patch(facecolor=colour, label=f"{kind} with its minibatch") for kind, colour in PASS_COLOURS.items()]
    marks: dict[str, Any] = {"linestyle": "none", "markersize": 4}
    for each in shared.moments:
        handles.append(Line2D([], [], color=MOMENT_COLOURS[each], marker=MOMENT_MARKERS[each], label=each, **marks))
    if shared.cpu and not form.paper:
        handles += [Patch(facecolor=colour, label=f"CPU {name}") for name, colour in CPU_COLOURS.items()]
        handles.append(Line2D([], [], color=BLACK, linewidth=0.8, label="CPU, this job"))
    if shared.gpu:
        handles += [Line2D([], [], color=GREEN, label="GPU SM"), Line2D([], [], color=PURPLE, linestyle="--", label="GPU memory")]
    if shared.recompute:
        handles += [Patch(facecolor=colour, label=f"compute: {name}") for name, colour in RECOMPUTE_COLOURS.items()]
    handles += [Line2D([], [], color=GROUP_COLOURS[GROUPS[group]], label=GROUPS[group]) for group in (READ, WRITE)]
    if shared.block:
        handles.append(Line2D([], [], color=BLACK, linestyle=":", label="block requests"))
    return handles


def _legend_rows(handles: Sequence[Patch | Line2D], width_in: float) -> list[list[Patch | Line2D]]:
    """Return the legend's handles in rows that are at most `width_in` inches wide."""
    rows: list[list[Patch | Line2D]] = [[]]
    used = 0.0
    for handle in handles:
        wide = _LEGEND_HANDLE_IN + _LEGEND_LETTER_IN * len(str(handle.get_label()))
        if rows[-1] and used + wide > width_in:
            rows.append([])
            used = 0.0
        rows[-1].append(handle)
        used += wide
    return rows


def _write_legend(figure: Figure, rows: list[list[Patch | Line2D]], height_in: float, bottom_in: float) -> None:
    for index, row in enumerate(reversed(rows)):
        figure.legend(handles=row, loc="lower center", bbox_to_anchor=(0.5, (bottom_in + index * _LEGEND_ROW_IN) / height_in),
                      ncols=len(row), frameon=False, handlelength=1.1, columnspacing=1.0, handletextpad=0.4, fontsize=6.2,
                      borderpad=0)  # fmt: skip


def _draw_legend(blocks: list[TraceTimeline], view: View, form: Form) -> Figure:
    shared, phases = _shared(blocks), draw_row.spellings(blocks, view.limits_s(), form.plot_in)
    rows = _legend_rows(_handles(phases, shared, form), form.width_in)
    height = _LEGEND_ROW_IN * len(rows) + 0.06
    figure = Figure(figsize=(form.width_in, height))
    _write_legend(figure, rows, height, 0.03)
    return figure


def _write_note(figure: Figure, blocks: list[TraceTimeline], form: Form, height_in: float) -> None:
    notes = "; ".join(dict.fromkeys(block.groups.note for block in blocks if block.groups.note))
    text = "Rows show calls on data-set, checkpoint and log files." + (f" Processes: {notes}." if notes else "")
    figure.text(
        0.5, 0.06 / height_in, plain(text, 80 if form.short else 160), ha="center", va="bottom", fontsize=6.2, color="#555555"
    )
