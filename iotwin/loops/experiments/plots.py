"""Draws pictures of the finished cells of an experiment."""

from pathlib import Path
from typing import Any

from iotwin.common.files import make_folder
from iotwin.common.progress import note
from iotwin.common.workloads import workload_named


def draw_plots(kind: str, finished: list[dict[str, Any]], cells: Path, output: Path) -> None:
    """Draw the cells with the records `finished`, whose directories are in `cells`, into the directory `output`.

    The `kind` timeline draws a picture for each combination of parameters, with all variants on one time axis. The `kind` steps
    draws the parts, throughputs, latencies and compute times of all cells. Raises IotwinError if a cell cannot be drawn.
    """
    if kind == "steps":
        from iotwin.trace_visuals.steps.plot_steps import plot_steps

        plot_steps([cells / record["cell"] for record in finished], output / "steps")
        note(f"drew {output / 'steps'}")
        return
    from iotwin.trace_visuals.timeline.timeline_figure import plot_timeline

    make_folder(output, below=output.parent)
    for name, records in _by_parameters(finished).items():
        picture = output / f"{name}.png"
        plot_timeline([cells / record["cell"] / "trace" for record in records], picture)
        note(f"drew {picture}")


def _by_parameters(finished: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group the records by the cell's name without the variant. Within a group, the variant original is first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(finished, key=lambda record: workload_named(record["workload"]).variants.index(record["variant"])):
        groups.setdefault(record["cell"].replace(f"-{record['variant']}-", "-", 1), []).append(record)
    return groups
