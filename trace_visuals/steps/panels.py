"""Draw instrumented runs: breakdown of a step, latencies, throughputs, histograms of compute time."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.common.progress import note
from iotwin.common.units import counted
from iotwin.trace_visuals.labels import plain
from iotwin.trace_visuals.steps.distributions import LEAST_STEPS, DistributionFit
from iotwin.trace_visuals.style import BLUE, FIGURE_RC, GREEN, GREY, ORANGE, PURPLE, SKY, TRACE_COLOURS, VERMILLION, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The parts of a step that a bar shows, in the order of the training loop. The rest of the step is drawn grey.
_BARS = {"load_batch_mem": BLUE, "load_batch_gpu": SKY, "all_compute": GREEN}
_LATENCIES = ("sample_load", "sample_preproc", "batch_load", "batch_preproc", "load_batch_mem", "all_compute", "step_end")
_FIT_COLOURS = {"normal": VERMILLION, "lognormal": PURPLE, "gamma": ORANGE, "quantiles": BLUE}
_PANEL_INCHES = (2.6, 1.9)
_COLUMNS = 3
_MOST_HISTOGRAMS = 60
_MOST_BATCH_LABELS = 6
_CONSTANT = 1e-6  # durations of steps count as equal if they vary by less than this share


def _grid(count: int) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure((_PANEL_INCHES[0] * max(columns, 2), _PANEL_INCHES[1] * rows + 0.5), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for panel in panels[count:]:
        panel.set_axis_off()
    return figure, panels[:count]


def _save(figure: "Figure", path: Path, title: str | None) -> None:
    if title:
        figure.suptitle(title)
    save_figure(figure, path)


def _name(series: tuple[object, ...]) -> str:
    """Return the name in the legend of a series, which is (variant, ranks)."""
    variant, gpus = series
    return f"{plain(str(variant), 24)}, {gpus} rank{'s' if gpus != 1 else ''}"


def draw_all(
    table: pd.DataFrame,
    rates: pd.DataFrame,
    fits: dict[tuple[object, ...], list[DistributionFit]],
    steps: pd.DataFrame,
    output: Path,
    title: str | None,
) -> list[Path]:
    """Draw every picture for which the tables have data, as PNG files in `output`, and return their paths."""
    import matplotlib as mpl

    drawn = []
    with mpl.rc_context(FIGURE_RC):
        for workload, own in table.groupby("workload"):
            heading = f"{workload} {plain(title, 80)}" if title else None
            drawn.append(_draw_breakdown(own, output / f"{workload}_breakdown.png", heading))
            path = output / f"{workload}_latencies.png"
            drawn.append(_draw_lines(own, "key", _LATENCIES, ("q1", "median", "q3"), "seconds", path, heading))
            own_rates = rates[rates["workload"] == workload]
            kinds, path = tuple(own_rates["throughput"].unique()), output / f"{workload}_throughputs.png"
            drawn.append(_draw_lines(own_rates, "throughput", kinds, ("low", "median", "high"), "samples/s", path, heading))
            chosen = {key: found for key, found in fits.items() if key[0] == workload and found}
            path = output / f"{workload}_compute_times.png"
            if chosen:
                drawn.append(_draw_histograms(chosen, steps, path, heading))
            else:
                note(f"{path.name} is not drawn: no configuration of {workload} has {LEAST_STEPS} steps with a compute time")
    return drawn


def _draw_breakdown(table: pd.DataFrame, path: Path, title: str | None) -> Path:
    """Draw a bar for every configuration that stacks the mean durations of a step's parts."""
    from matplotlib.figure import Figure

    means = table.pivot_table(index=["variant", "gpus", "batch"], columns="key", values="mean")
    figure = Figure((6.8, 0.9 + 0.19 * len(means)), layout="constrained")
    axes = figure.subplots()
    rows, left = np.arange(len(means)), np.zeros(len(means))
    for key, colour in _BARS.items():
        if key in means:
            width = means[key].fillna(0).to_numpy()
            axes.barh(rows, width, left=left, color=colour, label=key, height=0.8)
            left += width
    if "step_end" in means:
        axes.barh(
            rows, np.maximum(means["step_end"].fillna(0).to_numpy() - left, 0), left=left, color=GREY, label="rest of step_end"
        )
    labels = [f"{plain(str(variant), 24)}  {gpus} x {batch}" for variant, gpus, batch in means.index]
    axes.set_yticks(rows, labels)
    axes.invert_yaxis()
    axes.set_xlabel("seconds, mean of a step;  ranks x batch")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    _save(figure, path, title)
    return path


def _draw_lines(
    table: pd.DataFrame,
    column: str,
    kinds: tuple[str, ...],
    band: tuple[str, str, str],
    unit: str,
    path: Path,
    title: str | None,
) -> Path:
    """Draw a panel for each of `kinds`, the values in `column`: a line for each variant and number of GPUs over the batch size.

    `band` has the names of the columns with the lower quartile, the median and the upper quartile.
    """
    present = [kind for kind in kinds if (table[column] == kind).any()]
    figure, panels = _grid(max(1, len(present)))
    series = list(dict.fromkeys(table[["variant", "gpus"]].itertuples(index=False, name=None)))
    colours = {each: TRACE_COLOURS[index % len(TRACE_COLOURS)] for index, each in enumerate(series)}
    for panel, kind in zip(panels, present, strict=False):
        panel.set_title(kind)
        for each, own in table[table[column] == kind].groupby(["variant", "gpus"]):
            own = own.sort_values("batch")
            low, middle, high = (own[name].to_numpy(float) for name in band)
            panel.plot(own["batch"], middle, marker="o", markersize=2.5, linewidth=1, color=colours[each], label=_name(each))
            panel.fill_between(own["batch"], low, high, color=colours[each], alpha=0.2, linewidth=0)
        if table["batch"].max() > 64:
            _logarithmic(panel, sorted(table["batch"].unique()))
        panel.set_ylim(bottom=0)
        panel.set_xlabel("batch size")
        panel.set_ylabel(unit)
    handles = {label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, frameon=False)
    _save(figure, path, title)
    return path


def _logarithmic(panel: "Axes", batches: list[int]) -> None:
    """Make the axis of batch sizes logarithmic, with plain labels: matplotlib's own are TeX, which pictures do not interpret."""
    panel.set_xscale("log", base=2)
    shown = batches[:: -(-len(batches) // _MOST_BATCH_LABELS)]
    panel.set_xticks(shown, [f"{batch:,}" for batch in shown])
    panel.minorticks_off()


def _draw_spread(panel: "Axes", seconds: NDArray[np.float64], fits: list[DistributionFit]) -> None:
    """Draw the histogram of `seconds`, the likeliest distribution (`fits[0]`) and the normal one."""
    panel.hist(seconds, bins=min(60, max(8, len(seconds) // 5)), density=True, color="#D9D9D9")
    at = np.linspace(max(seconds.min(), 1e-9), seconds.max(), 300)
    for fit in {each.name: each for each in (fits[0], *fits) if each is fits[0] or each.name == "normal"}.values():
        panel.plot(at, np.exp(fit.log_density(at)), color=_FIT_COLOURS[fit.name], linewidth=1, label=fit.name)


def _draw_constant(panel: "Axes", seconds: float) -> None:
    """Draw a line instead of a histogram, as all steps took equally long."""
    panel.axvline(seconds, color=GREY, linewidth=2, label=f"all {seconds:.6g} s")
    panel.set_xlim(0.5 * seconds, 1.5 * seconds)


def _draw_histograms(
    fits: dict[tuple[object, ...], list[DistributionFit]], steps: pd.DataFrame, path: Path, title: str | None
) -> Path:
    """Draw a panel for each configuration: the histogram of compute time with the fitted distributions."""
    shown = list(fits)[:_MOST_HISTOGRAMS]
    figure, panels = _grid(len(shown))
    groups = steps[steps["key"] == "all_compute"].groupby(["workload", "variant", "gpus", "batch"])["seconds"]
    for panel, key in zip(panels, shown, strict=True):
        seconds = groups.get_group(key).to_numpy()
        if np.ptp(seconds) <= _CONSTANT * seconds.max():
            _draw_constant(panel, float(seconds.mean()))
        else:
            _draw_spread(panel, seconds, fits[key])
        _, variant, gpus, batch = key
        panel.set_title(f"{plain(str(variant), 20)}, {gpus} x {batch}: {counted(len(seconds), 'step')}")
        panel.set_xlabel("compute, seconds")
        panel.set_yticks([])
        panel.legend(frameon=False, loc="upper right")
    if len(fits) > len(shown):
        title = f"{title + ': ' if title else ''}the first {len(shown)} of {len(fits)} configurations; fits.json has all"
    _save(figure, path, title)
    return path
