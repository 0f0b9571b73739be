"""Draw stacked bars from a document: a panel for each model, a bar for each setting, coloured by part.

A document is ``{"title", "x": AXIS, "y": AXIS, "parts": [NAME], "panels": [{"title", "bars": [BAR]}]}`` with the axes of
`curves`. A bar is ``{"label", "values": {PART: NUMBER}, "failed"}``: parts are stacked in the order of `parts`. A dashed line
marks a bar that failed.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iotwin.common.errors import UsageError
from iotwin.common.files import check_output, check_type
from iotwin.trace_visuals.curves import Axis
from iotwin.trace_visuals.labels import plain
from iotwin.trace_visuals.style import BLUE, FIGURE_RC, GREEN, GREY, ORANGE, PICTURE_TYPES, PURPLE, SKY, VERMILLION, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 4
_PANEL_INCHES = (2.4, 2.2)
_COLOURS = (BLUE, ORANGE, PURPLE, GREEN, SKY, GREY)


class Bar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bar: its label, its values by part, and whether what it shows failed."""

    label: str
    values: dict[str, float]
    failed: bool = False


class BarPanel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bars of one panel."""

    title: str
    bars: list[Bar]


class BarSheet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document: panels that share their axes and parts."""

    title: str
    x: Axis
    y: Axis
    parts: list[str]
    panels: list[BarPanel]


def plot_stacked_bars(document: dict[str, Any], output: Path) -> None:
    """Draw `document`. Raises UsageError if it is not valid or the type of `output` is unknown."""
    check_type(output, PICTURE_TYPES)
    check_output(output)
    try:
        sheet = msgspec.convert(document, BarSheet)
    except msgspec.ValidationError as error:
        raise UsageError(f"no document of stacked bars: {error}") from None
    unknown = {part for panel in sheet.panels for bar in panel.bars for part in bar.values} - set(sheet.parts)
    if unknown:
        raise UsageError(f"no document of stacked bars: parts has no '{min(unknown)}'")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(sheet.panels))
    rows = -(-len(sheet.panels) // columns)
    colours = {part: _COLOURS[index % len(_COLOURS)] for index, part in enumerate(sheet.parts)}
    with mpl.rc_context(FIGURE_RC):
        figure = Figure((_PANEL_INCHES[0] * max(columns, 1.6), _PANEL_INCHES[1] * rows + 0.5), layout="constrained")
        if sheet.title:
            figure.suptitle(plain(sheet.title, 120))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for spare in axes[len(sheet.panels) :]:
            spare.set_axis_off()
        for own_axes, panel in zip(axes, sheet.panels, strict=False):
            _draw_panel(own_axes, sheet, panel, colours)
        used = [part for part in sheet.parts if any(part in bar.values for panel in sheet.panels for bar in panel.bars)]
        handles = [axes[0].bar([0], [0], color=colours[part], label=plain(part, 40)) for part in used]
        if any(bar.failed for panel in sheet.panels for bar in panel.bars):
            handles.append(axes[0].plot([], [], color=VERMILLION, linestyle="--", label="failed or too slow")[0])
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        save_figure(figure, output)


def _draw_panel(axes: "Axes", sheet: BarSheet, panel: BarPanel, colours: dict[str, str]) -> None:
    bottoms = [0.0] * len(panel.bars)
    for part in sheet.parts:
        heights = [bar.values.get(part, 0.0) for bar in panel.bars]
        axes.bar(range(len(heights)), heights, bottom=bottoms, color=colours[part], width=0.8)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for index, bar in enumerate(panel.bars):
        if bar.failed:
            axes.axvline(index, color=VERMILLION, linestyle="--", linewidth=1)
    axes.set_title(plain(panel.title, 60))
    axes.set_xticks(range(len(panel.bars)), ["\n".join(plain(line, 20) for line in bar.label.split("\n")) for bar in panel.bars])
    axes.set_xlim(-0.6, len(panel.bars) - 0.4)
    axes.set_xlabel(sheet.x.text())
    axes.set_ylabel(sheet.y.text())
    axes.spines[["top", "right"]].set_visible(False)
