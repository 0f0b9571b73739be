"""Recognise the directories of traces by their content, and replace a trace by a new one.

A directory that holds anything else is never removed, whatever its manifest contains.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import folder_whole, partial_of
from iotwin.common.removal import remove_entry
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import MANIFEST_NAME, read_manifest

_FILES = {MANIFEST_NAME, *(f"{name}.parquet" for name in schema.TABLES)}
_SAMPLE_FILES = {f"{kind}.parquet" for kind in schema.SAMPLES}
_PART = re.compile(r"part-\d{5,}\.parquet")
_UNCHECKED = {"raw", "logs"}  # folders whose content is not checked: the recorder's files, and the logs of the job


def foreign_entry(directory: Path) -> Path | None:
    """Return a file or folder in `directory` that no trace contains, None if there is none. Links are not followed."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if _is_directory(entry.path):
            found = _foreign_below(Path(entry.path))
            if found:
                return found
        elif _final(entry.name) not in _FILES | _UNCHECKED:
            return Path(entry.path)
    return None


def _foreign_below(directory: Path) -> Path | None:
    """Return what no trace contains: `directory`, a folder in a trace, or else the first such entry below it; else None."""
    name = _final(directory.name)
    if name in _UNCHECKED:
        return None
    entries = sorted(directory.iterdir())
    if name == "events.parquet":
        return next((path for path in entries if not _PART.fullmatch(path.name) or _is_directory(path)), None)
    if name == "samples":
        return next((path for path in entries if _final(path.name) not in _SAMPLE_FILES or _is_directory(path)), None)
    if name == "hosts":
        for host in entries:
            for path in host.iterdir() if _is_directory(host) else [host]:
                if path.name != "samples" or not _is_directory(path):
                    return path
                if found := _foreign_below(path):
                    return found
        return None
    return directory


def _final(name: str) -> str:
    """Return the final name of a file or folder, from the final name or from a temporary name that a killed process left."""
    return partial_of(name) or name.removesuffix(".partial")  # the suffix of earlier versions


def leftovers(directory: Path) -> list[str]:
    """Return the unfinished files that killed processes left in the trace `directory`, as paths relative to it."""
    names = _FILES | _SAMPLE_FILES | {"events.parquet"}
    found = [*directory.glob(".*.partial"), *directory.glob("samples/.*.partial")]
    return [str(path.relative_to(directory)) for path in found if partial_of(path.name) in names]


def _is_directory(path: Path | str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def refuse_foreign(directory: Path) -> None:
    """Raise UsageError unless `directory` has the manifest of a trace and holds nothing that no trace contains."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is a file; choose another name for the trace")
    if not (directory / MANIFEST_NAME).exists():
        raise UsageError(f"{directory} holds other files; choose another name for the trace")
    try:
        read_manifest(directory)
    except IotwinError:
        raise UsageError(
            f"{directory} holds other files: its {MANIFEST_NAME} is not a trace's; choose another name for the trace"
        ) from None
    if found := foreign_entry(directory):
        raise UsageError(f"{directory} holds {found.relative_to(directory)}, which is no part of a trace; choose another name")


@contextmanager
def made_trace(directory: Path) -> Iterator[Path]:
    """Yield a new folder. At the end of the `with` block, it becomes the trace `directory`. If the block fails, it is removed.

    `directory` may be missing, empty, or a trace, which is replaced. Raises UsageError if it is anything else.
    """
    with folder_whole(directory) as made:
        yield made
        if directory.is_dir() and any(directory.iterdir()):
            refuse_foreign(directory)
            remove_entry(directory)
