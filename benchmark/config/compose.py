"""A workload put together: a YAML or a shipped workload, what its `defaults:` name, then overrides, each value with its origin.

iotwin emulate workload=unet3d_h100 ++workload.reader.batch_size=4
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmark.config.check import convert
from benchmark.config.defaults import Base, bases, package
from benchmark.config.interpolation import interpolate
from benchmark.config.schema import Config
from benchmark.config.spelling import fold_deviations, known_name, known_value
from benchmark.config.text import parse, read
from tracing_tools.trace.errors import UsageError, nearest

SHIPPED = Path(__file__).parent.parent / "workloads"
_SELECTION = "workload="
_IGNORED = ("hydra.", "hydra/")  # of Hydra's own, which says where results go (`spelling`), how it logs and where it keeps notes


class Workload(NamedTuple):
    """A workload, and for each value that is not a default where it comes from."""

    config: Config
    origins: dict[str, str]  # by path, such as reader.batch_size

    def rows(self) -> list[tuple[str, Any, str]]:
        """Return (path, value, origin) of every key in the order of the schema."""
        return [(path, value, self._origin(path)) for path, value in _leaves(msgspec.to_builtins(self.config), "")]

    def _origin(self, path: str) -> str:
        # A distribution may have been put together from keys below it and beside it.
        parts = [origin for name, origin in self.origins.items() if name.startswith((f"{path}.", f"{path}_stdev"))]
        if parts and path not in self.origins:
            return parts[0]
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
    known = _yamls(SHIPPED) if folder is None else _yamls(folder) | _yamls(folder / "workload")
    if name not in known and name.replace("-", "_") in known:
        name = name.replace("-", "_")
    if name not in known:
        where = folder if folder is not None else "those shipped"
        raise UsageError(f"workload={name}: not among {where}{nearest(name, list(known))}; known: {', '.join(known) or 'none'}")
    return known[name]


def _yamls(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def compose(path: Path, overrides: Sequence[str]) -> Workload:
    """Return the workload in the YAML at `path`, changed by `overrides`; UsageError as `load`."""
    raw: dict[str, Any] = {}
    origins: dict[str, str] = {}
    try:
        for name, value, origin in _settings(path, ()):
            _put(raw, origins, name, value, origin)
        for override in overrides:
            for name, value in _leaves(_override(override), ""):
                if not (known := known_name(name, value)).startswith(_IGNORED):
                    _put(raw, origins, known, value, override)
        interpolate(raw, str(path))
        fold_deviations(raw)
        return Workload(convert(raw, str(path)), origins)
    except RecursionError:
        raise UsageError(f"{path}: an alias in it refers to itself; write the value out") from None


def _settings(path: Path, within: tuple[Path, ...], section: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield (path, value, origin) of all that the file and those of its `defaults` say; of the same path the last one counts."""
    if path in within:
        raise UsageError(f"{path}: its defaults lead back to itself; name another workload there")
    raw, text = read(path)
    before, after = bases(raw.pop("defaults", None), path)
    section = section or package(text)
    for base in before:
        yield from _base_settings(base, (*within, path))
    yield from _own_settings(path, {section: raw} if section else raw)
    for base in after:
        yield from _base_settings(base, (*within, path))


def _base_settings(base: Base, within: tuple[Path, ...]) -> Iterator[tuple[str, Any, str]]:
    folders = [*base.folders, SHIPPED]
    for folder in folders:
        if (path := _yamls(folder).get(base.name)) is not None:
            yield from _settings(path, within, base.section)
            return
    if not base.optional:
        known = [name for folder in folders for name in _yamls(folder)]
        raise UsageError(f"{within[-1]}: defaults: {base.name}.yaml: not in {base.folders[-1]}{nearest(base.name, known)}")


def _own_settings(path: Path, raw: dict[Any, Any]) -> Iterator[tuple[str, Any, str]]:
    told: set[str] = set()
    # hydra.run.dir first: where the workload says itself where results go, that counts.
    for name, value in sorted(_leaves(raw, ""), key=lambda leaf: not leaf[0].startswith(_IGNORED)):
        known = known_name(name, value)
        if known.startswith(_IGNORED):
            continue
        if known in told:
            raise UsageError(f"{path}: {name}: given twice, also as {known}; remove one of them")
        if not name.startswith(_IGNORED):
            told.add(known)
        yield known, value, path.name


def _leaves(value: dict[Any, Any], at: str) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; distributions, which have a type and are in a section, and what is empty count as one."""
    for key, item in value.items():
        path = f"{at}.{key}" if at else str(key)
        if isinstance(item, dict) and item and ("type" not in item or path.removeprefix("workload.") in Config.__struct_fields__):
            yield from _leaves(item, path)
        else:
            yield path, item


def _override(override: str) -> dict[str, Any]:
    name, equals, text = override.lstrip("+").partition("=")
    if not equals or not all(name.split(".")):
        raise UsageError(f"'{override}' is not an override; write for example ++workload.reader.batch_size=4")
    return {name: parse(text, f"'{override}'")}


def _put(raw: dict[str, Any], origins: dict[str, str], path: str, value: Any, origin: str) -> None:
    """Set the value at `path`; what was set below it no longer counts."""
    *sections, key = path.split(".")
    section: Any = raw
    for name in sections:
        if isinstance(section, dict) and section.get(name) is None:
            section[name] = {}
        section = section[name] if isinstance(section, dict) else None
    if not isinstance(section, dict):
        raise UsageError(f"'{origin}': {'.'.join(sections)} is a value, not a section")
    value = known_value(path, value)
    if not (value == {} and isinstance(section.get(key), dict)):
        section[key] = value
    for below in [name for name in origins if name.startswith(f"{path}.")]:
        del origins[below]
    origins[path] = origin
