"""Overrides of the command line, by Hydra's rules: ``key=value``, ``+key=value``, ``++key=value``, ``~key`` and ``~key=value``.

Overrides are merged into sections, and replace lists. An override of a key below a plain value turns the value into a section.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from iotwin.common.errors import UsageError, nearest
from iotwin.workload_yaml.dlio_spellings import known_name, known_value
from iotwin.workload_yaml.schema import Config
from iotwin.workload_yaml.yaml12 import parse

IGNORED = ("hydra.", "hydra/")  # prefixes of Hydra's own settings; only hydra.run.dir has an effect, by `known_name`
_EXAMPLE = "write for example ++workload.reader.batch_size=4"
_KIND = {"": "set", "+": "add", "++": "force", "~": "delete"}
# Hydra writes {a:1} where YAML requires {a: 1}, and a backslash before special characters.
_TIGHT_KEY = re.compile(r"([{,]\s*[\w.\-/]+):(?=\S)")
_QUOTED = re.compile(r"""(['"])((?:\\\1|(?!\1).)*)\1""", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
_FUNCTION = re.compile(r"[A-Za-z_]\w*\(.*\)", re.DOTALL)


class Override(NamedTuple):
    """An override: its kind, the path of the key to change, the new value, and the override's text."""

    kind: Literal["set", "add", "force", "delete"]
    path: str
    value: Any  # for a deletion: the value that the key must have, None for any
    text: str


def value_at(section: Any, path: str) -> Any:
    """Return the value at `path`, such as reader.batch_size, in the nested mappings `section`; None if `path` does not exist."""
    for name in path.split("."):
        section = section.get(name) if isinstance(section, dict) else None
    return section


def paths_in(section: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yield the paths of all keys in the nested mappings `section`, each after the prefix `at`."""
    for key, value in section.items():
        yield f"{at}{key}"
        if isinstance(value, dict):
            yield from paths_in(value, f"{at}{key}.")


class ComposedValues:
    """The values of a workload during its composition, by section, and the origin of each value by path."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def put(self, path: str, value: Any, origin: str) -> None:
        """Set the value at `path`. Remove values below `path`, and turn a plain value above `path` into a section."""
        *sections, key = path.split(".")
        section: Any = self.raw
        for number, name in enumerate(sections, 1):
            if not isinstance(section.get(name), dict):
                section[name] = {}
                self.origins.pop(".".join(sections[:number]), None)
            section = section[name]
        value = known_value(path, value)
        if not (value == {} and isinstance(section.get(key), dict)):
            section[key] = value
        self._forget(path)
        self.origins[path] = origin

    def remove(self, path: str) -> None:
        """Remove the value or section at `path`, which must exist."""
        sections, _, key = path.rpartition(".")
        del (self.get(sections) if sections else self.raw)[key]
        self._forget(path)
        self.origins.pop(path, None)

    def get(self, path: str) -> Any:
        """Return the value at `path`; None if the path does not exist."""
        return value_at(self.raw, path)

    def has(self, path: str) -> bool:
        """Return True if the key at `path` exists, even if its value is None."""
        sections, _, key = path.rpartition(".")
        section = self.get(sections) if sections else self.raw
        return isinstance(section, dict) and key in section

    def set_by(self, path: str) -> set[str]:
        """Return the origins of the value at `path`, or of all values below `path` if it is a section."""
        return {origin for name, origin in self.origins.items() if name == path or name.startswith(f"{path}.")}

    def _forget(self, path: str) -> None:
        for below in [name for name in self.origins if name.startswith(f"{path}.")]:
            del self.origins[below]


def parse_override(text: str) -> Override:
    """Return the override in `text`. Raises UsageError if `text` is not an override."""
    sign = next(sign for sign in ("++", "+", "~", "") if text.startswith(sign))
    name, equals, value = text[len(sign) :].partition("=")
    if not (equals or sign == "~") or not all(name.split(".")):
        raise UsageError(f"'{text}' is not an override; {_EXAMPLE}")
    return Override(_KIND[sign], name, _value(value, text) if equals else None, text)  # type: ignore[arg-type]


def _value(value: str, text: str) -> Any:
    if value.lstrip().startswith(("{", "[")):
        return parse(_TIGHT_KEY.sub(r"\1: ", value), f"'{text}'")
    if quoted := _QUOTED.fullmatch(value):
        return quoted[2].replace(f"\\{quoted[1]}", quoted[1])
    if _ESCAPED.search(value):
        return _ESCAPED.sub(r"\1", value)
    return parse(value, f"'{text}'") if value else ""


def apply(settings: ComposedValues, override: Override, strict: bool = False) -> None:
    """Change `settings` by `override`. With `strict`, as in Hydra, ``=`` requires an existing key, and ``+`` a new one.

    Raises UsageError if a key is missing or exists already. The message names the override.
    """
    path = known_name(override.path, override.value)
    if path.startswith(IGNORED):
        return
    if override.kind == "delete":
        _delete(settings, override, path)
        return
    if strict and _FUNCTION.fullmatch(override.text.partition("=")[2]):
        raise UsageError(
            f"'{override.text}': functions of Hydra's are not known here; write the value itself, in quotes if it is one"
        )
    if strict and override.kind == "add" and settings.get(path) is not None:
        raise UsageError(f"'{override.text}': {path} is there already; write ++ to replace it")
    if strict and override.kind == "set" and not settings.has(path):
        known = list(paths_in(msgspec.to_builtins(Config())))
        if path not in known and path.rpartition("_stdev")[0] not in known:
            raise UsageError(f"'{override.text}': {path} is not in the workload{nearest(path, known)}; write ++ to add it")
    for name, value in leaves({override.path: override.value}, ""):
        settings.put(known_name(name, value), value, override.text)


def _delete(settings: ComposedValues, override: Override, path: str) -> None:
    if not settings.has(path):
        raise UsageError(f"'{override.text}': {path} cannot be taken away, as nothing sets it")
    if override.value is not None and settings.get(path) != override.value:
        raise UsageError(f"'{override.text}': {path} is {settings.get(path)}, so it is not taken away")
    settings.remove(path)


def leaves(value: dict[Any, Any], at: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every value in the mapping `value`, whose path is `at`.

    An empty mapping counts as one value, and so does a distribution: a mapping with a `type` inside a section.
    """
    for key, item in value.items():
        path = f"{at}.{key}" if at else str(key)
        if isinstance(item, dict) and item and ("type" not in item or path.removeprefix("workload.") in Config.__struct_fields__):
            yield from leaves(item, path)
        else:
            yield path, item
