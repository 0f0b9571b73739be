"""A workload put together: a YAML or a shipped workload, what its `defaults:` name, then overrides, each value with its origin.

iotwin emulate workload=unet3d_h100 ++workload.reader.batch_size=4
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmark.config.check import convert, recorded_times
from benchmark.config.defaults import Base, bases, package
from benchmark.config.interpolation import interpolate
from benchmark.config.overrides import IGNORED, Settings, apply, leaves, parse_override
from benchmark.config.schema import Config
from benchmark.config.spelling import fold_deviations, known_name
from benchmark.config.text import read
from common.errors import UsageError, nearest
from datagen.dlio.yaml12 import parse

SHIPPED = Path(__file__).parent.parent / "workloads"
_SELECTION = "workload="


class Workload(NamedTuple):
    """A workload, and for each value that is not a default where it comes from."""

    config: Config
    origins: dict[str, str]  # by path, such as reader.batch_size

    def rows(self) -> list[tuple[str, Any, str]]:
        """Return (path, value, origin) of every key in the order of the schema."""
        return [(path, value, self.origin(path)) for path, value in leaves(msgspec.to_builtins(self.config), "")]

    def origin(self, path: str) -> str:
        """Return where the value at `path` comes from: a file's name, an override, or ``default``."""
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


def parse_foreign(content: bytes, where: str) -> Config:
    """Return the workload in the YAML `content`, which somebody has sent: of values that stand in it and of nothing else.

    Raises UsageError as `load`, and for `defaults`, interpolations and files of recorded times: they would read the environment
    or files of whoever runs it.
    """
    try:
        raw = parse(content.decode("utf-8"), where)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: cannot be read as text: {error}") from None
    if not isinstance(raw, dict) or "defaults" in raw:
        raise UsageError(f"{where}: is not a twin that was packed: it should hold sections such as dataset: and no defaults:")
    settings = Settings()
    try:
        for name, value, origin in own_settings(where, raw):
            if any("${" in text for text in _texts(value)):
                raise UsageError(
                    f"{where}: {name}: takes its value from elsewhere by ${{...}}; pack the twin with values written out"
                )
            settings.put(name, value, origin)
        fold_deviations(settings.raw)
        config = convert(settings.raw, lambda _: where)
    except RecursionError:
        raise UsageError(f"{where}: is nested too deep for a workload; pack it again") from None
    if key := recorded_times(config):
        raise UsageError(f"{where}: {key}: replays a file that is not in the archive; give its quantiles instead")
    return config


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for key, item in value.items():
                yield from _texts(key)
                yield from _texts(item)


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
    return named(name, [SHIPPED] if folder is None else [folder / "workload", folder])


def named(name: str, folders: Sequence[Path]) -> Path:
    """Return the YAML of the workload `name` in the first of `folders` that has it; UsageError, naming the nearest, in none."""
    known: dict[str, Path] = {}
    for folder in reversed(folders):
        known |= _yamls(folder)
    if name not in known and name.replace("-", "_") in known:
        name = name.replace("-", "_")
    if name not in known:
        where = "those shipped" if folders[-1] == SHIPPED else folders[-1]
        raise UsageError(f"workload={name}: not among {where}{nearest(name, list(known))}; known: {', '.join(known) or 'none'}")
    return known[name]


def _yamls(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def compose(path: Path, overrides: Sequence[str]) -> Workload:
    """Return the workload in the YAML at `path`, changed by `overrides`; UsageError as `load`."""
    settings = Settings()
    try:
        for name, value, origin in settings_of(path):
            settings.put(name, value, origin)
        for text in overrides:
            apply(settings, parse_override(text))
        return finished(settings, path, overrides)
    except RecursionError:
        raise UsageError(f"{path}: an alias in it refers to itself; write the value out") from None


def finished(settings: Settings, path: Path, overrides: Sequence[str]) -> Workload:
    """Return the checked workload that `settings` say; UsageError names the override that is wrong, else `path`."""
    interpolate(settings.raw, str(path))
    fold_deviations(settings.raw)
    workload = Workload(Config(), settings.origins)

    def where(key: str) -> str:
        origin = workload.origin(key.partition("[")[0])
        if origin in overrides:
            return f"'{origin}'"
        return str(path) if origin in ("default", path.name) else origin  # another file that it is put together from

    config = convert(settings.raw, where)
    if config.twin.recorded is not None:
        config.twin.recorded.file = str(path.parent / config.twin.recorded.file)
    return workload._replace(config=config)


def settings_of(
    path: Path, folders: Sequence[Path] = (SHIPPED,), within: tuple[Path, ...] = (), section: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Yield (path, value, origin) of all that the file and those of its `defaults` say; of the same path the last one counts.

    What the file builds on is looked for beside it, then in `folders`.
    """
    if path in within:
        raise UsageError(f"{path}: its defaults lead back to itself; name another workload there")
    raw, text = read(path)
    before, after = bases(raw.pop("defaults", None), path)
    section = section or package(text)
    for base in before:
        yield from _base_settings(base, folders, (*within, path))
    yield from own_settings(path.name, {section: raw} if section else raw)
    for base in after:
        yield from _base_settings(base, folders, (*within, path))


def _base_settings(base: Base, others: Sequence[Path], within: tuple[Path, ...]) -> Iterator[tuple[str, Any, str]]:
    folders = [*base.folders, *others]
    for folder in folders:
        if (path := _yamls(folder).get(base.name)) is not None:
            yield from settings_of(path, others, within, base.section)
            return
    if not base.optional:
        known = [name for folder in folders for name in _yamls(folder)]
        raise UsageError(f"{within[-1]}: defaults: {base.name}.yaml: not in {base.folders[-1]}{nearest(base.name, known)}")


def own_settings(source: str, raw: dict[Any, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield (path, value, origin) of what the file called `source` says itself."""
    told: set[str] = set()
    # hydra.run.dir first: where the workload says itself where results go, that counts.
    for name, value in sorted(leaves(raw, ""), key=lambda leaf: not leaf[0].startswith(IGNORED)):
        known = known_name(name, value)
        if known.startswith(IGNORED):
            continue
        if known in told:
            raise UsageError(f"{source}: {name}: given twice, also as {known}; remove one of them")
        if not name.startswith(IGNORED):
            told.add(known)
        yield known, value, source
