"""Which directories are traces of ours, known by what they hold, and how one takes the place of another.

Nothing is removed but what a trace has: a directory with anything else in it stays as it is, whatever its manifest says.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import IotwinError, UsageError
from tracing_tools.trace import schema
from tracing_tools.trace.manifest import MANIFEST_NAME, read_manifest

_TABLES = [f"{name}.parquet" for name in ("files", "processes", "phases", "parts", "block", "gpu")]
_SAMPLES = [f"{kind}.parquet" for kind in schema.SAMPLES]
_FILES = frozenset(name + end for name in (MANIFEST_NAME, *_TABLES) for end in ("", ".partial"))
_SAMPLE_FILES = frozenset(name + end for name in _SAMPLES for end in ("", ".partial"))
_PART = re.compile(r"part-\d{5,}\.parquet")
_WHOLE = frozenset({"raw", "logs"})  # the recorder's own scratch, and what the job logged


def foreign_entry(directory: Path) -> Path | None:
    """Return something in the directory that no trace has; None when there is nothing. Links are not followed."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if _is_directory(entry.path):
            found = _foreign_below(Path(entry.path))
            if found:
                return found
        elif entry.name not in _FILES and entry.name not in _WHOLE:
            return Path(entry.path)
    return None


def _foreign_below(directory: Path) -> Path | None:
    """The same of a directory in a trace."""
    name = directory.name
    if name in _WHOLE:
        return None
    entries = sorted(directory.iterdir())
    if name in ("events.parquet", "events.parquet.partial"):
        return next((path for path in entries if not _PART.fullmatch(path.name) or _is_directory(path)), None)
    if name == "samples":
        return next((path for path in entries if path.name not in _SAMPLE_FILES or _is_directory(path)), None)
    if name == "hosts":
        for host in entries:
            for path in host.iterdir() if _is_directory(host) else [host]:
                if path.name != "samples" or not _is_directory(path):
                    return path
                if found := _foreign_below(path):
                    return found
        return None
    return directory


def _is_directory(path: Path | str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def refuse_foreign(directory: Path) -> None:
    """Raise UsageError unless the directory is a trace and nothing else, as its manifest and all it holds say."""
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
    """Yield a hidden name beside `directory` at which a trace is made, which gets its name when the block ends; else it goes."""
    made = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        yield made
        put_in_place(made, directory)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def put_in_place(made: Path, directory: Path) -> None:
    """Rename the whole trace `made` to `directory`, where there may be nothing, an empty directory, or a trace, which goes.

    UsageError when there is anything else by now.
    """
    if directory.is_dir() and any(directory.iterdir()):
        refuse_foreign(directory)
        shutil.rmtree(directory)  # does not follow links, nor leaves the directory when its name is given to another
    try:
        made.rename(directory)
    except OSError as error:
        raise IotwinError(f"{directory} cannot become the trace: {error.strerror}; choose another name") from None
