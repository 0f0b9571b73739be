"""Draws the pictures of ``iotwin dtr run``, ``iotwin dtr plot`` and ``iotwin dtr chain``."""

from pathlib import Path
from typing import Any


def check_picture(output: Path) -> None:
    """Raise UsageError if no picture can be written to `output`. Call this before the picture's data are computed."""
    from iotwin.common.files import check_output, check_type
    from iotwin.trace_visuals.style import PICTURE_TYPES

    check_type(output, PICTURE_TYPES)
    check_output(output)


def draw(document: dict[str, Any], output: Path) -> None:
    """Draw a document with bars or curves, made by `workloads.dtr.experiments.pictures`."""
    from iotwin.common.files import scratch_folder, write_json
    from iotwin.trace_visuals.curves import plot_curves
    from iotwin.trace_visuals.stacked_bars import plot_stacked_bars

    if "parts" in document:
        plot_stacked_bars(document, output)
        return
    with scratch_folder() as scratch:
        write_json(scratch / "curves.json", document)
        plot_curves([scratch / "curves.json"], output)


def draw_residency(rows: list[list[int]], title: str, output: Path) -> None:
    """Draw which tensors are in memory: `rows` has a row of 0 and 1 for each tensor, and a column for each unit of time."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    from iotwin.trace_visuals.style import BLUE, FIGURE_RC, save_figure

    with mpl.rc_context(FIGURE_RC):
        figure = Figure((5, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.imshow(rows, ListedColormap(["white", BLUE]), vmin=0, vmax=1, aspect="auto", origin="lower", interpolation="nearest")
        axes.set_title(title)
        axes.set_xlabel("operations so far")
        axes.set_ylabel("tensor, in order of first computation")
        save_figure(figure, output)
