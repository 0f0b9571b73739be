"""Import the text of Darshan's extended tracing (darshan-dxt-parser): the reads and writes of each rank."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotwin.common.units import counted
from iotwin.common.untrusted_files import open_foreign
from iotwin.trace_store.importers.assemble import Imported
from iotwin.trace_store.importers.sorted_calls import Runs, calls_table
from iotwin.trace_store.importers.text import read_lines

_FILE = re.compile(r"# DXT, file_id: \d+, file_name: (?P<path>.*)")
_HEADER = "# DXT, file_id:"
# Matches lines with numbers that do not fit their column: 18 digits or more, a rank of 10 digits, a time of 9 digits.
_LONG = re.compile(r"\d{18}|X_\w+\s+\d{10}|\d{9}\.")
_COMMAND = re.compile(r"# exe: (?P<command>.*)")
_ROW = (
    r"^\s*(?P<module>X_\w+)\s+(?P<rank>\d+)\s+(?P<op>read|write)\s+\d+\s+(?P<offset>\d+)\s+(?P<length>\d+)"
    r"\s+(?P<start>\d+\.?\d*)\s+(?P<end>\d+\.?\d*)(?:\s.*)?$"
)


def recognises(source: Path) -> bool:
    """Return True if `source` begins like the output of darshan-dxt-parser."""
    with open_foreign(source) as file:
        return b"# DXT" in file.read(1 << 16)


def read(source: Path, timezone: str | None) -> Imported:
    """Return the reads and writes in `source`. Rank r becomes the process with pid r + 1. Times are as precise as the text.

    If a file has POSIX rows, its MPI-IO rows are left out, since they describe the same bytes.
    """
    lines = read_lines(source)
    path_of_line, command = _paths(lines)
    rows = pc.extract_regex(pa.array(lines, pa.string()), _ROW)
    fits = np.array([_LONG.search(line) is None for line in lines], bool)
    data = np.array([line.lstrip().startswith("X_") for line in lines], bool)
    whole = pc.is_valid(rows).to_numpy(zero_copy_only=False) & fits
    kept = np.flatnonzero(whole & (path_of_line >= 0))
    torn = {source.name: int((data & ~whole).sum())}
    table = pa.Table.from_struct_array(pc.take(rows, pa.array(kept)))
    if not table.num_rows:
        return Imported(torn=torn)
    paths = np.array([_path(line) for line in lines if line.startswith(_HEADER)], dtype=object)
    path = path_of_line[kept]
    posix = table["module"].to_numpy() == "X_POSIX"
    shown = posix | ~np.isin(path, path[posix])
    start, end = (np.rint(pc.cast(table[name], pa.float64()).to_numpy() * 1e9).astype(np.int64) for name in ("start", "end"))
    rank = pc.cast(table["rank"], pa.int32()).to_numpy() + 1
    calls = calls_table(
        start_ns=start,
        duration_ns=np.maximum(end - start, 0),
        pid=rank,
        op=table["op"].dictionary_encode(),
        path=pa.array(paths[path], pa.string()).dictionary_encode(),
        offset=pc.cast(table["offset"], pa.int64()),
        requested=pc.cast(table["length"], pa.int64()),
        result=pc.cast(table["length"], pa.int64()),
    ).filter(pa.array(shown))
    notes = [f"left out: {counted(int((~shown).sum()), 'row')} of MPI-IO, which POSIX rows repeat"] if not shown.all() else []
    processes = [{"pid": pid, "comm": f"rank {pid - 1}", "role": "rank"} for pid in np.unique(rank).tolist()]
    return Imported(Runs.of(calls), torn, notes, processes=processes, command=command)


def _path(header: str) -> str:
    match = _FILE.match(header)
    return match["path"] if match else "unknown"


def _paths(lines: list[str]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str]]:
    """Return (index of the last file header at or before each of `lines`, -1 if none; the command of the job)."""
    starts = np.array([line.startswith(_HEADER) for line in lines], bool)
    command = next((match["command"].split() for line in lines if (match := _COMMAND.match(line))), [])
    return np.cumsum(starts) - 1, command
