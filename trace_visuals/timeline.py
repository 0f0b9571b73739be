"""The timeline figure: phases, CPU, GPU, calls and throughput of each trace above one another on one time axis."""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from trace_visuals.bins import Floats
from trace_visuals.calls import GROUPS, READ, SYNC, WRITE, Ints
from trace_visuals.labels import command_line, counted, loss_line, machine_line, plain, trace_labels
from trace_visuals.style import BLACK, CPU_COLOURS, FIGURE_RC, GREEN, GREY, GROUP_COLOURS, PHASE_COLOURS, PURPLE, VERMILLION
from trace_visuals.timeline_data import ROW_GROUPS, TraceTimeline, load_timeline
from trace_visuals.windows import View, choose_view
from tracing_tools.trace.output import check_output, check_type, write_whole
from tracing_tools.trace.progress import progress
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.units import format_duration, format_size

FILE_TYPES = (".png", ".svg", ".pdf")

_SECOND = 1e9
_COLUMNS = 1280  # bins across the axis: about one per pixel of a PNG
_DPI = 250
_WIDTH_IN, _LEFT_IN, _RIGHT_IN = 7.2, 0.62, 1.12
_STRIP_IN, _GRAPH_IN, _PHASES_IN, _GAP_IN = 0.2, 0.42, 0.17, 0.055
_HEAD_IN, _GROUP_HEAD_IN, _BLOCK_GAP_IN, _FOOT_IN = 0.36, 0.14, 0.16, 0.72
_MOST_STEPS = 300  # more step marks than this would be a grey blur


def plot_timeline(paths: list[Path], output: Path, zoom: str | None = None, how: str = "all") -> list[TraceTimeline]:
    """Draw the traces at `paths` into `output` (PNG, SVG or PDF by its name) and return what was drawn.

    `zoom` is as `windows.choose_view` takes it, `how` one of `grouping.GROUPINGS`. Raises UsageError for an unknown file type or
    zoom, IotwinError for an unreadable trace or an unwritable directory.
    """
    check_type(output, FILE_TYPES)
    check_output(output)
    traces = [Trace(path) for path in paths]
    view = choose_view(traces, zoom)
    begin, end = view.limits_s()
    bin_ns = (end - begin) * _SECOND / _COLUMNS
    blocks = []
    with progress("timeline: reading calls", sum(trace.manifest.events for trace in traces), "calls") as advance:
        for trace, label, window in zip(traces, trace_labels(paths), view.windows, strict=True):
            bins = max(1, round((window.end_ns - window.begin_ns) / bin_ns))
            blocks.append(load_timeline(trace, label, window, bins, how, advance))
    with matplotlib.rc_context(FIGURE_RC):
        write_whole(output, _render(draw(blocks, view), output.suffix.lower()[1:]))
    return blocks


def _render(figure: Figure, file_type: str) -> bytes:
    # The date would make equal pictures differ.
    metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[file_type]
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes; that is no reason to talk about fonts on the terminal.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(buffer, format=file_type, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


@dataclass(frozen=True)
class _Row:
    """One row of a block: its height, and what draws it into its axes."""

    height_in: float
    draw: Callable[[Axes], None]
    head: str = ""  # the title of the group of processes that starts here


def draw(blocks: list[TraceTimeline], view: View) -> Figure:
    """Return the figure of the blocks, one above the other."""
    plans = [_plan(block, _shared(blocks)) for block in blocks]
    height = _FOOT_IN + sum(_block_height(rows) for rows in plans)
    figure = Figure(figsize=(_WIDTH_IN, height))
    top = height
    axes: list[Axes] = []
    for block, rows in zip(blocks, plans, strict=True):
        _write_head(figure, block, top / height, height)
        top -= _HEAD_IN
        for row in rows:
            if row.head:
                top -= _GROUP_HEAD_IN
                figure.text(_LEFT_IN / _WIDTH_IN, (top + 0.02) / height, plain(row.head, 80), fontsize=6.5, color="#444444")
            top -= row.height_in
            axes.append(_add_axes(figure, top, row, block, view, height))
            top -= _GAP_IN
        top -= _BLOCK_GAP_IN
    axes[-1].tick_params(axis="x", labelbottom=True, bottom=True)
    axes[-1].set_xlabel(view.axis_label, labelpad=2)
    _write_foot(figure, blocks, height)
    return figure


def _block_height(rows: list[_Row]) -> float:
    return _HEAD_IN + _BLOCK_GAP_IN + sum(row.height_in + _GAP_IN + _GROUP_HEAD_IN * bool(row.head) for row in rows)


@dataclass(frozen=True)
class _Shared:
    """What all blocks have in common, so that they can be compared by eye."""

    rows: list[int]  # indices into ROW_GROUPS: reads, writes and opens always, syncs where any trace has one
    cpu: bool
    gpu: bool
    peak_bytes_per_s: float


def _shared(blocks: list[TraceTimeline]) -> _Shared:
    syncs = any(block.lanes.calls[ROW_GROUPS.index(SYNC) :: len(ROW_GROUPS)].any() for block in blocks)
    rows = [row for row, group in enumerate(ROW_GROUPS) if group != SYNC or syncs]
    peak = max(float(rate.max(initial=0)) for block in blocks for rate in _throughput(block).values())
    return _Shared(rows, any(b.cpu is not None for b in blocks), any(b.gpu is not None for b in blocks), peak)


def _throughput(block: TraceTimeline) -> dict[str, Floats]:
    """Return bytes per second in each bin, by 'read' and 'write', over all groups of processes."""
    per_s = block.lanes.size_bytes * (_SECOND / block.lanes.grid.width)
    rows = {GROUPS[group]: row for row, group in enumerate(ROW_GROUPS) if group in (READ, WRITE)}
    return {name: per_s[row :: len(ROW_GROUPS)].sum(axis=0) for name, row in rows.items()}


def _plan(block: TraceTimeline, shared: _Shared) -> list[_Row]:
    rows = [_Row(_PHASES_IN, lambda ax: _draw_phases(ax, block))]
    if shared.cpu:
        rows.append(_Row(_GRAPH_IN, lambda ax: _draw_cpu(ax, block)))
    if shared.gpu:
        rows.append(_Row(_GRAPH_IN, lambda ax: _draw_gpu(ax, block)))
    for group, title in enumerate(block.groups.titles):
        lanes = [group * len(ROW_GROUPS) + row for row in shared.rows]
        # Apart, a process that never writes needs no empty row; together, rows stay so that traces can be compared by eye.
        lanes = [lane for lane in lanes if not title or block.lanes.calls[lane].any() or block.lanes.busy[lane].any()]
        for place, lane in enumerate(lanes):
            rows.append(_Row(_STRIP_IN, _strip(block, lane), title if place == 0 else ""))
    return [*rows, _Row(_GRAPH_IN, lambda ax: _draw_throughput(ax, block, shared.peak_bytes_per_s))]


def _strip(block: TraceTimeline, lane: int) -> Callable[[Axes], None]:
    return lambda ax: _draw_strip(ax, block, lane)


def _add_axes(figure: Figure, bottom_in: float, row: _Row, block: TraceTimeline, view: View, height_in: float) -> Axes:
    width = _WIDTH_IN - _LEFT_IN - _RIGHT_IN
    ax = figure.add_axes((_LEFT_IN / _WIDTH_IN, bottom_in / height_in, width / _WIDTH_IN, row.height_in / height_in))
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
        if nothing[1] - nothing[0] > (end - begin) / _COLUMNS:
            ax.axvspan(*nothing, facecolor="#EFEFEF", edgecolor="none", zorder=0)
    row.draw(ax)
    return ax


def _name_row(ax: Axes, name: str, right: str = "") -> None:
    ax.text(-0.012, 0.5, name, transform=ax.transAxes, ha="right", va="center")
    ax.text(1.008, 0.5, right, transform=ax.transAxes, ha="left", va="center", fontsize=6.2, color="#444444", linespacing=1.15)


def _seconds(block: TraceTimeline, time_ns: Ints | Floats) -> Floats:
    return (time_ns - block.window.zero_ns) / _SECOND


def _draw_phases(ax: Axes, block: TraceTimeline) -> None:
    _name_row(ax, "phases", "" if len(block.phases) else "none logged")
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    begin, end = ax.get_xlim()
    per_inch = (end - begin) / (_WIDTH_IN - _LEFT_IN - _RIGHT_IN)
    phases = block.phases
    inside = (_seconds(block, phases["end_ns"].to_numpy()) > begin) & (_seconds(block, phases["start_ns"].to_numpy()) < end)
    phases = phases[inside]
    steps = phases[phases["phase"] == "step"]
    for name in ("init", "epoch", "block", "evaluation", "checkpoint"):
        mine = phases[phases["phase"] == name]
        lefts = np.maximum(_seconds(block, mine["start_ns"].to_numpy()), begin)
        rights = np.minimum(_seconds(block, mine["end_ns"].to_numpy()), end)
        ax.broken_barh(
            list(zip(lefts, rights - lefts, strict=True)), (0, 1), facecolor=PHASE_COLOURS[name], edgecolor="white", linewidth=0.4
        )
        for left, right, number in zip(lefts, rights, mine["epoch"], strict=True):
            _label_bar(ax, left, right, name, number, (right - left) / per_inch)
    if len(steps) <= _MOST_STEPS:
        ax.vlines(_seconds(block, steps["start_ns"].to_numpy()), 0, 0.22, colors="#333333", linewidth=0.4)


def _label_bar(ax: Axes, left: float, right: float, name: str, number: float, width_in: float) -> None:
    numbered = name if number != number else f"{name} {number:.0f}"
    short = {"evaluation": "eval", "checkpoint": "ckpt"}.get(name, numbered.removeprefix(f"{name} "))
    for text in (numbered, short):
        if text and len(text) * 0.058 < width_in:
            ax.text((left + right) / 2, 0.5, text, ha="center", va="center", fontsize=6.2, clip_on=True)
            return


def _draw_cpu(ax: Axes, block: TraceTimeline) -> None:
    ax.set_ylim(0, 100)
    _name_ends(ax, [0, 100], ["0", "100 %"])
    samples = block.cpu
    if samples is None:
        _name_row(ax, "", "CPU not sampled")
        return
    end = samples["time_ns"].to_numpy()
    edges = _seconds(block, np.concatenate(([end[0] - int(samples["interval_ns"].iloc[0])], end)))
    base = np.zeros(len(end))
    for name, colour in CPU_COLOURS.items():
        top = base + 100 * np.nan_to_num(samples[name].to_numpy(dtype=float))
        ax.stairs(top, edges, baseline=base, fill=True, color=colour, linewidth=0)
        base = top
    job = 100 * samples["job_cpus"].to_numpy(dtype=float) / max(block.manifest.host.cpus, 1)
    if np.isfinite(job).any():
        ax.stairs(job, edges, baseline=None, color=BLACK, linewidth=0.6)
    _name_row(ax, "", f"CPU, of {block.manifest.host.cpus}\nmean {base.mean():.0f} %")


def _draw_gpu(ax: Axes, block: TraceTimeline) -> None:
    ax.set_ylim(0, 100)
    _name_ends(ax, [0, 100], ["0", "100 %"])
    if block.gpu is None:
        _name_row(ax, "", "GPU not sampled")
        return
    for _, samples in block.gpu.groupby("device"):
        times = _seconds(block, samples["time_ns"].to_numpy())
        ax.plot(times, samples["sm_percent"], color=GREEN, linewidth=0.7, drawstyle="steps-pre")
        ax.plot(times, samples["memory_percent"], color=PURPLE, linewidth=0.7, linestyle="--", drawstyle="steps-pre")
    _name_row(ax, "", f"{block.gpu['device'].nunique()} GPU\nmean {block.gpu['sm_percent'].mean():.0f} % SM")


def _draw_strip(ax: Axes, block: TraceTimeline, lane: int) -> None:
    group = ROW_GROUPS[lane % len(ROW_GROUPS)]
    calls, busy, moved = block.lanes.calls[lane], block.lanes.busy[lane], int(block.lanes.size_bytes[lane].sum())
    edges = _seconds(block, block.lanes.grid.edges())
    colour = to_rgb(GROUP_COLOURS[GROUPS[group]])
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    tint = np.zeros((1, len(calls), 4))
    tint[..., :3] = colour
    tint[0, :, 3] = _presence(calls, busy)
    ax.imshow(tint, extent=(edges[0], edges[-1], 0, 1), aspect="auto", interpolation="nearest", zorder=1)
    ax.set_xlim(*ax.get_xlim())
    ax.stairs(busy, edges, fill=True, color=colour, linewidth=0, zorder=2)
    amount = counted(int(calls.sum()), "call")
    _name_row(ax, GROUPS[group], f"{amount}, {format_size(moved)}" if group in (READ, WRITE) else amount)


def _presence(calls: Ints, busy: Floats) -> Floats:
    """Return the opacity behind the bars: none without a call, else growing with the logarithm of the calls in the bin."""
    most = max(int(calls.max(initial=0)), 1)
    return np.where((calls > 0) | (busy > 0), 0.13 + 0.32 * np.log1p(calls) / np.log1p(most), 0.0)


def _draw_throughput(ax: Axes, block: TraceTimeline, peak: float) -> None:
    edges = _seconds(block, block.lanes.grid.edges())
    for name, rate in _throughput(block).items():
        ax.stairs(rate, edges, baseline=None, color=GROUP_COLOURS[name], linewidth=0.6)
    ax.set_ylim(0, peak * 1.08 or 1)
    _name_ends(ax, [0, peak] if peak else [0], ["0", f"{format_size(peak)}/s"] if peak else ["0"], 5.4)
    _name_row(ax, "", f"bytes/s, means\nover {format_duration(block.lanes.grid.width)}")


def _write_head(figure: Figure, block: TraceTimeline, top: float, height_in: float) -> None:
    manifest = block.manifest
    command = " · ".join(part for part in (manifest.workload, command_line(manifest)) if part)
    title = figure.text(0.01, top - 0.03 / height_in, plain(block.label, 60), fontsize=8.5, fontweight="bold", va="top")
    title_end = title.get_window_extent().x1 / figure.bbox.width + 0.012
    figure.text(title_end, top - 0.038 / height_in, plain(command, 78), fontsize=7, va="top", color="#333333")
    figure.text(0.01, top - 0.19 / height_in, plain(machine_line(manifest), 150), fontsize=6.2, va="top", color="#555555")
    loss = loss_line(manifest)
    if loss:
        figure.text(0.99, top - 0.03 / height_in, plain(loss, 110), fontsize=6.2, va="top", ha="right", color=VERMILLION,
                    fontweight="bold")  # fmt: skip


def _write_foot(figure: Figure, blocks: list[TraceTimeline], height_in: float) -> None:
    bars = [
        Patch(facecolor=(*to_rgb(GREY), 0.3), label="pale: at least one call starts or is in flight, darker for more"),
        Patch(facecolor=GREY, label="height: share of time with a call in flight"),
    ]
    _legend(figure, bars, 0.34 / height_in)
    graphs: list[Patch | Line2D] = []
    if any(block.cpu is not None for block in blocks):
        graphs += [Patch(facecolor=colour, label=f"CPU {name}") for name, colour in CPU_COLOURS.items()]
        graphs.append(Line2D([], [], color=BLACK, linewidth=0.8, label="CPU, this job"))
    if any(block.gpu is not None for block in blocks):
        graphs += [Line2D([], [], color=GREEN, label="GPU SM"), Line2D([], [], color=PURPLE, linestyle="--", label="GPU memory")]
    colours = [Line2D([], [], color=GROUP_COLOURS[name], label=f"bytes/s {name}") for name in (GROUPS[READ], GROUPS[WRITE])]
    _legend(figure, [*graphs, *colours], 0.2 / height_in)
    notes = "; ".join(dict.fromkeys(block.groups.note for block in blocks if block.groups.note))
    text = "Rows show calls on data-set, checkpoint and log files." + (f" Processes: {notes}." if notes else "")
    figure.text(0.5, 0.06 / height_in, text, ha="center", va="bottom", fontsize=6.2, color="#555555")


def _legend(figure: Figure, handles: Sequence[Patch | Line2D], bottom: float) -> None:
    figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, bottom), ncols=len(handles), frameon=False,
                  handlelength=1.1, columnspacing=1.0, handletextpad=0.4, fontsize=6.2, borderpad=0)  # fmt: skip


def _name_ends(ax: Axes, positions: list[float], names: list[str], size: float = 6.5) -> None:
    """Label the ends of the y axis inside the row's height, so that rows close to each other do not overlap."""
    ax.set_yticks(positions, names, fontsize=size)
    labels = ax.get_yticklabels()
    labels[0].set_verticalalignment("bottom")
    if len(labels) > 1:
        labels[-1].set_verticalalignment("top")
