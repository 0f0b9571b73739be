"""Reads curves for plots: those of a sweep, or measurements in the format of DTR's authors."""

from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.untrusted_files import read_foreign_json

_PARTS = {
    "time": "wall",
    "base_compute_time": "operators",
    "remat_compute_time": "rematerialisation",
    "search_time": "search",
    "cost_time": "cost",
}


def panels_of(sources: list[Path]) -> list[dict[str, Any]]:
    """Return the panels of a plot as JSON objects. `sources`: a sweep's folder, or CONFIG.json and DATA.json of DTR's authors."""
    if len(sources) == 1 and sources[0].is_dir():
        curves = sources[0] / "curves.json"
        if not curves.is_file():
            raise UsageError(f"{sources[0]} holds no curves.json; run iotwin dtr sweep -o {sources[0]} first")
        panels = _read(curves)["panels"]
        return [panel for panel in panels if panel["series"]]
    if len(sources) != 2 or not all(source.is_file() for source in sources):
        raise UsageError("give the directory of a sweep, or CONFIG.json and DATA.json")
    try:
        return _measured(_read(sources[0]), _read(sources[1]), sources[1])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise UsageError(f"{sources[0]} and {sources[1]} are not the configuration and data of an experiment") from None


def _read(path: Path) -> Any:
    try:
        return read_foreign_json(path)
    except IotwinError as error:
        raise UsageError(str(error)) from None


def _measured(config: Any, data: Any, path: Path) -> list[dict[str, Any]]:
    """Return a panel per model: median ms per batch over the memory budget in GB, with a curve for the total and each part."""
    if not isinstance(config, dict) or not isinstance(data, dict):
        raise UsageError(f"{path} is not the data of an experiment")
    wanted = config.get("models") or [name for name in data if name != "timestamp"]
    panels = []
    for model in wanted:
        rows = [row for row in data.get(model, []) if isinstance(row.get("summary"), list) and row["summary"]]
        budgeted = [row for row in rows if row["specific_params"].get("memory_budget")]
        budgeted.sort(key=lambda row: float(row["specific_params"]["memory_budget"]))
        x = [float(row["specific_params"]["memory_budget"]) / 1e9 for row in budgeted]
        series = [
            {"name": name, "x": x, "y": [row["summary"][0].get(key, {}).get("median") for row in budgeted]}
            for key, name in _PARTS.items()
        ]
        if x:
            panels.append(
                {
                    "title": model,
                    "x": {"label": "memory budget", "unit": "GB"},
                    "y": {"label": "a batch", "unit": "ms"},
                    "series": series,
                }
            )
    if not panels:
        raise UsageError(f"{path} has no measured run of the models in the configuration")
    return panels
