"""Convert DLIO's other spellings to the schema's: keys with two names, times in two keys, words in place of sections."""

import re
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.common.units import parse_size
from iotwin.workload_yaml.dataset import OTHER_NAMES, known_columns

# Keys that have another path in DLIO, or in an earlier version of iotwin, than in the schema.
_OTHER_NAMES = {
    "data_reader": "reader",
    **{f"dataset.{other}": f"dataset.{name}" for other, name in OTHER_NAMES.items()},
    "model.model_size": "model.model_size_bytes",
    "checkpoint.model_size": "model.model_size_bytes",
    "reader.seed": "train.seed",
    # in twins that earlier versions fitted
    "twin.recorded.computation_scale": "train.computation_scale",
    "twin.checkpoint.keep_epoch_ends": "twin.checkpoint.keep_every",
    "twin.checkpoint.after_steps": "twin.checkpoint.after",
    "hydra.run.dir": "output.folder",
    "accelerator.memory_budget": "train.computation_time.budget",  # a key of a step time of the type rematerialized
}
_LOCAL_URL = re.compile("^(file|direct)://")  # beginnings of local paths in MLCommons' fork of DLIO
_SHUFFLES = ("reader.file_shuffle", "reader.sample_shuffle")
# Values that DLIO treats as if the key were not given. The class named here is PyTorch's own loader, which DLIO always uses.
_NONE_VALUES = {
    "reader.prefetch_size": 0,
    "checkpoint.time_between_checkpoints": -1,
    "evaluation.epochs_between_evals": 0,
    "reader.data_loader_classname": "torch.utils.data.DataLoader",
}
# DLIO gives the standard deviation of a time in a second key of the same section. Each entry maps the time's path to that key.
_STDEV_KEYS = {
    "train.computation_time": "computation_time_stdev",
    "evaluation.eval_time": "eval_time_stdev",
    "reader.preprocess_time": "preprocess_time_stdev",
}


def known_name(path: str, value: Any) -> str:
    """Return the schema's path for the key that a YAML or an override names `path`."""
    path = path.removeprefix("workload.")
    if path == "model" and isinstance(value, str):
        return "model.name"
    if path.startswith("data_reader."):
        path = "reader." + path.removeprefix("data_reader.")
    return _OTHER_NAMES.get(path, path)


def known_value(path: str, value: Any) -> Any:
    """Return `value` of the schema's key `path` in the schema's spelling; None if the value has no effect."""
    if path in _SHUFFLES and value is False:  # a YAML 1.1 parser reads `off` as False
        return "off"
    if path == "checkpoint.checkpoint_folder" and isinstance(value, str):
        return _LOCAL_URL.sub("", value)
    if path == "train.computation_time.budget" and isinstance(value, str):
        return parse_size(value)
    if path == "dataset.parquet.columns" and isinstance(value, list):
        return known_columns(value)
    if path == "twin.checkpoint.keep_every" and isinstance(value, bool):  # the value of the earlier key keep_epoch_ends
        return "epoch" if value else None
    if path == "twin.checkpoint.files" and isinstance(value, list):
        return [_known_file(file) if isinstance(file, dict) else file for file in value]
    return None if path in _NONE_VALUES and value == _NONE_VALUES[path] else value


def _known_file(file: dict[str, Any]) -> dict[str, Any]:
    return {"after" if key in ("epochs", "after_steps") else key: value for key, value in file.items()}


def fold_deviations(raw: dict[str, Any]) -> None:
    """Combine each time in `raw` with its standard deviation, which is in a separate key, into one distribution.

    As in DLIO, a distribution without a `type` is normal, and an empty distribution is a time of 0. Raises UsageError if a time
    with a separate deviation already has a deviation, or is neither a number nor normal nor lognormal.
    """
    for path, stdev_key in _STDEV_KEYS.items():
        section_name, key = path.split(".")
        section = raw.get(section_name)
        if not isinstance(section, dict):
            continue
        stdev = section.pop(stdev_key, None)
        time = 0.0 if section.get(key) is None else section[key]
        if isinstance(time, dict) and "type" not in time:
            time = section[key] = {"type": "normal", **time} if time else 0.0
        if stdev is None or stdev == 0:
            continue
        if isinstance(time, dict):
            if "stdev" in time or time["type"] not in ("normal", "lognormal"):
                raise UsageError(f"{section_name}.{stdev_key}: {path} is a distribution; give its parameters there")
            section[key] = {**time, "stdev": stdev}
        else:
            section[key] = {"type": "normal", "mean": time, "stdev": stdev}
