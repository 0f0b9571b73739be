"""Draw comparisons: the curves of both traces for each dimension of similarity, and the matrix of many traces against many."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from iotwin.common.files import check_type
from iotwin.trace_visuals.labels import plain
from iotwin.trace_visuals.style import BLUE, FIGURE_RC, PICTURE_TYPES, VERMILLION, save_figure
from iotwin.tracesim import Curve, Dimension, Similarity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_PANEL_INCHES = (2.4, 1.7)
_CELL_INCHES = 0.42
_LONGEST_NAME = 255  # characters of the longest possible file name: names of traces are not shortened
_COLOURS = (BLUE, VERMILLION)


def plot_similarity(similarity: Similarity, path: Path) -> None:
    """Draw the curves of A and B for every dimension, under its score. Raises UsageError if the file type is unknown."""
    check_type(path, PICTURE_TYPES)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = -(-len(similarity.dimensions) // _COLUMNS)
    with mpl.rc_context(FIGURE_RC):
        size = (_PANEL_INCHES[0] * _COLUMNS, _PANEL_INCHES[1] * rows + 0.5)
        figure = Figure(size, layout="constrained")
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for panel in panels[len(similarity.dimensions) :]:
            panel.set_axis_off()
        for panel, dimension in zip(panels, similarity.dimensions, strict=False):
            _draw_dimension(panel, dimension)
        overall = "withheld" if similarity.overall is None else f"{similarity.overall:.3f}"
        names = [plain(Path(name).name, 40) for name in (similarity.path_a, similarity.path_b)]
        figure.suptitle(f"overall {overall}\n{fill(plain(similarity.verdict, 200), 110)}", fontsize=8)
        handles = [panels[0].plot([], [], color=colour, label=name)[0] for colour, name in zip(_COLOURS, names, strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
        save_figure(figure, path)


def _short(value: float, _: int) -> str:
    """Return the label of a tick on a logarithmic axis: 0.001, 1, 4Ki, 1Mi."""
    if value < 1000:
        return f"{value:g}"
    power = min(int(np.log2(value) // 10), 4)
    return f"{value / 1024**power:.3g}{('', 'Ki', 'Mi', 'Gi', 'Ti')[power]}"


def _draw_dimension(panel: "Axes", dimension: Dimension) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_title(f"{dimension.name.replace('_', ' ')}  {dimension.score:.3f}")
    curves = (dimension.curve_a, dimension.curve_b)
    if dimension.curve_a.labels:
        _draw_bars(panel, curves)
    else:
        for curve, colour, style in zip(curves, _COLOURS, ("-", "--"), strict=True):
            # Only the part between the first and the last change of a curve is drawn.
            moves = np.flatnonzero(np.diff(curve.y)) if len(curve.y) > 1 else np.empty(0, int)
            shown = slice(max(moves[0], 0), moves[-1] + 2) if len(moves) else slice(None)
            panel.plot(curve.x[shown], curve.y[shown], style, color=colour, linewidth=1.1)
        if _spans_decades(curves):
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(base=32 if curves[0].x[0] >= 1 else 10, numticks=6))
            panel.xaxis.set_major_formatter(FuncFormatter(_short))
            panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel(fill(dimension.x_unit, 34))
    panel.set_ylabel(fill(dimension.unit, 26), fontsize=6.5)
    panel.spines[["top", "right"]].set_visible(False)


def _draw_bars(panel: "Axes", curves: tuple[Curve, Curve]) -> None:
    used = [label for label in dict.fromkeys((*curves[0].labels, *curves[1].labels)) if any(_value(c, label) for c in curves)]
    place = np.arange(len(used))
    for shift, curve, colour in zip((-0.2, 0.2), curves, _COLOURS, strict=True):
        panel.bar(place + shift, [_value(curve, label) for label in used], width=0.4, color=colour)
    panel.set_xticks(place, used, rotation=60, ha="right", fontsize=5.5)


def _value(curve: Curve, label: str) -> float:
    return float(curve.y[curve.labels.index(label)]) if label in curve.labels else 0.0


def _spans_decades(curves: tuple[Curve, Curve]) -> bool:
    """Return True if the x values rise by a constant factor, as in logarithmic histograms."""
    x = curves[0].x
    return len(x) > 2 and x[0] > 0 and abs(x[1] / x[0] - x[-1] / x[-2]) < 1e-6


def plot_matrix(overall: Sequence[Sequence[float | None]], rows: Sequence[str], columns: Sequence[str], path: Path) -> None:
    """Draw the overall score of every row (real) against every column (emulated). A cell is white if its score is withheld."""
    check_type(path, PICTURE_TYPES)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    values = np.array([[np.nan if score is None else score for score in row] for row in overall], dtype=float)
    with mpl.rc_context(FIGURE_RC):
        figure = Figure((2.2 + _CELL_INCHES * len(columns), 1.6 + _CELL_INCHES * len(rows)))
        axes = figure.subplots()
        # The colours span the scores from 0.5, or from the lowest score if it is below 0.5, to 1.
        image = axes.imshow(values, cmap="cividis", vmin=min(0.5, float(np.nanmin(values, initial=1.0))), vmax=1.0)
        for (row, column), value in np.ndenumerate(values):
            text = "-" if np.isnan(value) else f"{value:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color="white" if value <= 0.75 else "black")
        axes.set_xticks(range(len(columns)), [plain(name, _LONGEST_NAME) for name in columns], rotation=45, ha="right")
        axes.set_yticks(range(len(rows)), [plain(name, _LONGEST_NAME) for name in rows])
        figure.colorbar(image, ax=axes, label="overall similarity", shrink=0.8)
        save_figure(figure, path, bbox_inches="tight")  # the picture is as large as its labels need
