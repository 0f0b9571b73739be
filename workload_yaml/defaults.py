"""Parse the parts of Hydra's YAML files that refer to other files: the `defaults:` list and the ``# @package`` line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from iotwin.common.errors import UsageError
from iotwin.workload_yaml.schema import Config

SELF = "_self_"
_PACKAGE_LINE = re.compile(r"^\s*#\s*@package\s+(\S+)", re.M)
_OWN = ("hydra/", "override ")  # prefixes of entries that configure Hydra itself, or replace another list's choice


class Base(NamedTuple):
    """A file that the `defaults:` list of another file names.

    name: the file's name without .yaml
    folders: where the file is searched, in order
    section: the section that receives the file's values, or '' for the whole workload
    """

    name: str
    folders: list[Path]
    section: str
    optional: bool = False


def bases(entries: Any, path: Path) -> tuple[list[Base], list[Base]]:
    """Return (files that the file at `path` overrides, files that override it) by `entries`, the file's `defaults:` list.

    The file overrides the entries before _self_, and the entries after _self_ override the file. Without _self_, the file
    overrides all, as in Hydra 1.1. Raises UsageError if an entry is not a name.
    """
    before: list[Base] = []
    after: list[Base] = []
    found = before
    for entry in entries if isinstance(entries, list) else [entries]:
        if entry == SELF:
            found = after
            continue
        for group, name in _named(entry, path):
            if not group.startswith(_OWN):
                found.append(_base(group, name, path))
    return before, after


def package(text: str) -> str:
    """Return the section that the ``# @package`` line in `text` names, '' if it names none."""
    line = _PACKAGE_LINE.search(text)
    return _section(line[1]) if line else ""


def _named(entry: Any, path: Path) -> Iterator[tuple[str, str]]:
    """Yield (group with its package, name) for each name in `entry`, an entry of a `defaults:` list. null yields nothing."""
    match entry:
        case None:
            return
        case str():
            yield "", entry
        case dict() if len(entry) == 1:
            ((group, names),) = entry.items()
            for name in names if isinstance(names, list) else [names]:
                if name is not None:
                    yield str(group), str(name)
        case _:
            raise UsageError(f"{path}: defaults: '{entry}' is no entry; write the name of a YAML in the same folder, or _self_")


def _base(group: str, name: str, path: Path) -> Base:
    optional = (group or name).startswith("optional ")
    group, name = group.removeprefix("optional "), name.removeprefix("optional ")
    group, _, group_package = group.partition("@")
    name, _, name_package = name.removesuffix(".yaml").partition("@")
    absolute, group = group.startswith("/") or name.startswith("/"), group.strip("/")
    folder, _, name = name.strip("/").rpartition("/")
    below = Path(*filter(None, (group, folder)))
    if ".." in (*below.parts, name):
        raise UsageError(f"{path}: defaults: '{below / name}' leads out of this file's folder; put the YAML there or below")
    # An absolute name is relative to the folder that contains the folder workload/.
    tops = [path.parent.parent, path.parent] if absolute else [path.parent]
    return Base(name, [top / below for top in tops], _section(group_package or name_package or group), optional)


def _section(name: str) -> str:
    inner = name.replace("/", ".").removeprefix("_global_").strip(".").removeprefix("workload").strip(".")
    return inner if inner.partition(".")[0] in Config.__struct_fields__ else ""
