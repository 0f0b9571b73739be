"""A workload put together: a YAML or a shipped workload, what its `defaults:` name, then overrides, each value with its origin.

iotwin emulate workload=unet3d_h100 ++workload.reader.batch_size=4
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmark.config.check import convert
from benchmark.config.schema import Config
from benchmark.config.spelling import fold_deviations, known_name, known_value
from benchmark.config.text import parse, read
from tracing_tools.trace.errors import UsageError, nearest

SHIPPED = Path(__file__).parent.parent / "workloads"
_SELECTION = "workload="
_IGNORED = ("hydra.output_subdir", "hydra/")  # of Hydra's own: how it logs and where it keeps its notes


class Workload(NamedTuple):
    """A workload, and for each value that is not a default where it comes from."""

    config: Config
    origins: dict[str, str]  # by path, such as reader.batch_size

    def rows(self) -> list[tuple[str, Any, str]]:
        """Return (path, value, origin) of every key in the order of the schema."""
        return [(path, value, self._origin(path)) for path, value in _leaves(msgspec.to_builtins(self.config), "")]

    def _origin(self, path: str) -> str:
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return "default"


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Return the workload in the YAML at `path`, changed by `overrides` such as ``++workload.reader.batch_size=4``.

    Raises UsageError, one line with the file and the key, for a file that cannot be read or is no YAML, an unknown key, a value
    of the wrong type and values that do not fit together.
    """
    return compose(Path(path), overrides).config


def select(arguments: Sequence[str], folder: Path | None = None) -> Workload:
    """Return the workload that the command line's `arguments` ask for: a YAML's path or ``workload=NAME``, and overrides.

    NAME is looked for as NAME.yaml in `folder` and its workload/, else among the shipped ones. Raises UsageError as `load` does.
    """
    chosen = [word for word in arguments if word.startswith(_SELECTION) or "=" not in word]
    overrides = [word for word in arguments if word not in chosen]
    if not chosen:
        raise UsageError("no workload is given; write the path of a YAML, or workload=NAME such as workload=unet3d_a100")
    if len(chosen) > 1:
        raise UsageError(f"'{chosen[1]}' is not an override; write for example ++workload.reader.batch_size=4")
    name = chosen[0].removeprefix(_SELECTION)
    return compose(find(name, folder) if chosen[0].startswith(_SELECTION) else Path(name), overrides)


def find(name: str, folder: Path | None = None) -> Path:
    """Return the YAML of the workload `name`; UsageError, naming the nearest, when there is none."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; --config-dir is where NAME.yaml or workload/NAME.yaml is")
    folders = [folder, folder / "workload"] if folder is not None else [SHIPPED]
    known = {path.stem: path for each in folders for path in sorted(each.glob("*.yaml"))}
    if name not in known and name.replace("-", "_") in known:
        name = name.replace("-", "_")
    if name not in known:
        where = folder if folder is not None else "those shipped"
        raise UsageError(f"workload={name}: not among {where}{nearest(name, list(known))}; known: {', '.join(known) or 'none'}")
    return known[name]


def compose(path: Path, overrides: Sequence[str]) -> Workload:
    """Return the workload in the YAML at `path`, changed by `overrides`; UsageError as `load`."""
    raw: dict[str, Any] = {}
    origins: dict[str, str] = {}
    try:
        for name, value, origin in _settings(path, ()):
            _put(raw, origins, name, value, origin)
        for override in overrides:
            if not override.lstrip("+").startswith(_IGNORED):
                _put(raw, origins, *_override(override))
        fold_deviations(raw)
        return Workload(convert(raw, str(path)), origins)
    except RecursionError:
        raise UsageError(f"{path}: an alias in it refers to itself; write the value out") from None


def _settings(path: Path, within: tuple[Path, ...]) -> Iterator[tuple[str, Any, str]]:
    """Yield (path, value, origin) of everything the file says, what it builds on first."""
    if path in within:
        raise UsageError(f"{path}: its defaults lead back to itself; name another workload there")
    raw = read(path)
    if list(raw) == ["workload"] and isinstance(raw["workload"], dict):  # as Hydra writes out what it composed
        raw = raw["workload"]
    bases = raw.pop("defaults", [])
    for base in bases if isinstance(bases, list) else [bases]:
        if base != "_self_":
            yield from _settings(find(str(base), path.parent), (*within, path))
    told: set[str] = set()
    for name, value in _leaves(raw, ""):
        known = known_name(name, value)
        if known in told:
            raise UsageError(f"{path}: {name}: given twice, also as {known}; remove one of them")
        told.add(known)
        yield known, value, path.name


def _leaves(value: dict[Any, Any], at: str) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; distributions, which have a type and are in a section, and empty sections count as one."""
    for key, item in value.items():
        path = f"{at}.{key}" if at else str(key)
        if isinstance(item, dict) and item and ("type" not in item or not at):
            yield from _leaves(item, path)
        else:
            yield path, item


def _override(override: str) -> tuple[str, Any, str]:
    name, equals, text = override.lstrip("+").partition("=")
    if not equals or not all(name.split(".")):
        raise UsageError(f"'{override}' is not an override; write for example ++workload.reader.batch_size=4")
    value = parse(text, f"'{override}'")
    return known_name(name, value), value, override


def _put(raw: dict[str, Any], origins: dict[str, str], path: str, value: Any, origin: str) -> None:
    """Set the value at `path`; what was set below it no longer counts."""
    *sections, key = path.split(".")
    section: Any = raw
    for name in sections:
        section = section.setdefault(name, {}) if isinstance(section, dict) else None
    if not isinstance(section, dict):
        raise UsageError(f"'{origin}': {'.'.join(sections)} is a value, not a section")
    if (value := known_value(path, value)) is None:
        section.pop(key, None)
    elif not (value == {} and isinstance(section.get(key), dict)):
        section[key] = value
    for below in [name for name in origins if name.startswith(f"{path}.")]:
        del origins[below]
    origins[path] = origin
