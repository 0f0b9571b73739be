"""Overrides of the command line, by Hydra's rules: ``key=value``, ``+key=value``, ``++key=value``, ``~key`` and ``~key=value``.

A key below a value makes a section of it, a section is merged into a section, a list replaces a list.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from benchmark.config.schema import Config
from benchmark.config.spelling import known_name, known_value
from common.errors import UsageError, nearest
from datagen.dlio.yaml12 import parse

IGNORED = ("hydra.", "hydra/")  # of Hydra's own, which says where results go (`spelling`), how it logs and where it keeps notes
_EXAMPLE = "write for example ++workload.reader.batch_size=4"
_KIND = {"": "set", "+": "add", "++": "force", "~": "delete"}
# Hydra has {a:1} where YAML has {a: 1}, and a backslash before what would mean something to it.
_TIGHT_KEY = re.compile(r"([{,]\s*[\w.\-/]+):(?=\S)")
_QUOTED = re.compile(r"""(['"])((?:\\\1|(?!\1).)*)\1""", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
_FUNCTION = re.compile(r"[A-Za-z_]\w*\(.*\)", re.DOTALL)


class Override(NamedTuple):
    """One override: what it does, to which path, and as it was typed."""

    kind: Literal["set", "add", "force", "delete"]
    path: str
    value: Any  # of a deletion None: whatever the value is
    text: str

    @property
    def is_ignored(self) -> bool:
        """Whether it is for Hydra itself and says nothing of the workload."""
        return known_name(self.path, self.value).startswith(IGNORED)


class Settings:
    """Values by section, as they are put together, and for each path where its value comes from."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def put(self, path: str, value: Any, origin: str) -> None:
        """Set the value at `path`; what was set below it no longer counts, and a value above it becomes a section."""
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
        """Take away the value or section at `path`, which is there."""
        sections, _, key = path.rpartition(".")
        del (self.get(sections) if sections else self.raw)[key]
        self._forget(path)
        self.origins.pop(path, None)

    def get(self, path: str) -> Any:
        """Return the value at `path`; None where nothing is said."""
        found: Any = self.raw
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def says(self, path: str) -> bool:
        """Return whether the key is there, whatever its value."""
        sections, _, key = path.rpartition(".")
        section = self.get(sections) if sections else self.raw
        return isinstance(section, dict) and key in section

    def _forget(self, path: str) -> None:
        for below in [name for name in self.origins if name.startswith(f"{path}.")]:
            del self.origins[below]


def parse_override(text: str) -> Override:
    """Return the override that `text` says; UsageError for what is none."""
    sign = next(sign for sign in ("++", "+", "~", "") if text.startswith(sign))
    name, equals, value = text[len(sign) :].partition("=")
    if not (equals or sign == "~") or not all(name.split(".")):
        raise UsageError(f"'{text}' is not an override; {_EXAMPLE}")
    return Override(_KIND[sign], name, _value(value, text) if equals else None, text)  # type: ignore[arg-type]


def _value(value: str, text: str) -> Any:
    """Return what Hydra takes `value` for; nothing at all, such as of a variable that is not set, is an empty text."""
    if value.lstrip().startswith(("{", "[")):
        return parse(_TIGHT_KEY.sub(r"\1: ", value), f"'{text}'")
    if quoted := _QUOTED.fullmatch(value):
        return quoted[2].replace(f"\\{quoted[1]}", quoted[1])
    if _ESCAPED.search(value):
        return _ESCAPED.sub(r"\1", value)
    return parse(value, f"'{text}'") if value else ""


def apply(settings: Settings, override: Override, strict: bool = False) -> None:
    """Change `settings` as `override` says; with `strict`, as Hydra, ``=`` needs a key that is there and ``+`` one that is not.

    Raises UsageError, which names the override.
    """
    if override.is_ignored:
        return
    if override.kind == "delete":
        _delete(settings, override)
        return
    path = known_name(override.path, override.value)
    if strict and _FUNCTION.fullmatch(override.text.partition("=")[2]):
        raise UsageError(
            f"'{override.text}': functions of Hydra's are not known here; write the value itself, in quotes if it is one"
        )
    if strict and override.kind == "add" and settings.get(path) is not None:
        raise UsageError(f"'{override.text}': {path} is there already; write ++ to replace it")
    if strict and override.kind == "set" and not (settings.says(path) or _in_schema(path)):
        raise UsageError(f"'{override.text}': {path} is not in the workload{_nearest(path)}; write ++ to add it")
    for name, value in leaves({override.path: override.value}, ""):
        settings.put(known_name(name, value), value, override.text)


def _delete(settings: Settings, override: Override) -> None:
    path = known_name(override.path, override.value)
    if not settings.says(path):
        raise UsageError(f"'{override.text}': {path} cannot be taken away, as nothing sets it")
    if override.value is not None and settings.get(path) != override.value:
        raise UsageError(f"'{override.text}': {path} is {settings.get(path)}, so it is not taken away")
    settings.remove(path)


def leaves(value: dict[Any, Any], at: str) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; distributions, which have a type and are in a section, and what is empty count as one."""
    for key, item in value.items():
        path = f"{at}.{key}" if at else str(key)
        if isinstance(item, dict) and item and ("type" not in item or path.removeprefix("workload.") in Config.__struct_fields__):
            yield from leaves(item, path)
        else:
            yield path, item


def _in_schema(path: str) -> bool:
    return path in _schema_paths() or path.rpartition("_stdev")[0] in _schema_paths()


def _schema_paths() -> list[str]:
    paths: list[str] = []
    pending = [("", msgspec.to_builtins(Config()))]
    while pending:
        at, section = pending.pop()
        for key, value in section.items():
            paths.append(at + key)
            if isinstance(value, dict):
                pending.append((f"{at}{key}.", value))
    return paths


def _nearest(path: str) -> str:
    return nearest(path, _schema_paths())
