"""Colours and type of every picture: the Okabe-Ito palette, which people with any colour vision can distinguish.

Source: M. Okabe and K. Ito, "Color Universal Design" (2008).
"""

from typing import Any

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"

# By the names in calls.GROUPS.
GROUP_COLOURS = {"read": BLUE, "write": VERMILLION, "open": GREEN, "sync": PURPLE, "wait": ORANGE, "other": GREY}
PHASE_COLOURS = {"init": "#D9D9D9", "epoch": "#BBDDF2", "block": "#BBDDF2", "evaluation": YELLOW, "checkpoint": ORANGE}
CPU_COLOURS = {"user": "#E3D3AE", "system": "#AD8B57", "iowait": "#5E4826"}  # sand to brown, of which nothing else is
BLOCK_COLOURS = {"read": SKY, "write": ORANGE}
PART_COLOUR = GREY  # of a step; their names are the job's own
CHECKPOINT_COLOURS = {"persist": VERMILLION, "snapshot": ORANGE, "stall": BLACK}  # written, copied, waited for
DEVICE_COLOURS = {"kernel": GREEN, "copy": PURPLE}
TRACE_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)

FIGURE_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 7.5, "axes.linewidth": 0.6, "axes.labelsize": 7.5, "axes.titlesize": 8.5,
    "xtick.labelsize": 7, "ytick.labelsize": 6.5, "legend.fontsize": 7, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "svg.fonttype": "none", "pdf.fonttype": 42, "figure.facecolor": "white", "axes.facecolor": "white", "text.parse_math": False,
    "svg.hashsalt": "iotwin",
}  # fmt: skip
