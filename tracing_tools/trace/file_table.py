"""The files of a trace: which file each event worked on, under which path, and what kind of file it is."""

import os
from bisect import bisect_right
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from tracing_tools.trace import schema
from tracing_tools.trace.classify import file_kind
from tracing_tools.trace.records import FILE_TYPE_MASK, NAME_GIVEN, NAME_INHERITED, NAME_OPENED, NameRecord
from tracing_tools.trace.syscalls import NUMBER_OF_OP

_IDENTITY = np.dtype([("inode", "<u8"), ("device", "<u4"), ("generation", "<u4")])
_READING = np.array([NUMBER_OF_OP[op] for op in (*schema.READ_OPS, *schema.MAP_OPS)])
_WRITING = np.array([NUMBER_OF_OP[op] for op in schema.WRITE_OPS])
_READS_MAPPED = np.array([NUMBER_OF_OP[op] for op in schema.MAP_OPS])
_RENAMING = np.array([NUMBER_OF_OP[op] for op in ("rename", "renameat", "renameat2")])
_PLAIN = pa.schema([(field.name, pa.string() if field.name == "kind" else field.type) for field in schema.FILES])


def readable(path: bytes) -> str:
    """Return a path as text; bytes that are not UTF-8 appear as \\xNN."""
    return path.decode("utf-8", "backslashreplace")


class FileTable:
    """Assigns file ids to events chunk by chunk, and gathers what the files table needs on the way.

    A file is its (device, inode, generation), so that a reused inode number is another file. Names that never led to an open file
    (failed opens) are files of kind 'missing' with no device.
    """

    def __init__(self, names: list[NameRecord], log_paths: set[bytes]) -> None:
        self._ids: dict[bytes, int] = {}  # identity bytes -> file_id
        self._rows: list[dict[str, Any]] = []
        self._log_paths = log_paths
        self._pid_file_bytes: dict[tuple[int, int], int] = {}
        self._opened: dict[bytes, NameRecord] = {}
        self._inherited: dict[tuple[int, int], NameRecord] = {}
        self._given: dict[tuple[int, int], list[NameRecord]] = {}
        # Which file a path led to over time: (since when, identity or file_id), in order of time.
        self._history: dict[bytes, list[tuple[int, bytes | int]]] = {}
        for record in sorted(names, key=lambda record: record.time_ns):
            if record.type == NAME_OPENED:
                identity = np.array([(record.inode, record.device, record.generation)], _IDENTITY).tobytes()
                self._opened.setdefault(identity, record)
                self._history.setdefault(record.text, []).append((record.time_ns, identity))
            elif record.type == NAME_GIVEN:
                self._given.setdefault((record.tid, record.time_ns), []).append(record)
            elif record.type == NAME_INHERITED:
                self._inherited[record.inode, record.device] = record

    def assign(self, chunk: NDArray[np.void], number: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Return the file_id of each event of the chunk (-1: none), in the order given; chunks must come in order of start."""
        identity = np.empty(len(chunk), _IDENTITY)
        for name in _IDENTITY.names or ():
            identity[name] = chunk[name]
        codes, firsts = _factorize(identity)
        file_type = (chunk["call_flags_cpu"] >> 10) & FILE_TYPE_MASK
        ids = np.array([self._id_of(identity[i], int(file_type[i])) for i in firsts.tolist()], np.int32)
        file_id = ids[codes]
        self._assign_given(chunk, number, file_id)
        self._account(chunk, number, file_id)
        return file_id

    def _id_of(self, identity: Any, file_type: int) -> int:
        if not identity["inode"] and not identity["device"]:
            return -1
        key = identity.tobytes()
        known = self._ids.get(key)
        if known is None:
            inode, device = int(identity["inode"]), int(identity["device"])
            record = self._opened.get(key) or self._inherited.get((inode, device))
            path = record.text if record else b"unnamed:[%d]" % inode
            known = self._add(path, file_type, record.size if record else None)
            self._rows[known] |= {
                "device": os.makedev(device >> 20, device & 0xFFFFF), "inode": inode, "generation": int(identity["generation"]),
            }  # fmt: skip
            self._ids[key] = known
        return known

    def _add(self, path: bytes, file_type: int, size: int | None) -> int:
        row = dict.fromkeys((*schema.FILES.names, "read_bytes", "written_bytes"))
        file_id = len(self._rows)
        self._rows.append(row | {
            "file_id": file_id, "path": path, "size_bytes": size, "file_type": file_type, "read_bytes": 0, "written_bytes": 0,
        })  # fmt: skip
        return file_id

    def _file_at(self, path: bytes, time_ns: int) -> int:
        """Return the file that `path` led to at `time_ns`; a file of its own when no open ever told."""
        history = self._history.setdefault(path, [])
        position = bisect_right(history, time_ns, key=lambda entry: entry[0])
        found = history[position - 1][1] if position else None
        if isinstance(found, bytes):
            found = self._ids.get(found)
        if found is None:
            found = self._add(path, 0, None)
            history.insert(0, (0, found))
        return found

    def _assign_given(self, chunk: NDArray[np.void], number: NDArray[np.uint32], file_id: NDArray[np.int32]) -> None:
        """Fill in the files of calls that name a path: failed opens, unlinks and renames. A loop, as these are few."""
        if not self._given:
            return
        for i in np.flatnonzero(file_id < 0).tolist():
            start_ns = int(chunk["start_ns"][i])
            given = self._given.get((int(chunk["tid"][i]), start_ns))
            if not given:
                continue
            file_id[i] = found = self._file_at(given[0].text, start_ns)
            if number[i] in _RENAMING and given[0].result == 0 and len(given) > 1:
                self._rows[found]["renamed_to"] = given[1].text
                target = self._history.setdefault(given[1].text, [])
                target.insert(bisect_right(target, start_ns, key=lambda entry: entry[0]), (start_ns, found))

    def _account(self, chunk: NDArray[np.void], number: NDArray[np.uint32], file_id: NDArray[np.int32]) -> None:
        moved = np.where(np.isin(number, _READS_MAPPED), chunk["requested"].astype(np.int64), chunk["result"])
        moved = np.where((chunk["result"] > 0) & (file_id >= 0), moved, 0)
        for field, calls in (("read_bytes", _READING), ("written_bytes", _WRITING)):
            rows = np.flatnonzero(np.isin(number, calls) & (moved > 0))
            totals = np.bincount(file_id[rows], weights=moved[rows].astype(np.float64), minlength=len(self._rows))
            for i in np.flatnonzero(totals).tolist():
                self._rows[i][field] += int(totals[i])
            if field == "read_bytes":
                frame = pd.DataFrame({"pid": chunk["pid"][rows], "file": file_id[rows], "bytes": moved[rows]})
                totals_by_pid = frame.groupby(["pid", "file"], as_index=False)["bytes"].sum()
                for pid, file, size in totals_by_pid.to_numpy(np.int64).tolist():
                    self._pid_file_bytes[pid, file] = self._pid_file_bytes.get((pid, file), 0) + size

    def _kind(self, row: dict[str, Any]) -> str:
        # A file written under a temporary name is what its last name says.
        path = readable(row["renamed_to"] or row["path"])
        return file_kind(path, row["file_type"], row["read_bytes"], row["written_bytes"], row["path"] in self._log_paths)

    def dataset_bytes_by_pid(self) -> dict[int, int]:
        """Return the bytes of data-set files that each process read; call after the last chunk."""
        is_dataset = [self._kind(row) == "dataset" for row in self._rows]
        totals: dict[int, int] = {}
        for (pid, file), size in self._pid_file_bytes.items():
            if is_dataset[file]:
                totals[pid] = totals.get(pid, 0) + size
        return totals

    def table(self) -> pa.Table:
        """Return the files table (schema.FILES); call after the last chunk."""
        rows = [
            {
                **row,
                "path": readable(row["path"]),
                "renamed_to": None if row["renamed_to"] is None else readable(row["renamed_to"]),
                "kind": self._kind(row),
            }
            for row in self._rows
        ]
        return pa.table({name: [row[name] for row in rows] for name in schema.FILES.names}, schema=_PLAIN).cast(schema.FILES)


def _factorize(identity: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each row's code, and for each code the first row that has it.

    Rows are compared by a 64-bit hash, which is far faster than comparing them whole; the result is checked against the rows, and
    another hash is taken in the (never seen) case of a collision.
    """
    for multiplier in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9):
        with np.errstate(over="ignore"):
            mixed = (identity["device"].astype(np.uint64) << np.uint64(32)) | identity["generation"]
            hashed = identity["inode"] * np.uint64(multiplier) ^ mixed * np.uint64(multiplier ^ 0x2545F4914F6CDD1D)
        codes, uniques = pd.factorize(hashed)
        firsts = np.zeros(len(uniques), np.int64)
        firsts[codes[::-1]] = np.arange(len(codes))[::-1]
        if (identity[firsts][codes] == identity).all():
            return codes, firsts
    raise AssertionError("three different hashes collided")
