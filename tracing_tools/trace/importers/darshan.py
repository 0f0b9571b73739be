"""Darshan's extended tracing as text (darshan-dxt-parser): every read and write of each rank, in seconds from the job's start."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracing_tools.trace.importers.assemble import Imported
from tracing_tools.trace.importers.runs import Runs, calls_table
from tracing_tools.trace.importers.text import read_lines

_FILE = re.compile(r"# DXT, file_id: \d+, file_name: (?P<path>.*)")
_HEADER = "# DXT, file_id:"
_LONG = re.compile(r"\d{18}|X_\w+\s+\d{10}|\d{9}\.")
_COMMAND = re.compile(r"# exe: (?P<command>.*)")
_ROW = (
    r"^\s*(?P<module>X_\w+)\s+(?P<rank>\d+)\s+(?P<op>read|write)\s+\d+\s+(?P<offset>\d+)\s+(?P<length>\d+)"
    r"\s+(?P<start>\d+\.?\d*)\s+(?P<end>\d+\.?\d*)(?:\s.*)?$"
)


def recognises(source: Path) -> bool:
    """Return whether one of the first lines is the DXT parser's."""
    if not source.is_file():
        return False
    with source.open("rb") as file:
        return b"# DXT" in file.read(1 << 16)


def read(source: Path, timezone: str | None) -> Imported:
    """Return the reads and writes; a rank is a process, its number plus one the pid. Seconds carry four or more digits only.

    Where a file has POSIX rows, those of MPI-IO above them, which move the same bytes, are left out.
    """
    lines = read_lines(source)
    path_of_line, command = _paths(lines)
    rows = pc.extract_regex(pa.array(lines, pa.string()), _ROW)
    data = np.array([line.lstrip().startswith("X_") for line in lines], bool)
    whole = pc.is_valid(rows).to_numpy(zero_copy_only=False) & _fits(lines)
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
    notes = [f"{int((~shown).sum())} rows of MPI-IO repeat POSIX rows and were left out"] if not shown.all() else []
    processes = [{"pid": pid, "comm": f"rank {pid - 1}", "role": "rank"} for pid in np.unique(rank).tolist()]
    return Imported(Runs.of(calls), torn, notes, processes=processes, command=command)


def _fits(lines: list[str]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether each line's numbers fit in 64 bits: none of them has more than 18 digits, nor a rank more than 9."""
    return np.array([_LONG.search(line) is None for line in lines], bool)


def _path(header: str) -> str:
    match = _FILE.match(header)
    return match["path"] if match else "unknown"


def _paths(lines: list[str]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str]]:
    """Return for each line the number of the file header above it (-1: none), and the command of the job."""
    starts = np.array([line.startswith(_HEADER) for line in lines], bool)
    command = next((match["command"].split() for line in lines if (match := _COMMAND.match(line))), [])
    return np.cumsum(starts) - 1, command
