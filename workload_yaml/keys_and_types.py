"""Convert plain values to typed sections. An error names the key, and for an unknown key also the nearest known key."""

import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from iotwin.common.errors import UsageError, nearest

_SIZES = ("_bytes", "_length", "_stdev", "_resize", "chunk_size", "buffer_size", "transfer_size", "write_size")
TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}  # YAML 1.1's words

SectionType = TypeVar("SectionType", bound=msgspec.Struct)


def convert_section(raw: dict[str, Any], struct: type[SectionType], where: Callable[[str], str]) -> SectionType:
    """Return a `struct` with the values of `raw`. `where` returns the origin of a key, for messages.

    Raises UsageError if a key is unknown or a value is wrong. The message is one line with the key and its origin.
    """
    for _, at, key, known in _unknown_keys(raw, struct, ""):
        name = " ".join(f"{at + '.' if at else ''}{key}".split())
        raise UsageError(f"{where(name)}: {name}: unknown key{nearest(str(key), known)}")
    try:
        return msgspec.convert(_fitting(raw, struct), struct)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        key = at.strip("`").lstrip(".")
        problem = problem.replace("`", "").replace("Object", "section").replace("object", "section").replace(" | null", "")
        if (allowed := _allowed(key, struct)) and problem.startswith("Invalid "):
            problem = f"{problem.rpartition(' ')[2]} is not supported; use {' or '.join(allowed)}"
        elif key.endswith("time") and problem.endswith("got str"):
            problem += "; times are numbers of seconds, without a unit"
            problem += "; train.computation_scale multiplies it" if key == "train.computation_time" else ""
        elif key.endswith(_SIZES) and problem.endswith("got str"):
            problem += "; sizes are numbers of bytes, without a unit"
        raise UsageError(f"{where(key)}: {key + ': ' if key else ''}{problem[0].lower()}{problem[1:]}") from None


def without_unknown_keys(raw: dict[str, Any], struct: type[msgspec.Struct], passes_over: Callable[[str], bool]) -> list[str]:
    """Remove unknown keys from `raw` and return their paths. A key is removed if `passes_over` returns True for its path.

    The path of a key within a list has the index of its section, such as ``twin.checkpoint.files[0].name``.
    """
    paths = []
    for section, at, name, _ in list(_unknown_keys(raw, struct, "")):
        path = f"{at}.{name}".lstrip(".")
        if passes_over(path):
            del section[name]
            paths.append(path)
    return paths


def _unknown_keys(value: Any, annotation: Any, at: str) -> Iterator[tuple[dict[str, Any], str, str, list[str]]]:
    """Yield (section, its path, unknown key, the section's known keys) for each unknown key in `value` and its sections."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_keys(item, annotation, f"{at}[{index}]")
    candidates = list(_structs(annotation))
    if not isinstance(value, dict) or not candidates:
        return
    tagged = [struct for struct in candidates if struct.__struct_config__.tag == value.get("type")]
    if not tagged and all(struct.__struct_config__.tag for struct in candidates):
        return  # an unknown `type`, which `convert_section` reports as a wrong value
    struct = (tagged or candidates)[0]
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    known = [*fields, *(["type"] if struct.__struct_config__.tag_field else [])]
    for key, item in value.items():
        if key not in known:
            yield value, at, key, known
        elif key in fields:
            yield from _unknown_keys(item, fields[key], f"{at}.{key}" if at else key)


def _fitting(value: Any, annotation: Any) -> Any:
    """Return `value` in a form that fits the type `annotation`.

    Null values are removed, YAML 1.1's words become booleans, and floats without a fraction, such as 1e6, become integers.
    """
    kinds = set(_scalars(annotation))
    match value:
        case dict():
            fields = {field.name: field.type for struct in _structs(annotation) for field in msgspec.structs.fields(struct)}
            given = {key: item for key, item in value.items() if not _is_nothing(item, fields.get(key))}
            return {key: _fitting(item, fields.get(key)) for key, item in given.items()}
        case list():
            return [_fitting(item, annotation) for item in value]
        case str() if bool in kinds and str not in kinds:
            return TRUTHS.get(value.lower(), value)
        case float() if int in kinds and float not in kinds and value.is_integer():
            return int(value)
    return value


def _is_nothing(value: Any, annotation: Any) -> bool:
    return value is None or (value == "None" and str not in _scalars(annotation))


def _scalars(annotation: Any) -> Iterator[type]:
    if annotation in (bool, int, float, str):
        yield annotation
    for argument in () if typing.get_origin(annotation) is Literal else typing.get_args(annotation):
        yield from _scalars(argument)


def _allowed(key: str, struct: type[msgspec.Struct]) -> list[str]:
    annotation: Any = struct
    for part in key.split("."):
        fields = {field.name: field.type for struct in _structs(annotation) for field in msgspec.structs.fields(struct)}
        tags = [str(struct.__struct_config__.tag) for struct in _structs(annotation)]
        annotation = tags if part == "type" and part not in fields else fields.get(part.partition("[")[0])
    if isinstance(annotation, list):
        return annotation
    choices = next((part for part in (annotation, *typing.get_args(annotation)) if typing.get_origin(part) is Literal), None)
    return [str(word) for word in typing.get_args(choices)]


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _structs(argument)
