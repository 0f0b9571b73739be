"""Write the sizes that `iotwin size` found: JSON, a table as CSV and LaTeX, and a figure with the knee of each axis."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.common.files import write_json, write_whole
from iotwin.common.result_folder import MadeFolder
from iotwin.common.units import format_duration, format_size
from iotwin.loops.latex_table import latex_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = ("axis", "cache", "least", "unit", "au_there", "figure_there", "low", "high", "edge")
_PANEL_INCHES = (2.4, 2.0)


def write_results(folder: MadeFolder, document: dict[str, Any]) -> None:
    """Write size.json, table.csv, table.tex and size.pdf into `folder`."""
    write_json(folder.entry("size.json"), document)
    write_whole(folder.entry("table.csv"), _csv(document).encode())
    write_whole(folder.entry("table.tex"), _latex(document).encode())
    _draw(document, folder.entry("size.pdf"))


def limit_text(need: dict[str, Any], key: str = "least") -> str:
    """Return the limit `key` of a need with its unit, such as 5.6 MiB/s; a dash if there is none."""
    value, axis = need[key], need["axis"]
    if value is None:
        return "-"
    if axis == "latency":
        return format_duration(value * 1e9)
    return f"{value:.4g}/s" if axis == "requests" else format_size(value) + ("/s" if axis == "bandwidth" else "")


def _csv(document: dict[str, Any]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows([need[column] for column in _COLUMNS] for need in document["needs"])
    return text.getvalue()


def _latex(document: dict[str, Any]) -> str:
    figure = "AU" if document["target"].startswith("au") else "epoch time"
    rows = [
        [need["axis"], need["cache"], limit_text(need), need["figure_there"], limit_text(need, "low"), limit_text(need, "high")]
        for need in document["needs"]
    ]
    return latex_table(["limit", "cache", "least", f"{figure} there", "low", "high"], rows)


def _draw(document: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from iotwin.trace_visuals.style import FIGURE_RC, save_figure

    axes = list(dict.fromkeys(need["axis"] for need in document["needs"]))
    with mpl.rc_context(FIGURE_RC):
        figure = Figure((_PANEL_INCHES[0] * len(axes), _PANEL_INCHES[1]), layout="constrained")
        panels = figure.subplots(1, len(axes), squeeze=False).ravel()
        for panel, axis in zip(panels, axes, strict=True):
            _draw_axis(panel, [need for need in document["needs"] if need["axis"] == axis], document["target"])
        save_figure(figure, path)


def _draw_axis(panel: "Axes", needs: list[dict[str, Any]], target: str) -> None:
    """Draw the figure over the limit, the target as a line, and the least limit as a mark, for each state of the cache."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from iotwin.trace_visuals.style import BLACK, BLUE, GREY, VERMILLION

    figure, _, value = target.partition("=")
    for need, colour in zip(needs, (BLUE, VERMILLION), strict=False):
        factor = need["scaled_by"]
        points = [(point["limit"] * factor, sorted(point["figures"])) for point in need["points"]]
        middles = [figures[len(figures) // 2] for _, figures in points]
        panel.plot([limit for limit, _ in points], middles, ".-", color=colour, linewidth=0.8, markersize=4, label=need["cache"])
        for limit, figures in points:
            panel.plot([limit] * 2, [figures[0], figures[-1]], "-", color=colour, linewidth=0.6)
        if need["least"] is not None:
            panel.plot([need["least"]], [need["figure_there"]], "o", color=colour, fillstyle="none", markersize=8)
            panel.annotate(limit_text(need), (need["least"], need["figure_there"]), xytext=(6, -10), textcoords="offset points",
                           fontsize=6.5, color=BLACK)  # fmt: skip
    panel.axhline(float(value), color=GREY, linestyle="--", linewidth=0.8)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: limit_text({"axis": needs[0]["axis"], "least": value})))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_title(
        {"latency": "added latency", "cache": "page cache", "requests": "requests"}.get(needs[0]["axis"], "bandwidth")
    )
    panel.tick_params(axis="x", labelrotation=30)
    panel.set_ylabel("AU" if figure == "au" else "epoch time / unlimited")
    panel.legend(frameon=False)
