"""Draws the pictures of an experiment's data for ``iotwin dtr run`` and ``iotwin dtr plot``."""

from pathlib import Path
from typing import Any


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
