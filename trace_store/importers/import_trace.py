"""Imports recordings of other tools. Each format has a module with `recognises(source)` and `read(source, timezone)`."""

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.trace_store.importers.assemble import Imported, write_imported
from iotwin.trace_store.manifest import Manifest, read_manifest
from iotwin.trace_store.raw.record_files import refuse_unusable

# The module of each format, in the order in which formats are tried. A DFTracer file holds Chrome's events, one per line.
FORMATS = {
    "artifact": "artifact",
    "fio": "fio",
    "darshan": "darshan",
    "dftracer": "chrome",
    "chrome": "chrome",
    "chakra": "chakra",
    "strace": "strace",
}


def import_trace(
    source: Path, directory: Path, format_name: str | None = None, timezone: str | None = None, force: bool = False
) -> tuple[Manifest, Imported]:
    """Write a trace at `directory` from the recording `source`. Return (manifest, imported tables).

    `format_name`: one of FORMATS, by default the first whose module recognises `source`. `timezone`: IANA name of the time zone
    of the local times in `source`. Raises UsageError for an unknown format or a `directory` in use. Raises IotwinError if
    `source` is unreadable.
    """
    if not source.exists():
        raise UsageError(f"{source}: no such file or directory; check the path")
    refuse_unusable(directory, force)
    # Arrow's pool allocates huge pages for each column of each block, which takes longer than parsing.
    pa.set_memory_pool(pa.system_memory_pool())
    name = format_name or _recognised(source)
    imported: Imported = _importer(name).read(source, timezone)
    return write_imported(imported, directory, source, name), imported


def _importer(name: str) -> Any:
    if name not in FORMATS:
        raise UsageError(f"format '{name}' is not known{nearest(name, list(FORMATS))}; known: {', '.join(FORMATS)}")
    return importlib.import_module(f"{__package__}.{FORMATS[name]}")


def _is_trace(source: Path) -> bool:
    try:
        read_manifest(source)
    except IotwinError:
        return False
    return True


def _recognised(source: Path) -> str:
    if _is_trace(source):
        raise UsageError(f"{source} is an iotwin trace already; see: iotwin info {source}")
    for name in FORMATS:
        if source.is_file() != (name == "artifact") and _importer(name).recognises(source):
            return name if FORMATS[name] != "chrome" else "dftracer" if ".pfw" in source.suffixes else "chrome"
    raise UsageError(f"{source} is of no format known here; name it with --format {'|'.join(FORMATS)}")
