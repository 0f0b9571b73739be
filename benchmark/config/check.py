"""From plain values to a Config: unknown keys named with the nearest known one, wrong values with their key, in one line."""

import typing
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from benchmark.config.durations import Quantiles, Uniform
from benchmark.config.schema import Config
from tracing_tools.trace.errors import UsageError, nearest

_SIZES = ("_bytes", "_length", "_stdev", "_resize", "chunk_size", "buffer_size", "transfer_size", "write_size")
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}  # YAML 1.1's


def convert(raw: dict[str, Any], where: str) -> Config:
    """Return the Config that `raw` says; UsageError, one line with `where` and the key, for what is unknown or wrong."""
    for at, key, known in _unknown_keys(raw, Config, ""):
        raise UsageError(f"{where}: {at + '.' if at else ''}{key}: unknown key{nearest(str(key), known)}")
    try:
        config = msgspec.convert(_fitting(raw, Config), Config)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        key = at.strip("`").lstrip(".")
        problem = problem.replace("`", "").replace("Object", "section").replace("object", "section").replace(" | null", "")
        if (allowed := _allowed(key)) and problem.startswith("Invalid "):
            problem = f"{problem.rpartition(' ')[2]} is not supported; use {' or '.join(allowed)}"
        elif key.endswith("time") and problem.endswith("got str"):
            problem += "; times are numbers of seconds, without a unit"
        elif key.endswith(_SIZES) and problem.endswith("got str"):
            problem += "; sizes are numbers of bytes, without a unit"
        raise UsageError(f"{where}: {key + ': ' if key else ''}{problem[0].lower()}{problem[1:]}") from None
    _check(config, where)
    return config


def _unknown_keys(value: Any, annotation: Any, at: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (section, key, known keys) for every key in `value` that the struct in `annotation` does not have."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown_keys(item, annotation, f"{at}[{number}]")
    candidates = list(_structs(annotation))
    if not isinstance(value, dict) or not candidates:
        return
    tagged = [struct for struct in candidates if struct.__struct_config__.tag == value.get("type")]
    if not tagged and all(struct.__struct_config__.tag for struct in candidates):
        return  # an unknown type, which is told from its value
    struct = (tagged or candidates)[0]
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    known = [*fields, *(["type"] if struct.__struct_config__.tag_field else [])]
    for key, item in value.items():
        if key not in known:
            yield at, key, known
        elif key in fields:
            yield from _unknown_keys(item, fields[key], f"{at}.{key}" if at else key)


def _fitting(value: Any, annotation: Any) -> Any:
    """Return `value` without what is null, words for true and false as such, and whole numbers such as 1e6 as integers."""
    kinds = set(_scalars(annotation))
    match value:
        case dict():
            fields = {field.name: field.type for struct in _structs(annotation) for field in msgspec.structs.fields(struct)}
            return {key: _fitting(item, fields.get(key)) for key, item in value.items() if item is not None}
        case list():
            return [_fitting(item, annotation) for item in value]
        case str() if bool in kinds and str not in kinds:
            return _TRUTHS.get(value.lower(), value)
        case float() if int in kinds and float not in kinds and value.is_integer():
            return int(value)
    return value


def _scalars(annotation: Any) -> Iterator[type]:
    if annotation in (bool, int, float, str):
        yield annotation
    for argument in () if typing.get_origin(annotation) is Literal else typing.get_args(annotation):
        yield from _scalars(argument)


def _allowed(key: str) -> list[str]:
    """Return the words that the field at `key`, such as ``reader.file_shuffle``, may hold; none when it holds something else."""
    annotation: Any = Config
    for part in key.split("."):
        fields = {field.name: field.type for struct in _structs(annotation) for field in msgspec.structs.fields(struct)}
        tags = [str(struct.__struct_config__.tag) for struct in _structs(annotation)]
        annotation = tags if part == "type" and part not in fields else fields.get(part.partition("[")[0])
    if isinstance(annotation, list):
        return annotation
    choices = annotation if typing.get_origin(annotation) is Literal else next(_literals(annotation), None)
    return [str(word) for word in typing.get_args(choices)]


def _literals(annotation: Any) -> Iterator[Any]:
    return (part for part in typing.get_args(annotation) if typing.get_origin(part) is Literal)


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _structs(argument)


def _check(config: Config, where: str) -> None:
    """Refuse values that are right one by one but not together; UsageError names the key."""
    wrong = [(key, problem) for key, bad, problem in _conflicts(config) if bad]
    wrong += _wrong_distributions(config, "")
    for number, file in enumerate(config.twin.checkpoint.files):
        if not _is_file_name(file.name):
            wrong.append((f"twin.checkpoint.files[{number}].name", f"'{file.name}' must be a path inside checkpoint_folder"))
    for kind in ("train_files", "eval_files"):
        names = getattr(config.twin, kind) or []
        wrong += [(f"twin.{kind}", f"'{name}' must be a path inside data_folder") for name in names if not _is_file_name(name)]
        if len(set(names)) < len(names):
            wrong.append((f"twin.{kind}", "a name is listed twice"))
    for key in ("dataset.record_element_type", "reader.transformed_record_element_type"):
        section, _, name = key.partition(".")
        if not _is_element_type(word := getattr(getattr(config, section), name)):
            wrong.append((key, f"'{word}' is no element type; give one of numpy's such as uint8 or float32"))
    if wrong:
        raise UsageError(f"{where}: {wrong[0][0]}: {wrong[0][1]}")


def _conflicts(config: Config) -> list[tuple[str, bool, str]]:
    workflow, twin, model = config.workflow, config.twin, config.model
    names = {file.name for file in twin.checkpoint.files}
    nothing = not (workflow.train or workflow.checkpoint or workflow.generate_data or workflow.query)
    is_transformer = model.type == "transformer"
    return [
        ("workflow.train", nothing, "nothing is left to do; set train, checkpoint or generate_data to true"),
        ("train.total_training_steps", config.train.total_training_steps == 0, "must be at least 1, or -1 for all"),
        ("evaluation.total_eval_steps", config.evaluation.total_eval_steps == 0, "must be at least 1, or -1 for all"),
        (
            "checkpoint.checkpoint_folder",
            workflow.checkpoint and "://" in config.checkpoint.checkpoint_folder,
            "is a URL; checkpoints are written to a file system: give a directory, or a bucket's mount point",
        ),
        ("twin.checkpoint.files", len(names) < len(twin.checkpoint.files), "two files have the same name"),
        ("model.num_layers", is_transformer and model.num_layers < 1, "a transformer has at least 1"),
        (
            "model.parallelism.zero_stage",
            model.parallelism.zero_stage == 3 and model.parallelism.pipeline > 1,
            "stage 3 shards the model over all ranks, so pipeline must be 1",
        ),
        (
            "profiling.profiler",
            workflow.profiling and config.profiling.profiler in ("darshan", "tensorboard"),
            "not supported; use iostat or trace",
        ),
    ]


def _wrong_distributions(value: Any, at: str) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) of every distribution within the struct `value` whose parameters do not fit together."""
    match value:
        case Quantiles(values) if any(a > b for a, b in pairwise(values)):
            yield f"{at}.values", "quantiles must ascend"
        case Uniform(low, high) if low > high:
            yield f"{at}.min", "must not be above max"
        case msgspec.Struct():
            for field in msgspec.structs.fields(value):
                yield from _wrong_distributions(getattr(value, field.name), f"{at}.{field.name}" if at else field.name)


def _is_element_type(word: str) -> bool:
    try:
        return np.dtype(word).itemsize > 0 and not np.dtype(word).hasobject
    except TypeError:
        return False


def _is_file_name(name: str) -> bool:
    """Whether `name` stays inside the folder it is joined to: a twin that somebody sent must not write elsewhere."""
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts and "\0" not in name
