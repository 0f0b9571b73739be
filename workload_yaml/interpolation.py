"""Replace OmegaConf's interpolations: ``${dataset.data_folder}/eval``, ``${oc.env:SCRATCH,/tmp}``, ``${now:%Y-%m-%d}``."""

import os
import re
import time
from typing import Any

import msgspec

from iotwin.common.errors import UsageError, nearest
from iotwin.workload_yaml.dlio_spellings import known_name
from iotwin.workload_yaml.overrides import paths_in, value_at
from iotwin.workload_yaml.schema import Config

_LONGEST_TEXT = 1 << 16  # characters of a value after its interpolations are replaced
_MOST_REPLACED = 10_000
_MOST_VALUES = 1_000_000  # values of one workload
_LOCAL = ("local_fs", "parallel_fs", "direct_fs")
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")


def interpolate(raw: dict[str, Any], where: str) -> None:
    """Replace every interpolation in the values of `raw`. If `raw` lacks the key that one names, the key's default is used.

    Raises UsageError if an interpolation is unknown, or if its result is larger than any workload needs. Also raises it if a
    value has an environment variable and the data are on another machine, as that machine would learn the variable.
    """
    interpolation = _Interpolation(raw, where)
    interpolation.replace(raw, "")
    if interpolation.from_environment and (remote := _remote(raw)):
        raise UsageError(
            f"{where}: {interpolation.from_environment[0]}: takes a variable of the environment into a workload that speaks to "
            f"another machine ({remote}); write the value out, or give it on the command line"
        )


def _remote(raw: dict[str, Any]) -> str:
    storage_type = value_at(raw, "storage.storage_type")
    if storage_type is not None and storage_type not in _LOCAL:
        return "storage.storage_type"
    for key in ("dataset.data_folder", "storage.storage_root", "checkpoint.checkpoint_folder"):
        if "://" in str(value_at(raw, key)) or "::" in str(value_at(raw, key)):
            return key
    return ""


def _now(form: str, where: str) -> str:
    try:
        return time.strftime(form)
    except (ValueError, UnicodeError):
        raise UsageError(f"{where}: ${{now:}} does not know the form {form!r}; write for example ${{now:%Y-%m-%d}}") from None


class _Interpolation:
    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._raw, self._where = raw, where
        self._under_way: list[str] = []
        self._looked_at = self._replaced = 0
        self.from_environment: list[str] = []  # keys whose values contain an environment variable

    def replace(self, value: Any, at: str) -> Any:
        """Return `value` with its interpolations replaced. Mappings and lists are changed in place."""
        self._looked_at += 1
        if self._looked_at > _MOST_VALUES:
            raise UsageError(f"{self._where}: {at}: its ${{...}} stand for more than {_MOST_VALUES} values; write fewer out")
        match value:
            case dict():
                value.update({key: self.replace(item, f"{at}.{key}".lstrip(".")) for key, item in value.items()})
            case list():
                value[:] = [self.replace(item, at) for item in value]
            case str():
                return self._text(value, at)
        return value

    def _text(self, text: str, at: str) -> Any:
        while found := _INNERMOST.search(text):
            named = self._value(found[1].strip(), at)
            if found[0] == text:
                return named
            if isinstance(named, dict | list):
                raise UsageError(f"{self._where}: {at}: {found[0]} is a section or a list, which cannot be part of a text")
            text = f"{text[: found.start()]}{named}{text[found.end() :]}"
            if len(text) > _LONGEST_TEXT:
                raise UsageError(f"{self._where}: {at}: comes to over {_LONGEST_TEXT} characters by its ${{...}}; write it out")
        return text

    def _value(self, name: str, at: str) -> Any:
        self._replaced += 1
        if self._replaced > _MOST_REPLACED:
            raise UsageError(f"{self._where}: {at}: has more than {_MOST_REPLACED} ${{...}} to replace; write values out")
        resolver, colon, argument = name.partition(":")
        if not colon:
            return self._key(_absolute(name, at), at)
        if resolver == "now":
            return _now(argument, f"{self._where}: {at}")
        if resolver != "oc.env":
            raise UsageError(f"{self._where}: {at}: '${{{name}}}' is not supported; use a key, oc.env: or now:")
        variable, comma, default = argument.partition(",")
        if variable.strip() not in os.environ and not comma:
            raise UsageError(f"{self._where}: {at}: the environment variable {variable.strip()} is not set")
        self.from_environment.append(at)
        return os.environ.get(variable.strip(), default.strip())

    def _key(self, key: str, at: str) -> Any:
        if key in self._under_way:
            raise UsageError(f"{self._where}: {at}: ${{{key}}} leads back to itself; write the value out")
        self._under_way.append(key)
        given, usual = self._raw, msgspec.to_builtins(Config())
        found = value_at(given, key)
        if found is None:
            found = value_at(usual, key)
        if found is None:
            raise UsageError(
                f"{self._where}: {at}: ${{{key}}} names no value{nearest(key, [*paths_in(usual), *paths_in(given)])}"
            )
        found = self.replace(found, key)
        self._under_way.pop()
        return found


def _absolute(name: str, at: str) -> str:
    """Return the path of the key that an interpolation in the value at the path `at` calls `name`.

    In `name`, one leading dot means the section of `at`, two dots mean the section that contains this section.
    """
    dots = len(name) - len(name.lstrip("."))
    around = at.split(".")[: -dots or None] if dots else []
    return known_name(".".join([*around, name.lstrip(".")]), "")
