"""What Hydra's files say of how they are put together: the `defaults:` list and the ``# @package`` line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmark.config.schema import Config
from common.errors import UsageError

SELF = "_self_"
_PACKAGE_LINE = re.compile(r"^\s*#\s*@package\s+(\S+)", re.M)
_OWN = ("hydra/", "override ")  # of Hydra's logging and launching, or a second choice of what is chosen by workload=NAME


class Base(NamedTuple):
    """A file that another one builds on: its name without .yaml, the folders it may be in, the section it goes into or ''."""

    name: str
    folders: list[Path]
    section: str
    optional: bool = False


def bases(entries: Any, path: Path) -> tuple[list[Base], list[Base]]:
    """Return what the file at `path` builds on, and what overrides it: the names before and after _self_.

    Without _self_ all are before it, as in Hydra from 1.1 on. Raises UsageError for an entry that is no name.
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
    """Return the section that the ``# @package`` line of a file puts its keys into, '' for none."""
    line = _PACKAGE_LINE.search(text)
    return _section(line[1]) if line else ""


def _named(entry: Any, path: Path) -> Iterator[tuple[str, str]]:
    """Yield (group with its package, name) of an entry; none of one that chooses nothing, such as ``workload: null``."""
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
            raise UsageError(f"{path}: defaults: '{entry}' is no entry; write the name of a YAML beside this one, or _self_")


def _base(group: str, name: str, path: Path) -> Base:
    optional = (group or name).startswith("optional ")
    group, name = group.removeprefix("optional "), name.removeprefix("optional ")
    group, _, group_package = group.partition("@")
    name, _, name_package = name.removesuffix(".yaml").partition("@")
    absolute, group = group.startswith("/") or name.startswith("/"), group.strip("/")
    folder, _, name = name.strip("/").rpartition("/")
    below = Path(*filter(None, (group, folder)))
    if ".." in (*below.parts, name):
        raise UsageError(f"{path}: defaults: '{below / name}' leads out of this file's folder; put the YAML beside it or below")
    # An absolute name starts at the folder that has workload/ in it.
    tops = [path.parent.parent, path.parent] if absolute else [path.parent]
    return Base(name, [top / below for top in tops], _section(group_package or name_package or group), optional)


def _section(name: str) -> str:
    """Return the path of the section that a package or a group is called by; '' for the whole workload."""
    inner = name.replace("/", ".").removeprefix("_global_").strip(".").removeprefix("workload").strip(".")
    return inner if inner.partition(".")[0] in Config.__struct_fields__ else ""
