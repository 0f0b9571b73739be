"""Check a set of hosts: which traces can be read, how they differ, and which files hosts may share."""

from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.trace_store.hosts.set_file import read_set
from iotwin.trace_store.hosts.set_tables import SetTables, trace_of_host


def check_set(directory: Path) -> dict[str, Any]:
    """Return the hosts of the set (as in the manifest of a merged trace), notes for people, and the number of shared files.

    `perhaps_shared_files`: paths that several hosts have with one inode number, which are counted once per host. Hosts may see
    a file of a network file system under different device numbers, so it is unknown whether they are the same. Raises
    IotwinError if there is no set, or if no trace can be read.
    """
    entries = read_set(directory)
    tables = SetTables(directory, entries)
    notes = [note for note in tables.manifest.notes if not note.startswith(tuple(f"{each.host}: " for each in entries))]
    for entry in entries:
        if entry.status == "missing" and _can_be_read(directory / entry.trace):
            notes.append(f"{entry.host} is late: its trace can be read now; run iotwin set make again to align its clock")
    files = tables.rows("files", schema.FILES)
    shared = 0
    if files is not None:
        known = files.to_pandas()
        known = known[known["inode"].notna() & ~known["kind"].isin(("pipe", "socket", "device", "system", "library"))]
        shared = int((known.groupby(["path", "inode"])["host"].nunique() > 1).sum())
    if shared:
        notes.append(f"{shared} files have one path and inode on several hosts; they may be the same, and count once per host")
    return {"hosts": msgspec.to_builtins(tables.manifest.hosts), "notes": notes, "perhaps_shared_files": shared}


def _can_be_read(path: Path) -> bool:
    try:
        trace_of_host(path)
    except IotwinError:
        return False
    return True
