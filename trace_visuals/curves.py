"""Sheets of curves: a panel for each document of series, as measurements and predictions write them.

A document is a JSON file: ``{"title", "x": AXIS, "y": AXIS, "series": [{"name", "x": [..], "y": [..]}]}``, where an axis is
``{"label", "unit", "scale"}``. Units and scales may be left out; a scale is ``linear`` (the default) or ``log``. A value of null
is a gap in its curve.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from common.errors import UsageError
from common.files import check_output, check_type, open_whole
from trace_visuals.labels import plain
from trace_visuals.style import FIGURE_RC, TRACE_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TYPES = (".png", ".svg", ".pdf")
_COLUMNS = 3
_PANEL_INCHES = (2.6, 2.1)
_MARKERS = "os^Dv<>"
_MOST_WITHIN = 4  # curves whose legend has room within the axes
_LEGEND_INCHES, _LEGEND_LINE_INCHES = 1.5, 0.15
_MARGIN = 0.04  # of the span of x, on both sides


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an axis shows."""

    label: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"

    def text(self) -> str:
        """Return the words beside the axis."""
        return plain(f"{self.label} ({self.unit})" if self.unit else self.label, 60)


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One curve."""

    name: str
    x: list[float]
    y: list[float | None]


class Curves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One panel."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]


def read_curves(path: Path) -> Curves:
    """Return the document at `path`; UsageError when it is missing, is no such document, or its curves cannot be drawn."""
    try:
        curves = msgspec.json.decode(path.read_bytes(), type=Curves)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no document of curves: {error}") from None
    for series in curves.series:
        if len(series.x) != len(series.y):
            raise UsageError(f"{path}: series '{series.name}' has {len(series.x)} values of x and {len(series.y)} of y")
        for axis, values in ((curves.x, series.x), (curves.y, series.y)):
            if axis.scale == "log" and any(value is not None and value <= 0 for value in values):
                raise UsageError(f"{path}: series '{series.name}' has values not above 0, which a log axis cannot show")
    if not any(series.x for series in curves.series):
        raise UsageError(f"{path} has no points to draw")
    return curves


def plot_curves(paths: list[Path], output: Path) -> dict[str, Any]:
    """Draw a panel for each document and return ``{"output", "panels": [{"title", "series", "points"}]}``.

    Raises UsageError for a document or file type that cannot be drawn, IotwinError when the picture cannot be written.
    """
    check_type(output, _TYPES)
    check_output(output)
    panels = [read_curves(path) for path in paths]
    _draw(panels, output)
    return {
        "output": str(output),
        "panels": [
            {"title": each.title, "series": len(each.series), "points": sum(len(series.x) for series in each.series)}
            for each in panels
        ],
    }


def _draw(panels: list[Curves], output: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    beside = [len(curves.series) > _MOST_WITHIN for curves in panels]
    longest = max(len(curves.series) for curves in panels)
    width = _PANEL_INCHES[0] + (_LEGEND_INCHES if any(beside) else 0)
    height = max(_PANEL_INCHES[1], _LEGEND_LINE_INCHES * longest + 0.3 if any(beside) else 0)
    with mpl.rc_context(FIGURE_RC):
        figure = Figure((width * max(columns, 1.4), height * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for spare in axes[len(panels) :]:
            spare.set_axis_off()
        for panel, curves, outside in zip(axes, panels, beside, strict=False):
            _draw_panel(panel, curves, outside)
        with open_whole(output) as file:
            figure.savefig(file, format=output.suffix.lower().removeprefix("."), dpi=200, metadata=_without_date(output))


def _without_date(output: Path) -> dict[str, Any]:
    """The same documents give the same bytes."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix.lower(), {})


def _draw_panel(panel: "Axes", curves: Curves, legend_outside: bool) -> None:
    panel.set_title(plain(curves.title, 60))
    for index, series in enumerate(curves.series):
        points = sorted(zip(series.x, series.y, strict=True), key=lambda point: point[0])
        values = [float("nan") if y is None else y for _, y in points]
        # Hollow marks of different kinds: curves that meet are all seen.
        panel.plot(
            [x for x, _ in points], values, marker=_MARKERS[index % len(_MARKERS)], markersize=3.5, markerfacecolor="none",
            markeredgewidth=0.8, linewidth=1, color=TRACE_COLOURS[index % len(TRACE_COLOURS)], label=plain(series.name, 60),
        )  # fmt: skip
    panel.set_xscale(curves.x.scale)
    panel.set_yscale(curves.y.scale)
    _show_all(panel, curves)
    panel.set_xlabel(curves.x.text())
    panel.set_ylabel(curves.y.text())
    panel.spines[["top", "right"]].set_visible(False)
    if legend_outside:
        panel.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0)
    elif len(curves.series) > 1:
        panel.legend(frameon=False)


def _show_all(panel: "Axes", curves: Curves) -> None:
    """Show every x, also where all curves have a gap, which says that no run came through; and 0 of a linear y."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    x = [value for series in curves.series for value in series.x]
    least, most = min(x), max(x)
    if most > least and curves.x.scale == "log":
        panel.set_xlim(least / (most / least) ** _MARGIN, most * (most / least) ** _MARGIN)
    elif most > least:
        panel.set_xlim(least - _MARGIN * (most - least), most + _MARGIN * (most - least))
    if curves.y.scale == "linear":
        panel.set_ylim(bottom=min(0, panel.get_ylim()[0]))
    for axis, shown in ((panel.xaxis, curves.x), (panel.yaxis, curves.y)):
        if shown.scale == "log":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))  # its own are written for TeX
            axis.set_minor_formatter(NullFormatter())
