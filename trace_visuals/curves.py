"""Draw curves from JSON documents, as measurements and predictions write them: a panel for each document.

A document is a JSON file: ``{"title", "x": AXIS, "y": AXIS, "series": [{"name", "x": [..], "y": [..]}]}``. An axis is
``{"label", "unit", "scale"}``, where unit and scale are optional and a scale is ``linear`` (the default) or ``log``. A value of
null is a gap in its curve.

A document may also have several panels with the same axes. Its points may have a spread, and ranges of x may have names:
``{"title", "x", "y", "panels": [{"title", "bands": [{"from", "to", "label"}], "curves": [{"name", "points": [POINT]}]}]}``. A
point is ``{"x", "y", "low", "high", "state"}``: low and high are its spread, its state is pass, oom, thrash or failed.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import check_output, check_type
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.trace_visuals.labels import plain
from iotwin.trace_visuals.style import FIGURE_RC, PICTURE_TYPES, TRACE_COLOURS, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_PANEL_INCHES = (2.6, 2.1)
_MARKERS = "os^Dv<>"
_MOST_WITHIN = 4  # if there are more curves, the legend is drawn outside the axes
_LEGEND_INCHES, _LEGEND_LINE_INCHES = 1.5, 0.15
_MARGIN = 0.04  # share of the x axis that is left empty at each end
# marker and legend of points that did not pass, by state
_STATES = {"oom": ("X", "out of memory"), "thrash": ("P", "thrashes"), "failed": ("x", "failed")}
# Shares of the height of the axes: height of the marks of points without a y, and how much lower each further curve's marks are.
_TOP, _BELOW = 0.96, 0.06


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Label, unit and scale of an axis."""

    label: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"

    def text(self) -> str:
        """Return the label of the axis, with its unit."""
        return plain(f"{self.label} ({self.unit})" if self.unit else self.label, 60)


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A point of a curve: one measurement. A run that did not pass may have no `y`."""

    x: float
    y: float | None = None
    low: float | None = None
    high: float | None = None
    state: Literal["pass", "oom", "thrash", "failed"] = "pass"


class PlottedCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name and the points of one curve."""

    name: str
    points: list[Point]


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """A named range of x."""

    first: float
    last: float
    label: str


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One panel of a sheet: its curves and named ranges of x."""

    title: str
    curves: list[PlottedCurve]
    bands: list[Band] = []


class Sheet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document of several panels that share their axes."""

    title: str
    x: Axis
    y: Axis
    panels: list[Panel]


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One curve of a document that has one panel."""

    name: str
    x: list[float]
    y: list[float | None]


class Curves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document of one panel, which contains all its curves."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]

    def sheet(self, path: Path) -> Sheet:
        """Return this document, read from `path`, as a Sheet. Raises UsageError if a series has unequal numbers of x and y."""
        for series in self.series:
            if len(series.x) != len(series.y):
                raise UsageError(f"{path}: series '{series.name}' has {len(series.x)} values of x and {len(series.y)} of y")
        curves = [PlottedCurve(each.name, [Point(x, y) for x, y in zip(each.x, each.y, strict=True)]) for each in self.series]
        return Sheet("", self.x, self.y, [Panel(self.title, curves)])


def read_sheet(path: Path) -> Sheet:
    """Return the document at `path`. Raises UsageError if it is missing, not valid, or holds curves that cannot be drawn."""
    try:
        content = read_foreign_json(path)
        several = isinstance(content, dict) and "panels" in content
        sheet = msgspec.convert(content, Sheet) if several else msgspec.convert(content, Curves).sheet(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (IotwinError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} is no document of curves: {error}") from None
    for panel in sheet.panels:
        _check(path, sheet, panel)
    if not any(curve.points for panel in sheet.panels for curve in panel.curves):
        raise UsageError(f"{path} has no points to draw")
    return sheet


def _check(path: Path, sheet: Sheet, panel: Panel) -> None:
    """Raise UsageError if a value cannot be shown on a logarithmic axis."""
    ends = [value for band in panel.bands for value in (band.first, band.last)]
    named = [("bands", sheet.x, ends)]
    for curve in panel.curves:
        name = f"series '{curve.name}'"
        named.append((name, sheet.x, [point.x for point in curve.points]))
        values = [value for point in curve.points for value in (point.y, point.low, point.high)]
        named.append((name, sheet.y, [value for value in values if value is not None]))
    for name, axis, found in named:
        if axis.scale == "log" and any(value <= 0 for value in found):
            raise UsageError(f"{path}: {name} has values not above 0, which a log axis cannot show")


def plot_curves(paths: list[Path], output: Path) -> dict[str, Any]:
    """Draw the panels of all documents and return ``{"output", "panels": [{"title", "series", "points"}]}``.

    Raises UsageError if a document is not valid or the type of `output` is unknown, IotwinError if the picture cannot be written.
    """
    check_type(output, PICTURE_TYPES)
    check_output(output)
    sheets = [read_sheet(path) for path in paths]
    _draw(sheets, output)
    return {
        "output": str(output),
        "panels": [
            {
                "title": panel.title,
                "series": len(panel.curves),
                "points": sum(len(curve.points) for curve in panel.curves),
            }
            for sheet in sheets
            for panel in sheet.panels
        ],
    }


def _draw(sheets: list[Sheet], output: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = [(sheet, panel) for sheet in sheets for panel in sheet.panels]
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    outside = [len(panel.curves) > _MOST_WITHIN or bool(panel.bands or _states(panel)) for _, panel in panels]
    longest = max(len(panel.curves) + len(_states(panel)) for _, panel in panels)
    width = _PANEL_INCHES[0] + (_LEGEND_INCHES if any(outside) else 0)
    height = max(_PANEL_INCHES[1], _LEGEND_LINE_INCHES * longest + 0.3 if any(outside) else 0)
    with mpl.rc_context(FIGURE_RC):
        figure = Figure((width * max(columns, 1.4), height * rows + 0.3), layout="constrained")
        if title := ", ".join(sheet.title for sheet in sheets if sheet.title):
            figure.suptitle(plain(title, 120))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for spare in axes[len(panels) :]:
            spare.set_axis_off()
        for own_axes, (sheet, panel), is_outside in zip(axes, panels, outside, strict=False):
            _draw_panel(own_axes, sheet, panel, is_outside)
        save_figure(figure, output)


def _draw_panel(axes: "Axes", sheet: Sheet, panel: Panel, legend_outside: bool) -> None:
    axes.set_title(plain(panel.title, 60))
    axes.set_xscale(sheet.x.scale)
    axes.set_yscale(sheet.y.scale)
    for index, curve in enumerate(panel.curves):
        _draw_curve(axes, index, curve)
    _show_all(axes, sheet, panel)
    _draw_bands(axes, panel.bands)
    for state in _states(panel):
        marker, meaning = _STATES[state]
        axes.plot([], [], marker, color="0.4", markersize=4, label=meaning)
    axes.set_xlabel(sheet.x.text())
    axes.set_ylabel(sheet.y.text())
    axes.spines[["top", "right"]].set_visible(False)
    if legend_outside:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0)
    elif len(panel.curves) > 1:
        axes.legend(frameon=False)


def _states(panel: Panel) -> list[str]:
    """Return the states other than pass that points of the panel have."""
    found = {point.state for curve in panel.curves for point in curve.points}
    return [state for state in _STATES if state in found]


def _draw_curve(axes: "Axes", index: int, curve: PlottedCurve) -> None:
    """Draw a line through the points that passed, their spread, and a mark for each other point.

    A point without y is at the top.
    """
    points = sorted(curve.points, key=lambda point: point.x)
    colour = TRACE_COLOURS[index % len(TRACE_COLOURS)]
    gap = float("nan")
    x = [point.x for point in points]
    passed = [point if point.state == "pass" else Point(point.x) for point in points]
    # Hollow marks of different shapes, so that overlapping curves all remain visible.
    axes.plot(
        x, [gap if point.y is None else point.y for point in passed], marker=_MARKERS[index % len(_MARKERS)], markersize=3.5,
        markerfacecolor="none", markeredgewidth=0.8, linewidth=1, color=colour, label=plain(curve.name, 60), clip_on=False,
    )  # fmt: skip
    spread = [(point.x, point.low, point.high) for point in passed if point.low is not None and point.high is not None]
    if spread:
        along, low, high = (list(values) for values in zip(*spread, strict=True))
        axes.fill_between(along, low, high, color=colour, alpha=0.2, linewidth=0)
    for point in points:
        if point.state != "pass":
            y, scale = (_TOP - _BELOW * index, axes.get_xaxis_transform()) if point.y is None else (point.y, axes.transData)
            axes.plot([point.x], [y], _STATES[point.state][0], color=colour, markersize=4, transform=scale, clip_on=False)


def _draw_bands(axes: "Axes", bands: list[Band]) -> None:
    """Shade the named ranges of x. Each name is written along its range's left edge."""
    for index, band in enumerate(sorted(bands, key=lambda band: band.first)):
        axes.axvspan(band.first, band.last, color="0.5", alpha=0.12 + 0.1 * (index % 2), linewidth=0, zorder=0)
        axes.annotate(
            plain(band.label, 40), (band.first, 0), (2, 3), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
            rotation=90, fontsize=6, color="0.35", va="bottom", ha="left",
        )  # fmt: skip


def _show_all(axes: "Axes", sheet: Sheet, panel: Panel) -> None:
    """Extend the x axis to every x of the document, even if all curves have a gap there, and a linear y axis to 0."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    x = [point.x for curve in panel.curves for point in curve.points]
    x += [end for band in panel.bands for end in (band.first, band.last)]
    least, most = min(x, default=0.0), max(x, default=0.0)
    if most > least and sheet.x.scale == "log":
        axes.set_xlim(least / (most / least) ** _MARGIN, most * (most / least) ** _MARGIN)
    elif most > least:
        axes.set_xlim(least - _MARGIN * (most - least), most + _MARGIN * (most - least))
    if sheet.y.scale == "linear":
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    if any(point.state != "pass" and point.y is None for curve in panel.curves for point in curve.points):
        # Leave room above the measured points for the marks of runs without a y.
        least, most = axes.transScale.transform([(1, end) for end in axes.get_ylim()])[:, 1]
        room = 1 - _TOP + _BELOW * len(panel.curves)
        top = axes.transScale.inverted().transform([(1, least + (most - least) / (1 - room))])[0, 1]
        axes.set_ylim(top=top)
    for axis, shown in ((axes.xaxis, sheet.x), (axes.yaxis, sheet.y)):
        if shown.scale == "log":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))  # matplotlib's own labels are TeX
            axis.set_minor_formatter(NullFormatter())
