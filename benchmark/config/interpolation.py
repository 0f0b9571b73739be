"""OmegaConf's interpolations in values: ``${dataset.data_folder}/eval``, ``${oc.env:SCRATCH,/tmp}``, ``${now:%Y-%m-%d}``."""

import os
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmark.config.schema import Config
from benchmark.config.spelling import known_name
from tracing_tools.trace.errors import UsageError, nearest

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")


def interpolate(raw: dict[str, Any], where: str) -> None:
    """Replace every interpolation in the values of `raw`; a value that is nothing else takes on the type of what it names.

    Keys that `raw` does not say have their defaults. Raises UsageError, naming the key, for what is not there.
    """
    _Interpolation(raw, where).replace(raw, "")


class _Interpolation:
    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._raw, self._where = raw, where
        self._under_way: list[str] = []

    def replace(self, value: Any, at: str) -> Any:
        """Return `value` with what it names; mappings and lists are changed in place."""
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
        return text

    def _value(self, name: str, at: str) -> Any:
        resolver, colon, argument = name.partition(":")
        if not colon:
            return self._key(_absolute(name, at), at)
        if resolver == "now":
            return time.strftime(argument)
        if resolver != "oc.env":
            raise UsageError(f"{self._where}: {at}: '${{{name}}}' is not supported; use a key, oc.env: or now:")
        variable, comma, default = argument.partition(",")
        if variable.strip() not in os.environ and not comma:
            raise UsageError(f"{self._where}: {at}: the environment variable {variable.strip()} is not set")
        return os.environ.get(variable.strip(), default.strip())

    def _key(self, key: str, at: str) -> Any:
        if key in self._under_way:
            raise UsageError(f"{self._where}: {at}: ${{{key}}} leads back to itself; write the value out")
        self._under_way.append(key)
        said, usual = self._raw, msgspec.to_builtins(Config())
        found = _looked_up(said, key)
        if found is None:
            found = _looked_up(usual, key)
        if found is None:
            raise UsageError(f"{self._where}: {at}: ${{{key}}} names no value{nearest(key, [*_paths(usual), *_paths(said)])}")
        found = self.replace(found, key)
        self._under_way.pop()
        return found


def _absolute(name: str, at: str) -> str:
    """Return the path that `name` in the value at `at` means: one dot before it is the same section, two the one around it."""
    dots = len(name) - len(name.lstrip("."))
    around = at.split(".")[: -dots or None] if dots else []
    return known_name(".".join([*around, name.lstrip(".")]), "")


def _looked_up(source: Any, key: str) -> Any:
    """Return the value at `key`, None where there is none."""
    for part in key.split("."):
        source = source.get(part) if isinstance(source, dict) else None
    return source


def _paths(source: dict[str, Any], at: str = "") -> Iterator[str]:
    for key, value in source.items():
        yield f"{at}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{at}{key}.")
