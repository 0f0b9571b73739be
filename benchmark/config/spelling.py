"""DLIO's other spellings: keys with two names, times in two keys, words where others have sections."""

from typing import Any

from common.errors import UsageError
from datagen.dlio.dataset import OTHER_NAMES, known_columns

# Other name to the one of benchmark.config.schema, as paths from the top.
_OTHER_NAMES = {
    "data_reader": "reader",
    **{f"dataset.{other}": f"dataset.{name}" for other, name in OTHER_NAMES.items()},
    "model.model_size": "model.model_size_bytes",
    "checkpoint.model_size": "model.model_size_bytes",
    "reader.seed": "train.seed",
    "hydra.run.dir": "output.folder",
}
_SHUFFLES = ("reader.file_shuffle", "reader.sample_shuffle")
# Keys where DLIO has a number that stands for "none".
_NONE_VALUES = {"reader.prefetch_size": 0, "checkpoint.time_between_checkpoints": -1, "evaluation.epochs_between_evals": 0}
# A time, and the key beside it that makes a normal distribution of it.
_STDEV_KEYS = {
    "train.computation_time": "computation_time_stdev",
    "evaluation.eval_time": "eval_time_stdev",
    "reader.preprocess_time": "preprocess_time_stdev",
}


def known_name(path: str, value: Any) -> str:
    """Return the path that the schema has for what a YAML or an override calls `path`."""
    path = path.removeprefix("workload.")
    if path == "model" and isinstance(value, str):
        return "model.name"
    if path.startswith("data_reader."):
        path = "reader." + path.removeprefix("data_reader.")
    return _OTHER_NAMES.get(path, path)


def known_value(path: str, value: Any) -> Any:
    """Return `value` of the schema's `path` with the schema's words; None stands for a key that says nothing."""
    if path in _SHUFFLES and value is False:  # `off` to a YAML 1.1 reader that wrote it out again
        return "off"
    if path == "dataset.parquet.columns" and isinstance(value, list):
        return known_columns(value)
    return None if path in _NONE_VALUES and value == _NONE_VALUES[path] else value


def fold_deviations(raw: dict[str, Any]) -> None:
    """Make one distribution of each time in `raw` that has its standard deviation in a key of its own.

    A distribution without a `type` is normal, and one without anything is no time at all, as DLIO has it. Raises UsageError where
    both say a deviation.
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
