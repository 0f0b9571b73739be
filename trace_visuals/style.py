"""Colours, fonts and file types of all pictures. The colours can be distinguished with any colour vision.

Source: M. Okabe and K. Ito, "Color Universal Design" (2008).
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from iotwin.common.files import open_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE_TYPES = (".png", ".svg", ".pdf")

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"

# Colours of groups of calls, by their names in call_columns.GROUPS.
GROUP_COLOURS = {"read": BLUE, "write": VERMILLION, "open": GREEN, "sync": PURPLE, "wait": ORANGE, "other": GREY}
PHASE_COLOURS = {"init": "#D9D9D9", "epoch": "#BBDDF2", "block": "#BBDDF2", "evaluation": YELLOW, "checkpoint": ORANGE}
CPU_COLOURS = {"user": "#E3D3AE", "system": "#AD8B57", "iowait": "#5E4826"}  # from sand to brown; no other row uses these
BLOCK_COLOURS = {"read": SKY, "write": ORANGE}
PART_COLOUR = GREY  # one colour for all parts of steps, since jobs name their own parts
# colours of the parts of a checkpoint: writing, copying, waiting
CHECKPOINT_COLOURS = {"persist": VERMILLION, "snapshot": ORANGE, "stall": BLACK}
PASS_COLOURS = {"F": SKY, "B": ORANGE}  # forward and backward passes of a pipeline
MOMENT_COLOURS, MOMENT_MARKERS = {"killed": VERMILLION, "resumed": GREEN}, {"killed": "X", "resumed": ">"}
DEVICE_COLOURS = {"kernel": GREEN, "copy": PURPLE}
RECOMPUTE_COLOURS = {"base": GREEN, "recomputed": ORANGE, "search": PURPLE}  # as on the report's page
TRACE_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)

FIGURE_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 7.5, "axes.linewidth": 0.6, "axes.labelsize": 7.5, "axes.titlesize": 8.5,
    "xtick.labelsize": 7, "ytick.labelsize": 6.5, "legend.fontsize": 7, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "svg.fonttype": "none", "pdf.fonttype": 42, "figure.facecolor": "white", "axes.facecolor": "white", "text.parse_math": False,
    "svg.hashsalt": "iotwin",
}  # fmt: skip


class Origin(NamedTuple):
    """Where a picture comes from, for its metadata: the program with its version, the command line, and what is drawn."""

    creator: str
    command: str
    subject: str = ""


# The keys of an Origin's fields, by file type: those that the formats define.
_ORIGIN_KEYS = {
    "png": ("Software", "Source", "Description"), "svg": ("Creator", "Source", "Description"),
    "pdf": ("Creator", "Keywords", "Subject"),
}  # fmt: skip


def save_figure(
    figure: "Figure", path: Path, dpi: int = 200, bbox_inches: str | None = None, origin: Origin | None = None
) -> None:
    """Write a figure to `path` in the format of its suffix, one of PICTURE_TYPES. Equal figures give equal bytes."""
    file_type = path.suffix.lower().removeprefix(".")
    date: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_type, {})
    if origin is not None:
        date |= dict(zip(_ORIGIN_KEYS[file_type], origin, strict=True))
    with warnings.catch_warnings(), open_whole(path) as file:
        # Characters that the font lacks are drawn as boxes, without a warning on the terminal.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format=file_type, dpi=dpi, metadata=date, bbox_inches=bbox_inches)
