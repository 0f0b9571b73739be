"""Compose a workload from a YAML, the files that its `defaults:` name, and overrides of the command line, for example:

iotwin emulate workload=unet3d_h100 ++workload.reader.batch_size=4

The origin of each value, a file or an override, is recorded for messages.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from iotwin.common.errors import UsageError, nearest
from iotwin.common.progress import note
from iotwin.workload_yaml.checked_config import checked_config, recorded_times
from iotwin.workload_yaml.defaults import Base, bases, package
from iotwin.workload_yaml.dlio_spellings import fold_deviations, known_name
from iotwin.workload_yaml.interpolation import interpolate
from iotwin.workload_yaml.keys_and_types import without_unknown_keys
from iotwin.workload_yaml.overrides import IGNORED, ComposedValues, apply, leaves, parse_override
from iotwin.workload_yaml.schema import Config, is_earlier, with_replacement
from iotwin.workload_yaml.yaml12 import parse
from iotwin.workload_yaml.yaml_file import read

SHIPPED = Path(__file__).parent / "workloads"
_SELECTION = "workload="


class ComposedWorkload(NamedTuple):
    """A workload, and the origin of each value that is not a default."""

    config: Config
    origins: dict[str, str]  # by the value's path, such as reader.batch_size: the file name or override that set it
    passed_over: Sequence[str] = ()  # paths of ignored keys: unknown keys of a DLIO YAML, and keys of earlier versions
    path: Path = Path()  # the YAML

    def rows(self) -> list[tuple[str, Any, str]]:
        """Return (path, value, origin) of every key in the order of the schema."""
        return [(path, value, self.origin(path)) for path, value in leaves(msgspec.to_builtins(self.config), "")]

    def origin(self, path: str) -> str:
        """Return where the value at `path` comes from: a file's name, an override, or ``default``."""
        # Keys below `path`, and the neighbouring key of its standard deviation, may have set parts of a distribution.
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

    Raises UsageError if the file cannot be read or is no YAML, if a key is unknown, if a value has the wrong type, or if values
    contradict one another. The message is one line with the file and the key.
    """
    composed = compose(Path(path), overrides)
    note_ignored(str(path), tuple(composed.passed_over))
    return composed.config


@cache
def note_ignored(where: str, keys: tuple[str, ...]) -> None:
    """Print a note that names the ignored `keys` of the YAML `where`, if any, once in a process."""
    if keys:
        note(f"{where}: ignored, as the emulator has no such keys: {', '.join(map(with_replacement, keys))}")


def parse_foreign(content: bytes, where: str) -> Config:
    """Return the workload in the YAML `content`, which comes from a stranger. `where` names the YAML in messages.

    Raises UsageError as `load` does. Also raises it if `content` has `defaults`, interpolations or files of recorded times: by
    these, a stranger could read the user's environment or files.
    """
    try:
        raw = parse(content.decode("utf-8"), where)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: cannot be read as text: {error}") from None
    if not isinstance(raw, dict) or "defaults" in raw:
        raise UsageError(f"{where}: is not a twin that was packed: it should hold sections such as dataset: and no defaults:")
    settings = ComposedValues()
    try:
        for name, value, origin in own_settings(where, raw):
            if "${" in str(value):
                raise UsageError(
                    f"{where}: {name}: takes its value from elsewhere by ${{...}}; pack the twin with values written out"
                )
            settings.put(name, value, origin)
        fold_deviations(settings.raw)
        note_ignored(where, tuple(without_unknown_keys(settings.raw, Config, is_earlier)))
        config = checked_config(settings.raw, lambda _: where)
    except RecursionError:
        raise UsageError(f"{where}: is nested too deep for a workload; pack it again") from None
    if key := recorded_times(config):
        raise UsageError(f"{where}: {key}: replays a file that is not in the archive; give its quantiles instead")
    if config.twin.pipeline is not None and config.twin.pipeline.plan is not None:
        raise UsageError(f"{where}: twin.pipeline.plan: is a file that is not in the archive; give its stages instead")
    return config


def select(arguments: Sequence[str], folder: Path | None = None) -> ComposedWorkload:
    """Return the workload of the command line's `arguments`: a YAML's path or ``workload=NAME``, and overrides.

    NAME.yaml is searched in `folder` and its subfolder workload/; if `folder` is None, among iotwin's own workloads.
    Raises UsageError as `load` does.
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
    """Return the path of NAME.yaml for `name`, searched as in `select`.

    Raises UsageError if the workload does not exist. The message names the workload with the nearest name.
    """
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; --config-dir is where NAME.yaml or workload/NAME.yaml is")
    return named(name, [SHIPPED] if folder is None else [folder / "workload", folder])


def named(name: str, folders: Sequence[Path]) -> Path:
    """Return the path of the YAML of the workload `name` in the first of `folders` that contains the workload.

    Raises UsageError if no folder contains it. The message names the workload with the nearest name.
    """
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


def compose(path: Path, overrides: Sequence[str]) -> ComposedWorkload:
    """Return the workload in the YAML at `path`, changed by `overrides`. Raises UsageError as `load` does.

    Unknown keys in a DLIO YAML are ignored, as DLIO ignores them, and so are keys that only earlier versions had. An unknown key
    in an override is an error.
    """
    settings = ComposedValues()
    try:
        for name, value, origin in settings_of(path):
            settings.put(name, value, origin)
        # A YAML is taken for DLIO's if it has `model`, and `framework` or `workflow`, but no `twin`.
        sections = {name.partition(".")[0] for name, origin in settings.origins.items() if origin == path.name}
        of_dlio = "model" in sections and bool(sections & {"framework", "workflow"}) and "twin" not in settings.raw
        for text in overrides:
            apply(settings, parse_override(text))

        def passes_over(key: str) -> bool:
            return ((of_dlio and "[" not in key) or is_earlier(key)) and not settings.set_by(key) & {*overrides}

        return finished(settings, path, overrides, passes_over)
    except RecursionError:
        raise UsageError(f"{path}: an alias in it refers to itself; write the value out") from None


def finished(
    settings: ComposedValues, path: Path, overrides: Sequence[str], passes_over: Callable[[str], bool]
) -> ComposedWorkload:
    """Return the checked workload with the values of `settings`, except the unknown keys for which `passes_over` returns True.

    Raises UsageError if a value is wrong. The message names the override that set the value, otherwise the file `path`.
    """
    interpolate(settings.raw, str(path))
    fold_deviations(settings.raw)
    workload = ComposedWorkload(Config(), settings.origins, without_unknown_keys(settings.raw, Config, passes_over))

    def where(key: str) -> str:
        origin = workload.origin(key.partition("[")[0])
        if origin in overrides:
            return f"'{origin}'"
        return str(path) if origin in ("default", path.name) else origin

    config = checked_config(settings.raw, where)
    if config.twin.recorded is not None:
        config.twin.recorded.file = str(path.parent / config.twin.recorded.file)
    if config.twin.pipeline is not None and config.twin.pipeline.plan is not None:
        config.twin.pipeline.plan = str(path.parent / config.twin.pipeline.plan)
    return workload._replace(config=config, path=path)


def settings_of(
    path: Path, folders: Sequence[Path] = (SHIPPED,), within: tuple[Path, ...] = (), section: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Yield (path of the key, value, origin) of each value in the file `path` and in the files of its `defaults`.

    If a key is yielded twice, its last value is valid. The files of `defaults` are searched next to `path`, then in `folders`.
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
    """Yield (path of the key, value, `source`) of each value in `raw`, the content of the file called `source`."""
    seen: set[str] = set()
    # hydra.run.dir comes first, because output.folder overrides it.
    for name, value in sorted(leaves(raw, ""), key=lambda leaf: not leaf[0].startswith(IGNORED)):
        known = known_name(name, value)
        if known.startswith(IGNORED):
            continue
        if known in seen:
            raise UsageError(f"{source}: {name}: given twice, also as {known}; remove one of them")
        if not name.startswith(IGNORED):
            seen.add(known)
        yield known, value, source
