"""The pictures of an experiment's finished cells."""

from pathlib import Path
from typing import Any

from common.progress import note
from common.workloads import workload_named


def draw_plots(kind: str, finished: list[dict[str, Any]], cells: Path, output: Path) -> None:
    """Draw the cells of the records `finished`, whose directories are in `cells`, into the directory `output`.

    `timeline`: a picture for each place in the grid, its variants below one another on one time axis. `steps`: the breakdown,
    throughputs, latencies and compute times of all. Raises IotwinError for cells that cannot be drawn.
    """
    if kind == "steps":
        from trace_visuals.steps import plot_steps

        plot_steps([cells / record["cell"] for record in finished], output / "steps")
        note(f"drew {output / 'steps'}")
        return
    from trace_visuals.timeline import plot_timeline

    output.mkdir(exist_ok=True)
    for place, records in _places(finished).items():
        picture = output / f"{place}.png"
        plot_timeline([cells / record["cell"] / "trace" for record in records], picture)
        note(f"drew {picture}")


def _places(finished: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each place in the grid: those that differ in their variants only, the original first."""
    places: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(finished, key=lambda record: workload_named(record["workload"]).variants.index(record["variant"])):
        places.setdefault(record["cell"].replace(f"-{record['variant']}-", "-", 1), []).append(record)
    return places
