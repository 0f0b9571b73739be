"""The inputs of a cell: its options and data. They are stored with its result, which counts only for these inputs."""

import hashlib
import json
from pathlib import Path
from typing import Any

from iotwin.common.untrusted_files import read_foreign
from iotwin.common.workloads import EMULATED
from iotwin.loops.experiments.cell import image_of
from iotwin.loops.experiments.experiment import Cell, Experiment, ExperimentDataSet

_LARGEST_FILE_BYTES = 64 << 20
_LONGEST_SHOWN = 80  # most characters of a value in a message
Inputs = dict[str, Any]


def inputs_of(experiment: Experiment, cell: Cell) -> Inputs:
    """Return those inputs of `cell` that are not part of its name, as JSON values. A file is represented by its SHA-256."""
    inputs: Inputs = {
        "options": cell.options,
        "data": inputs_of_data(experiment.data[cell.data]),
        "seed": experiment.seed,
        "gpus": experiment.gpus,
        "image": image_of(experiment, cell) if experiment.container else None,
        "hosts": len(experiment.hosts) or None,
    }
    if cell.variant == "sleep":
        inputs["sleep"] = _with_content(str(cell.jobs.sleep))
    if cell.variant == EMULATED:
        inputs["emulate"] = [_with_content(cell.jobs.emulate[0]), *cell.jobs.emulate[1:]]
    return inputs


def inputs_of_data(data: ExperimentDataSet) -> Inputs:
    """Return the inputs of a data set: its workload, and its folder or the options that generate it."""
    folder = None if data.folder is None else str(Path(data.folder).absolute())
    return {"workload": data.workload, "folder": folder, "generate": data.generate}


def _with_content(word: str) -> str:
    """Return `word` itself or, if `word` is the path of a file, the SHA-256 of its content."""
    path = Path(word)
    return f"sha256:{hashlib.sha256(read_foreign(path, _LARGEST_FILE_BYTES)).hexdigest()}" if path.is_file() else word


def difference(before: Any, now: Any, key: str = "") -> str | None:
    """Return the first difference, such as `options.steps was 2 and is 7`; None if the values are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*map(str, before), *now})
        found = (difference(before.get(name), now.get(name), f"{key}.{name}" if key else name) for name in names)
        return next((each for each in found if each), None)
    there, here = (json.dumps(value, sort_keys=True) for value in (before, now))
    return None if there == here else f"{key} was {there[:_LONGEST_SHOWN]} and is {here[:_LONGEST_SHOWN]}"
