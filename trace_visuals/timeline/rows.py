"""Draw the rows of a timeline, each into its own axes: phases, samples, strips of calls, rates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import StepPatch

from iotwin.common.units import counted, format_duration, format_size
from iotwin.trace_visuals.bins import CallLanes, Floats
from iotwin.trace_visuals.call_columns import GROUPS, READ, WRITE, Ints
from iotwin.trace_visuals.labels import plain
from iotwin.trace_visuals.requests import BLOCK_LANES, CHECKPOINT_PARTS
from iotwin.trace_visuals.style import (
    BLACK,
    BLOCK_COLOURS,
    CHECKPOINT_COLOURS,
    CPU_COLOURS,
    DEVICE_COLOURS,
    GREEN,
    GROUP_COLOURS,
    MOMENT_COLOURS,
    MOMENT_MARKERS,
    PART_COLOUR,
    PHASE_COLOURS,
    PURPLE,
    RECOMPUTE_COLOURS,
)
from iotwin.trace_visuals.timeline.pipeline_rows import draw_passes
from iotwin.trace_visuals.timeline.read_timeline import ROW_GROUPS, TraceTimeline

_SECOND = 1e9
_MOST_STEPS = 300  # most steps that are marked; more marks would be a grey blur
_LETTER_IN = 0.058
_NO_SAMPLES = "no samples"
_NAME_LETTERS = 22  # number of letters that fit on the right of a row
_NARROW_PIXELS = 300  # width in pixels at 100 dpi, the resolution at which figures are laid out


def throughput(block: TraceTimeline) -> dict[str, Floats]:
    """Return bytes per second in each bin, by 'read' and 'write', over all groups of processes."""
    per_s = block.lanes.size_bytes * (_SECOND / block.lanes.grid.width)
    return {name: per_s[row :: len(ROW_GROUPS)].sum(axis=0) for name, row in _transfer_rows().items()}


def in_flight(block: TraceTimeline) -> dict[str, Floats]:
    """Return the mean number of reads, writes and, if they were traced, block requests in flight in each bin."""
    rows = _transfer_rows().items()
    found = {name: block.lanes.in_flight[row :: len(ROW_GROUPS)].sum(axis=0) for name, row in rows}
    return found | ({} if block.block is None else {"block": block.block.in_flight.sum(axis=0)})


def _transfer_rows() -> dict[str, int]:
    return {GROUPS[group]: row for row, group in enumerate(ROW_GROUPS) if group in (READ, WRITE)}


def disk_rates(block: TraceTimeline) -> tuple[Ints, dict[str, Floats]] | None:
    """Return the edges of the disk samples' intervals (ns), and the bytes per second that all disks read and wrote."""
    if block.disk is None:
        return None
    # A partition's bytes also count for its disk. Among names with the same begin, the shortest is the disk's.
    names = sorted(block.disk["device"].unique(), key=len)
    disks = [name for i, name in enumerate(names) if not any(name.startswith(other) for other in names[:i])]
    chosen = block.disk[block.disk["device"].isin(disks)]
    sums = chosen.groupby("time_ns").agg({"read_bytes": "sum", "written_bytes": "sum", "interval_ns": "max"})
    interval_s = sums["interval_ns"].to_numpy() / _SECOND
    rates = {"read": sums["read_bytes"].to_numpy() / interval_s, "write": sums["written_bytes"].to_numpy() / interval_s}
    ends = sums.index.to_numpy()
    return np.append(ends[0] - int(sums["interval_ns"].iloc[0]), ends), rates


def name_row(ax: Axes, name: str, right: str = "") -> None:
    """Write a row's name to its left and the text `right`, such as its totals, to its right."""
    ax.text(-0.012, 0.5, name, transform=ax.transAxes, ha="right", va="center")
    ax.text(1.012, 0.5, right, transform=ax.transAxes, ha="left", va="center", fontsize=6.2, color="#444444", linespacing=1.15)


def _seconds(block: TraceTimeline, time_ns: Ints | Floats) -> Floats:
    return (time_ns - block.window.zero_ns) / _SECOND


def spellings(blocks: Sequence[TraceTimeline], limits_s: tuple[float, float], width_in: float) -> dict[str, int]:
    """Return, for each kind of phase, 0 if its bars have the full name, and 1 if they have the short one.

    The chosen form fits into the most bars of all traces, on an axis that is `width_in` inches wide and shows `limits_s`.
    """
    per_in = (limits_s[1] - limits_s[0]) / width_in
    shown = {name: [bar for block in blocks for bar in _bars(block, name, limits_s)] for name in PHASE_COLOURS}
    return {
        name: _spelling(name, [(number, (right - left) / per_in) for left, right, number in bars])
        for name, bars in shown.items()
        if bars
    }


def _spelling(name: str, bars: Sequence[tuple[float, float]]) -> int:
    forms = range(len(_words(name, np.nan)))
    fitting = [sum(len(_words(name, number)[form]) * _LETTER_IN < width for number, width in bars) for form in forms]
    return fitting.index(max(fitting))


def _words(name: str, number: float) -> tuple[str, str]:
    """Return the name of a phase in full and in short, which may be empty. `number`: its epoch, or NaN."""
    counted_as = "" if number != number else f"{number:.0f}"
    return f"{name} {counted_as}".strip(), {"evaluation": "eval", "checkpoint": "ckpt"}.get(name, counted_as)


def _bars(block: TraceTimeline, name: str, limits_s: tuple[float, float]) -> list[tuple[float, float, float]]:
    """Return (begin, end, epoch or NaN) of each phase of that name, in seconds, cut at the limits."""
    phases = block.phases[block.phases["phase"] == name]
    begin, end = (_seconds(block, phases[column].to_numpy()) for column in ("start_ns", "end_ns"))
    inside = (end > limits_s[0]) & (begin < limits_s[1])
    cut = np.maximum(begin, limits_s[0]), np.minimum(end, limits_s[1]), phases["epoch"].to_numpy(dtype=float)
    return list(zip(*(values[inside].tolist() for values in cut), strict=True))


def moment_times_s(block: TraceTimeline, what: str) -> list[float]:
    """Return the times of the marked moments of a kind, in seconds of the time axis."""
    return [(each.time_ns - block.window.zero_ns) / _SECOND for each in block.moments if each.what == what]


def draw_phases(ax: Axes, block: TraceTimeline, width_in: float, spelt: Mapping[str, int]) -> None:
    """Draw the phases as coloured bars, with their names where they fit; mark steps, kills and resumptions.

    `width_in`: width of the axis in inches. `spelt`: the result of `spellings`.
    """
    name_row(
        ax, "phases", "not logged:\ninferred from reads" if block.phases_inferred else "" if len(block.phases) else "none logged"
    )
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    begin, end = ax.get_xlim()
    per_inch = (end - begin) / width_in
    for name, spelling in spelt.items():
        bars = _bars(block, name, (begin, end))
        # A coloured edge keeps a checkpoint visible even if it is narrower than a pixel.
        edge = PHASE_COLOURS[name] if name == "checkpoint" else "white"
        spans = [(left, right - left) for left, right, _ in bars]
        ax.broken_barh(spans, (0, 1), facecolor=PHASE_COLOURS[name], edgecolor=edge, linewidth=0.4)
        for left, right, number in bars:
            text = _words(name, number)[spelling]
            if text and len(text) * _LETTER_IN < (right - left) / per_inch:
                ax.text((left + right) / 2, 0.5, text, ha="center", va="center", fontsize=6.2, clip_on=True)
    for what, colour in MOMENT_COLOURS.items():
        times = [time for time in moment_times_s(block, what) if begin <= time <= end]
        ax.vlines(times, 0, 1, colors=colour, linewidth=1.1, zorder=3)
        ax.plot(times, [0.75] * len(times), MOMENT_MARKERS[what], color=colour, markersize=3.6, zorder=3, clip_on=False)
    steps = [left for left, _, _ in _bars(block, "step", (begin, end))]
    if len(steps) <= _MOST_STEPS:
        ax.vlines(steps, 0, 0.22, colors="#333333", linewidth=0.4)


def draw_cpu(ax: Axes, block: TraceTimeline) -> None:
    """Draw user, system and iowait time of the machine, stacked, and the job's share of it as a line."""
    ax.set_ylim(0, 100)
    _name_ends(ax, [0, 100], ["0", "100 %"])
    _mark_gaps(ax, block, "cpu")
    samples = block.cpu
    if samples is None:
        name_row(ax, "", "CPU not sampled")
        return
    end = samples["time_ns"].to_numpy()
    edges = sample_edges(block, np.concatenate(([end[0] - int(samples["interval_ns"].iloc[0])], end)))
    base = _add_stack(ax, samples, edges, CPU_COLOURS)
    job = 100 * samples["job_cpus"].to_numpy(dtype=float) / max(block.manifest.host.cpus, 1)
    if np.isfinite(job).any():
        _add_line(ax, job, edges, BLACK)
    name_row(ax, "", f"CPU, of {block.manifest.host.cpus}\nmean {base.mean():.0f} %")


def draw_recompute(ax: Axes, block: TraceTimeline) -> None:
    """Draw the time of a job's ranks under a memory budget, stacked: first computation, recomputation, and eviction search."""
    ax.set_ylim(0, 100)
    _name_ends(ax, [0, 100], ["0", "100 %"])
    if block.recompute is None:
        name_row(ax, "", "nothing\nrecomputed")
        return
    _add_stack(ax, block.recompute, _seconds(block, block.lanes.grid.edges()), RECOMPUTE_COLOURS)
    name_row(ax, "", "recompute")


def draw_tensors(ax: Axes, block: TraceTimeline) -> None:
    """Draw the memory of tensors as a share of the job's budget."""
    ax.set_ylim(0, 108)
    _name_ends(ax, [0, 100], ["0", "100 %"])
    if block.tensors is None:
        name_row(ax, "", "tensors\nnot logged")
        return
    title, shares = block.tensors
    _add_line(ax, 100 * shares["tensors"].to_numpy(), _seconds(block, block.lanes.grid.edges()), BLACK)
    name_row(ax, "", f"tensors\n{title}")


def draw_gpu(ax: Axes, block: TraceTimeline) -> None:
    """Draw utilisation of the multiprocessors and of memory, a line per device."""
    ax.set_ylim(0, 100)
    _name_ends(ax, [0, 100], ["0", "100 %"])
    _draw_devices(ax, block, {"sm_percent": (GREEN, "-"), "memory_percent": (PURPLE, "--")})
    if block.gpu is not None:
        name_row(ax, "", f"{block.gpu['device'].nunique()} GPU\nmean {block.gpu['sm_percent'].mean():.0f} % SM")


def draw_gpu_memory(ax: Axes, block: TraceTimeline, peak: float) -> None:
    """Draw the memory in use on each GPU, on a scale that ends above `peak`."""
    ax.set_ylim(0, peak * 1.08 or 1)
    _name_ends(ax, [0, peak] if peak else [0], ["0", format_size(peak)] if peak else ["0"], 5.4)
    _draw_devices(ax, block, {"memory_used_bytes": (BLACK, "-")})
    if block.gpu is not None:
        name_row(ax, "", "GPU memory\nin use")


def _draw_devices(ax: Axes, block: TraceTimeline, lines: Mapping[str, tuple[str, str]]) -> None:
    """Draw a line per device for each column of GPU samples in `lines`, which gives its colour and style."""
    _mark_gaps(ax, block, "gpu")
    if block.gpu is None:
        name_row(ax, "", "GPU not sampled")
        return
    for _, samples in block.gpu.groupby("device"):
        times = _seconds(block, samples["time_ns"].to_numpy())
        for name, (colour, style) in lines.items():
            ax.plot(times, samples[name], color=colour, linewidth=0.7, linestyle=style, drawstyle="steps-pre")


def draw_disk(ax: Axes, block: TraceTimeline, peak: float) -> None:
    """Draw the bytes per second that all disks together read and wrote, by the kernel's counters."""
    _rate_axis(ax, peak)
    _mark_gaps(ax, block, "disk")
    found = disk_rates(block)
    if found is None:
        name_row(ax, "", "disk not sampled")
        return
    edges, rates = found
    for name, rate in rates.items():
        _add_line(ax, rate, sample_edges(block, edges), GROUP_COLOURS[name])
    name_row(ax, "", "disks, whole\nmachine")


def sample_edges(block: TraceTimeline, edges_ns: Ints) -> Floats:
    """Return the edges of samples' intervals in seconds. An interval that began before the window is cut at its begin."""
    return _seconds(block, np.maximum(edges_ns, block.window.begin_ns))


def _mark_gaps(ax: Axes, block: TraceTimeline, kind: str) -> None:
    """Hatch the times in which no samples of `kind` were taken."""
    for begin, end in _seconds(block, block.gaps.get(kind, np.empty((0, 2), dtype=np.int64))):
        ax.axvspan(begin, end, facecolor="white", edgecolor="#aaaaaa", hatch="/////", linewidth=0, zorder=4)
        first, last = max(begin, ax.get_xlim()[0]), min(end, ax.get_xlim()[1])
        width_in = (last - first) / np.ptp(ax.get_xlim()) * ax.bbox.width / ax.figure.dpi
        if width_in > len(_NO_SAMPLES) * _LETTER_IN:
            ax.text(
                (first + last) / 2, 0.5, _NO_SAMPLES, transform=ax.get_xaxis_transform(), ha="center", va="center", fontsize=6.2,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=5,
            )  # fmt: skip


def draw_calls(ax: Axes, block: TraceTimeline, lane: int) -> None:
    """Draw the calls of one lane as a strip of bars."""
    group = ROW_GROUPS[lane % len(ROW_GROUPS)]
    colour, name = GROUP_COLOURS[GROUPS[group]], GROUPS[group]
    _draw_strip(ax, block, block.lanes, lane, (name, colour, "call"), group in (READ, WRITE))


def draw_block(ax: Axes, block: TraceTimeline, lane: int) -> None:
    """Draw block reads or block writes as a strip of bars."""
    name = BLOCK_LANES[lane]
    if block.block is None:
        name_row(ax, f"block {name}", "not traced")
        ax.set_yticks([])
        return
    _draw_strip(ax, block, block.block, lane, (f"block {name}", BLOCK_COLOURS[name], "request"), True)


def draw_device(ax: Axes, block: TraceTimeline, lane: int) -> None:
    """Draw GPU kernels (of one GPU or all) or copies as a strip of bars."""
    kind, _, device = block.device_names[lane].partition(" ")
    name = {"kernel": f"kernels {device}".strip(), "copy": "copies"}[kind]
    if block.device is None:
        name_row(ax, name, "not traced")
        ax.set_yticks([])
        return
    _draw_strip(ax, block, block.device, lane, (name, DEVICE_COLOURS[kind], kind), kind == "copy")


def draw_part(ax: Axes, block: TraceTimeline, lane: int) -> None:
    """Draw one logged part of steps as a strip of bars. Its name is on the right, where there is more room."""
    names, own = block.part_names, block.part_names[lane]
    first = next((index for index, name in enumerate(names) if name in CHECKPOINT_PARTS), len(names))
    title = "checkpoints" if lane == first else "" if lane else "parts"
    thing = (title, CHECKPOINT_COLOURS.get(own, PART_COLOUR), "time")
    _draw_strip(ax, block, block.parts, lane, thing, False, f"{plain(own, _NAME_LETTERS)}\n")


def draw_rank_passes(ax: Axes, block: TraceTimeline, lane: int, width_in: float) -> None:
    """Draw the passes of one rank of a pipeline. `width_in`: width of the axis in inches."""
    if block.passes is not None:
        name_row(ax, f"rank {block.passes.ranks[lane]}", draw_passes(ax, block.passes, lane, width_in))


def _draw_strip(
    ax: Axes, block: TraceTimeline, lanes: CallLanes, lane: int, thing: tuple[str, str, str], moves: bool, right: str = ""
) -> None:
    name, colour, unit = thing
    calls, busy, moved = lanes.calls[lane], lanes.busy[lane], int(lanes.size_bytes[lane].sum())
    edges = _seconds(block, lanes.grid.edges())
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    tint = np.zeros((1, len(calls), 4))
    tint[..., :3] = to_rgb(colour)
    # The opacity rises with the logarithm of the bin's calls.
    most = max(int(calls.max(initial=0)), 1)
    tint[0, :, 3] = np.where((calls > 0) | (busy > 0), 0.13 + 0.32 * np.log1p(calls) / np.log1p(most), 0.0)
    ax.imshow(tint, extent=(edges[0], edges[-1], 0, 1), aspect="auto", interpolation="nearest", zorder=1)
    ax.set_xlim(*ax.get_xlim())
    _add_area(ax, busy, edges, colour, 0.0)
    amount = counted(int(calls.sum()), unit)
    # In a narrow picture, the number of calls and the bytes are on two lines.
    between = ",\n" if ax.bbox.width < _NARROW_PIXELS else ", "
    name_row(ax, name, right + (f"{amount}{between}{format_size(moved)}" if moves else amount))


def draw_throughput(ax: Axes, block: TraceTimeline, peak: float) -> None:
    """Draw bytes per second read and written by the calls."""
    edges = _seconds(block, block.lanes.grid.edges())
    for name, rate in throughput(block).items():
        _add_line(ax, rate, edges, GROUP_COLOURS[name])
    _rate_axis(ax, peak)
    name_row(ax, "", f"bytes/s, means\nover {format_duration(block.lanes.grid.width)}")


def draw_in_flight(ax: Axes, block: TraceTimeline, peak: float) -> None:
    """Draw how many reads, writes and block requests are in flight."""
    edges = _seconds(block, block.lanes.grid.edges())
    styles: Mapping[str, tuple[str, str]] = {
        "read": (GROUP_COLOURS["read"], "-"),
        "write": (GROUP_COLOURS["write"], "-"),
        "block": (BLACK, ":"),
    }
    for name, count in in_flight(block).items():
        colour, line = styles[name]
        _add_line(ax, count, edges, colour, line)
    ax.set_ylim(0, peak * 1.08 or 1)
    _name_ends(ax, [0, peak] if peak else [0], ["0", f"{peak:.3g}"] if peak else ["0"], 5.4)
    name_row(ax, "", "in flight,\nmeans")


def _add_area(ax: Axes, values: Floats, edges: Floats, colour: str, base: Any) -> None:
    # Like Axes.stairs, but without its slow search for the data's limits, which are known here.
    ax.add_artist(StepPatch(values, edges, baseline=base, fill=True, facecolor=colour, edgecolor="none", zorder=2))


def _add_stack(ax: Axes, shares: pd.DataFrame, edges: Floats, colours: Mapping[str, str]) -> Floats:
    """Draw the columns of `colours`, which are shares of 1, stacked and in percent. Return the upper edge of the stack."""
    base = np.zeros(len(shares))
    for name, colour in colours.items():
        top = base + 100 * np.nan_to_num(shares[name].to_numpy(dtype=float))
        _add_area(ax, top, edges, colour, base)
        base = top
    return base


def _add_line(ax: Axes, values: Floats, edges: Floats, colour: str, line: str = "-") -> None:
    no_base: Any = None  # allowed by matplotlib's documentation, but not by its types
    ax.add_artist(
        StepPatch(values, edges, baseline=no_base, fill=False, edgecolor=colour, linestyle=line, linewidth=0.6, zorder=2)
    )


def _rate_axis(ax: Axes, peak: float) -> None:
    ax.set_ylim(0, peak * 1.08 or 1)
    _name_ends(ax, [0, peak] if peak else [0], ["0", f"{format_size(peak)}/s"] if peak else ["0"], 5.4)


def _name_ends(ax: Axes, positions: Sequence[float], names: list[str], size: float = 6.5) -> None:
    """Label the ends of the y axis inside the row's height, so that rows close to each other do not overlap."""
    ax.set_yticks(positions, names, fontsize=size)
    labels = ax.get_yticklabels()
    labels[0].set_verticalalignment("bottom")
    if len(labels) > 1:
        labels[-1].set_verticalalignment("top")


def gpu_memory_peak(samples: pd.DataFrame | None) -> float:
    """Return the most memory in use on any GPU in `samples`; 0 if it was not sampled."""
    return 0.0 if samples is None else float(samples["memory_used_bytes"].fillna(0).max())
