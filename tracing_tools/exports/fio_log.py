"""Export as a log that fio replays (--read_iolog, trace file format v3 of fio 3.31 and later; "I/O REPLAY" in fio(1)).

The log contains reads, writes and syncs of regular files, in order of start, with their times. All paths are below one directory,
so that a replay never writes to the job's own files.
"""

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder
from iotwin.common.paths_below import open_beneath
from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace

_ACTIONS = dict.fromkeys(schema.READ_OPS, "read") | dict.fromkeys(schema.WRITE_OPS, "write")
_ACTIONS |= {"fsync": "sync", "fdatasync": "datasync"}
_COLUMNS = ["start_ns", "op", "file_id", "offset", "result"]
_WHERE = pc.field("op").isin(list(_ACTIONS)) & (pc.field("result") >= 0) & pc.field("file_id").is_valid()
_NAME_LIMIT = 200  # fio accepts names of up to 256 characters
_KINDS_TO_REPLAY = ("dataset", "checkpoint", "log", "library", "temporary", "other")


@dataclass
class _Use:
    """How the replay uses each file. Both arrays have one entry per file, at the index file_id."""

    size_bytes: NDArray[np.int64]  # size that the file must have for its reads
    last_row: NDArray[np.int64]  # index of the file's last row in the log, -1 if the log has no row of the file


def write_iolog(trace: Trace, out: BinaryIO, directory: Path) -> int:
    """Write the log of `trace` to `out`, for files below `directory`. Return its number of reads, writes and syncs.

    Creates missing files below `directory`, and extends files that are too short for their reads. New content is sparse.
    """
    files = trace.files()
    if not str(directory).isascii() or re.search(r"\s", str(directory)):
        raise IotwinError(
            f"{directory} has a blank or a special character, which fio cannot read in a log; choose another directory"
        )
    replayable = files["kind"].isin(_KINDS_TO_REPLAY).to_numpy()
    names = [_safe(path) for path in files["path"]]
    use = _survey(trace, replayable)
    _make_files(directory, names, use)
    out.write(b"fio version 3 iolog\n")
    names_column = pa.array([str(directory / name) for name in names], pa.string())
    opened = np.zeros(len(files), bool)
    first_row = 0
    for batch in _rows(trace, replayable):
        out.write(_lines(batch, names_column, opened, use.last_row, first_row, trace.manifest.start_ns))
        first_row += len(batch)
    return first_row


def _safe(path: str) -> str:
    relative = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
    quoted = re.sub(r"[^A-Za-z0-9._/+=@-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), relative)
    if len(quoted) > _NAME_LIMIT or any(len(part) > 255 for part in quoted.split("/")):
        return f"long-names/{zlib.crc32(path.encode()):08x}-{quoted[-100:].replace('/', '_')}"
    return quoted or "root"


def _rows(trace: Trace, replayable: NDArray[np.bool_]) -> Iterator[pd.DataFrame]:
    for batch in trace.events(columns=_COLUMNS, where=_WHERE):
        table = batch.set_column(1, "op", batch["op"].cast(pa.string())).to_pandas()
        action = table["op"].map(_ACTIONS)
        syncs = action.isin(["sync", "datasync"])
        wanted = replayable[table["file_id"].to_numpy(np.int64)] & (syncs | (table["offset"].notna() & (table["result"] > 0)))
        rows = table.assign(action=action)[wanted]
        if len(rows):
            yield rows


def _survey(trace: Trace, replayable: NDArray[np.bool_]) -> _Use:
    size, last = np.zeros(len(replayable), np.int64), np.full(len(replayable), -1, np.int64)
    row = 0
    for rows in _rows(trace, replayable):
        file_id = rows["file_id"].to_numpy(np.int64)
        last[file_id] = np.arange(row, row + len(rows))  # if a file has several rows, numpy stores the last
        ends = (rows["offset"].fillna(0) + rows["result"]).to_numpy(np.int64)
        np.maximum.at(size, file_id, np.where(rows["action"].eq("read"), ends, 0))
        row += len(rows)
    return _Use(size, last)


def _make_files(directory: Path, names: list[str], use: _Use) -> None:
    make_folder(directory)
    for file_id in np.flatnonzero(use.last_row >= 0).tolist():
        name, size = names[file_id], int(use.size_bytes[file_id])
        try:
            with os.fdopen(open_beneath(directory, name, os.O_WRONLY | os.O_CREAT, make_folders=True), "wb") as file:
                if os.fstat(file.fileno()).st_size < size:
                    file.truncate(size)
        except OSError as error:
            raise IotwinError(
                f"cannot make {directory / name} for the replay: {error.strerror}; give another directory with --files"
            ) from None


def _lines(
    rows: pd.DataFrame, names: pa.Array, opened: NDArray[np.bool_], last_row: NDArray[np.int64], first_row: int, zero_ns: int
) -> bytes:
    """Return the log lines of `rows`, with an open before a file's first line and a close after its last line.

    `opened` marks the files that are open; the function updates it. `first_row`: index in the log of the first of `rows`.
    `zero_ns`: time at which the log begins.
    """
    file_id = rows["file_id"].to_numpy(np.int64)
    name = names.take(pa.array(file_id))
    time_us = pa.array((rows["start_ns"].to_numpy(np.int64) - zero_ns).clip(0) // 1000).cast(pa.string())
    first = np.zeros(len(rows), bool)
    first[np.unique(file_id, return_index=True)[1]] = True
    first &= ~opened[file_id]
    opened[file_id] = True
    last = last_row[file_id] == np.arange(first_row, first_row + len(rows))
    is_sync = rows["action"].isin(["sync", "datasync"]).to_numpy()
    offset = pa.array(np.where(is_sync, 0, rows["offset"].fillna(0)).astype(np.int64)).cast(pa.string())
    length = pa.array(np.where(is_sync, 0, rows["result"]).astype(np.int64)).cast(pa.string())
    named = pc.binary_join_element_wise(time_us, name, " ")
    opening = pc.binary_join_element_wise(named, " add\n", named, " open\n", "")
    closing = pc.binary_join_element_wise(named, " close\n", "")
    lines = pc.binary_join_element_wise(
        pc.if_else(pa.array(first), opening, ""), named, " ", pa.array(rows["action"], pa.string()), " ", offset, " ", length,
        "\n", pc.if_else(pa.array(last), closing, ""), "",
    )  # fmt: skip
    return "".join(lines.to_pylist()).encode()
