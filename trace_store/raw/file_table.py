"""Build the table of files: determine the file of each event, and the path and kind of each file."""

import os
import struct
from bisect import bisect_right
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.columns import column, rows_table
from iotwin.trace_store.file_kinds import FileReading, file_kind, is_named_checkpoint, kinds_by_use
from iotwin.trace_store.raw.call_paths import CallPaths
from iotwin.trace_store.raw.records import (
    FILE_TYPE_MASK,
    NAME_GIVEN,
    NAME_INHERITED,
    NAME_OPENED,
    TYPE_DIRECTORY,
    TYPE_PIPE,
    TYPE_REGULAR,
    NameRecord,
)
from iotwin.trace_store.syscalls import NUMBER_OF_OP

_IDENTITY = np.dtype([("inode", "<u8"), ("device", "<u4"), ("generation", "<u4")])
_IDENTITY_STRUCT = struct.Struct("<QII")
_READING = np.array([NUMBER_OF_OP[op] for op in (*schema.READ_OPS, *schema.MAP_OPS)])
_WRITING = np.array([NUMBER_OF_OP[op] for op in schema.WRITE_OPS])
_MAPPING = np.array([NUMBER_OF_OP[op] for op in schema.MAP_OPS])
_RENAMING = np.array([NUMBER_OF_OP[op] for op in ("rename", "renameat", "renameat2")])
_REMOVING = np.array([NUMBER_OF_OP[op] for op in ("unlink", "unlinkat")])
_PAGE_FAULT = NUMBER_OF_OP["page_fault"]
_UNNAMED = b"unnamed:"
_MEMORY_DEVICE = 1  # device 0:1, to which files of memfd_create and shared memory belong, which have no path


def readable(path: bytes) -> str:
    """Return `path` as text; bytes that are not UTF-8 appear as \\xNN."""
    return path.decode("utf-8", "backslashreplace")


class FileTable:
    """Assigns file ids to the events of a trace, chunk by chunk, and collects the rows of the files table.

    A file is identified by (device, inode, generation), so that a reused inode number is another file. A path that no call
    opened, such as that of a failed open, becomes a file of kind 'missing' without a device.
    """

    def __init__(self, log_paths: set[bytes]) -> None:
        self._ids: dict[bytes, int] = {}  # file_id by the bytes of _IDENTITY
        self._rows: list[dict[str, Any]] = []
        self._log_paths = log_paths
        self._pid_file_bytes: dict[tuple[int, int], int] = {}
        self._read_at: dict[int, tuple[int, int]] = {}  # starts of the first and the last read, by file_id
        self._removed: set[int] = set()  # files that the job removed by name
        self._called: set[int] = set()  # files with calls, not only with page faults
        self._opened: dict[bytes, NameRecord] = {}
        self._inherited: dict[tuple[int, int], NameRecord] = {}
        self._given = CallPaths()
        # By path: (time_ns, identity or file_id) of each file that had the path, from time_ns on, in order of time.
        self._history: dict[bytes, list[tuple[int, bytes | int]]] = {}
        self._in_folder: dict[bytes, set[int]] = {}  # file_ids of opened files, by the folder of their current path

    def add_name(self, record: NameRecord) -> None:
        """Add the path of an open, or a path that was passed to a call. All records must be added before the first `assign`."""
        if record.type == NAME_OPENED:
            identity = _IDENTITY_STRUCT.pack(record.inode, record.device, record.generation)
            first = self._opened.setdefault(identity, record)
            if record.time_ns < first.time_ns:
                self._opened[identity] = record
            history = self._history.setdefault(record.text, [])
            index = bisect_right(history, record.time_ns, key=lambda entry: entry[0])
            if not index or history[index - 1][1] != identity:
                history.insert(index, (record.time_ns, identity))
        elif record.type == NAME_GIVEN:
            self._given.add(record.time_ns, record.tid, record.text)
        elif record.type == NAME_INHERITED:
            self._inherited[record.inode, record.device] = record

    def assign(self, chunk: NDArray[np.void], number: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Return the file_id of each event in `chunk` (records.EVENT), -1 for none. Chunks must arrive in order of start.

        `number`: number of each event's operation (syscalls.NUMBER_OF_OP).
        """
        file_type = (chunk["call_flags_cpu"] >> 10).astype(np.uint32) & np.uint32(FILE_TYPE_MASK)
        file_id = self._ids_of(chunk["inode"], chunk["device"], chunk["generation"], file_type)
        self._assign_by_path(chunk, number, file_id)
        self._count_bytes(chunk, number, file_id)
        return file_id

    def assign_blocks(self, requests: NDArray[np.void]) -> NDArray[np.int32]:
        """Return the file_id of each block request (records.BLOCK), -1 for none. Call this after the last `assign`."""
        regular = np.full(len(requests), TYPE_REGULAR, np.uint32)
        return self._ids_of(requests["inode"], requests["file_device"], requests["generation"], regular)

    def _ids_of(
        self, inode: NDArray[np.uint64], device: NDArray[np.uint32], generation: NDArray[np.uint32], file_type: NDArray[np.uint32]
    ) -> NDArray[np.int32]:
        identity = np.empty(len(inode), _IDENTITY)
        identity["inode"], identity["device"], identity["generation"] = inode, device, generation
        codes, firsts = factorize(identity)
        ids = np.array([self._id_of(identity[i], int(file_type[i])) for i in firsts.tolist()], np.int32)
        return ids[codes]

    def _id_of(self, identity: Any, file_type: int) -> int:
        if not identity["inode"] and not identity["device"]:
            return -1
        key = identity.tobytes()
        known = self._ids.get(key)
        if known is None:
            inode, device = int(identity["inode"]), int(identity["device"])
            record, inherited = self._opened.get(key), self._inherited.get((inode, device))
            if record is None or (inherited and file_type == TYPE_PIPE):  # /dev/stdout is the inherited pipe
                record = inherited
            nameless = b"/memfd:" if device == _MEMORY_DEVICE else _UNNAMED if file_type else b"anon_inode:"
            is_named = record is not None and device != _MEMORY_DEVICE  # opened again through /proc, a memory file has the name /
            path = record.text if record and is_named else nameless + b"[%d]" % inode
            known = self._add(path, file_type, record.size if record else None)
            if record and is_named:
                self._in_folder.setdefault(path.rpartition(b"/")[0], set()).add(known)
            self._rows[known] |= {
                "since_ns": record.time_ns if record else 0,
                "device": os.makedev(device >> 20, device & 0xFFFFF),
                "inode": inode,
                "generation": int(identity["generation"]),
            }
            self._ids[key] = known
        return known

    def _add(self, path: bytes, file_type: int, size: int | None) -> int:
        row = dict.fromkeys((*schema.FILES.names, "read_bytes", "written_bytes", "was_found"))
        file_id = len(self._rows)
        self._rows.append(row | {
            "file_id": file_id, "path": path, "size_bytes": size, "file_type": file_type, "read_bytes": 0, "written_bytes": 0,
        })  # fmt: skip
        return file_id

    def _file_at(self, path: bytes, time_ns: int, succeeded: bool) -> int:
        """Return the id of the file that had `path` at `time_ns`. Add a new file if no open of `path` is known before."""
        history = self._history.setdefault(path, [])
        position = bisect_right(history, time_ns, key=lambda entry: entry[0])
        if succeeded and history:
            position = max(position, 1)  # the file existed before its first open
        found = history[position - 1][1] if position else None
        if isinstance(found, bytes):
            found = self._ids.get(found)
        if found is None:
            found = self._add(path, 0, None)
            history.insert(0, (0, found))
        return found

    def _assign_by_path(self, chunk: NDArray[np.void], number: NDArray[np.uint32], file_id: NDArray[np.int32]) -> None:
        """Set `file_id` of calls that name a file by its path: failed opens, stat and similar calls, unlinks and renames."""
        rows = np.flatnonzero(file_id < 0)
        first, second = self._given.find(chunk["start_ns"][rows], chunk["tid"][rows])
        rows, first, second = rows[first >= 0], first[first >= 0], second[first >= 0]
        succeeded = chunk["result"][rows] >= 0
        renames = np.isin(number[rows], _RENAMING) & succeeded & (second >= 0)
        if len(rows) and not renames.any():
            names, codes = np.unique(first << 1 | succeeded, return_inverse=True)
            file_id[rows] = np.array([self._only_file_at(name >> 1, bool(name & 1)) for name in names.tolist()], np.int32)[codes]
        for i in np.flatnonzero(file_id[rows] < 0).tolist():
            start_ns = int(chunk["start_ns"][rows[i]])
            file_id[rows[i]] = found = self._file_at(self._given.paths[first[i]], start_ns, bool(succeeded[i]))
            if renames[i]:
                self._rename(found, self._given.paths[first[i]], self._given.paths[second[i]], start_ns)
        for found in np.unique(file_id[rows[succeeded]]).tolist():
            self._rows[found]["was_found"] = True
        self._removed.update(np.unique(file_id[rows[succeeded & np.isin(number[rows], _REMOVING)]]).tolist())

    def _only_file_at(self, name: int, succeeded: bool) -> int:
        """Return the id of the file at the path with index `name` if the path has always meant one file; else -1."""
        path = self._given.paths[name]
        history = self._history.get(path, [])
        if len(history) > 1 or (history and not succeeded and history[0][0] > 0):
            return -1
        return self._file_at(path, 0, succeeded)

    def _rename(self, file: int, before: bytes, path: bytes, time_ns: int) -> None:
        self._name(file, path, time_ns)
        # A file of unknown type may be a folder: one that the job never opened, or whose type strace did not print.
        if self._rows[file]["file_type"] in (0, TYPE_DIRECTORY) or before in self._in_folder:
            self._rename_within(before, path, time_ns)

    def _rename_within(self, before: bytes, after: bytes, time_ns: int) -> None:
        """Rename the files below the folder renamed from `before` to `after`, except those first opened after `time_ns`."""
        for folder in [name for name in self._in_folder if name == before or name.startswith(before + b"/")]:
            for file in sorted(self._in_folder[folder]):
                row = self._rows[file]
                if row["since_ns"] <= time_ns:
                    self._name(file, after + (row["renamed_to"] or row["path"]).removeprefix(before), time_ns)

    def _name(self, file: int, path: bytes, time_ns: int) -> None:
        row = self._rows[file]
        before, after = ((name.rpartition(b"/")[0]) for name in (row["renamed_to"] or row["path"], path))
        if file in self._in_folder.get(before, ()):
            self._in_folder[before].discard(file)
            self._in_folder.setdefault(after, set()).add(file)
        row["renamed_to"] = path
        target = self._history.setdefault(path, [])
        target.insert(bisect_right(target, time_ns, key=lambda entry: entry[0]), (time_ns, file))

    def _count_bytes(self, chunk: NDArray[np.void], number: NDArray[np.uint32], file_id: NDArray[np.int32]) -> None:
        moved = np.where(np.isin(number, _MAPPING), chunk["requested"].astype(np.int64), chunk["result"])
        moved = np.where((chunk["result"] > 0) & (file_id >= 0), moved, 0)
        self._called.update(np.unique(file_id[number != _PAGE_FAULT]).tolist())
        for field, calls in (("read_bytes", _READING), ("written_bytes", _WRITING)):
            rows = np.flatnonzero(np.isin(number, calls) & (moved > 0))
            pairs, codes = np.unique(chunk["pid"][rows].astype(np.int64) << 32 | file_id[rows], return_inverse=True)
            totals = np.bincount(codes, weights=moved[rows].astype(np.float64), minlength=len(pairs)).astype(np.int64)
            if field == "read_bytes":
                self._note_read_times(file_id[rows], chunk["start_ns"][rows].astype(np.int64))
            for pair, size in zip(pairs.tolist(), totals.tolist(), strict=True):
                pid, file = pair >> 32, pair & 0xFFFFFFFF
                self._rows[file][field] += size
                if field == "read_bytes":
                    self._pid_file_bytes[pid, file] = self._pid_file_bytes.get((pid, file), 0) + size

    def _note_read_times(self, file_id: NDArray[np.int32], start_ns: NDArray[np.int64]) -> None:
        files, firsts = np.unique(file_id, return_index=True)
        lasts = len(file_id) - 1 - np.unique(file_id[::-1], return_index=True)[1]
        for file, first, last in zip(files.tolist(), start_ns[firsts].tolist(), start_ns[lasts].tolist(), strict=True):
            self._read_at[file] = (self._read_at.get(file, (first, last))[0], last)

    @cached_property
    def _kinds(self) -> list[str]:
        kinds = [self._kind(row) for row in self._rows]
        read = [i for i, row in enumerate(self._rows) if row["read_bytes"] and not row["written_bytes"] and i in self._read_at]
        readings = [
            FileReading(readable(row["path"]), kinds[i], row["size_bytes"], row["read_bytes"], *self._read_at[i])
            for i in read
            for row in (self._rows[i],)
        ]
        for i, kind in zip(read, kinds_by_use(readings), strict=True):
            kinds[i] = kind
        return kinds

    def _kind(self, row: dict[str, Any]) -> str:
        # The last name decides, since a file may be written under a temporary name first.
        path = readable(row["renamed_to"] or row["path"])
        if row["path"].startswith(_UNNAMED) and row["file_id"] not in self._called:
            return "library"  # a program or its loader, which the kernel opens and maps
        if not row["file_type"] and row["was_found"]:
            # The file exists, but the job never opened it.
            return "checkpoint" if row["file_id"] in self._removed and is_named_checkpoint(path) else "other"
        is_log, moved = row["path"] in self._log_paths, (row["read_bytes"], row["written_bytes"])
        return file_kind(path, row["file_type"], *moved, is_log, row["size_bytes"])

    def dataset_bytes_by_pid(self) -> dict[int, int]:
        """Return the number of data-set bytes that each process read, by pid. Call this after the last `assign`."""
        is_dataset = [kind == "dataset" for kind in self._kinds]
        totals: dict[int, int] = {}
        for (pid, file), size in self._pid_file_bytes.items():
            if is_dataset[file]:
                totals[pid] = totals.get(pid, 0) + size
        return totals

    def table(self) -> pa.Table:
        """Return the files table (schema.FILES). Call this after the last `assign`."""
        rows = [
            {
                **row,
                "path": readable(row["path"]),
                "renamed_to": None if row["renamed_to"] is None else readable(row["renamed_to"]),
                "kind": kind,
            }
            for row, kind in zip(self._rows, self._kinds, strict=True)
        ]
        return rows_table(rows, schema.FILES)


def factorize(identity: NDArray[np.void]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Number the distinct rows. Return (number of each row, index of the first row with each number).

    Comparing 64-bit hashes is much faster than comparing rows. If a check finds that two hashes collide, rows are compared.
    """
    with np.errstate(over="ignore"):
        mixed = (identity["device"].astype(np.uint64) << np.uint64(32)) | identity["generation"]
        hashed = identity["inode"] * np.uint64(0x9E3779B97F4A7C15) ^ mixed * np.uint64(0x9E3779B97F4A7C15 ^ 0x2545F4914F6CDD1D)
    encoded = column(hashed, pa.uint64()).dictionary_encode()
    codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(hashed))
    firsts = np.zeros(len(encoded.dictionary), np.int64)
    firsts[codes[::-1]] = np.arange(len(codes))[::-1]
    if (identity[firsts][codes] == identity).all():
        return codes, firsts
    _, firsts, inverse = np.unique(identity, return_index=True, return_inverse=True)
    return inverse.astype(np.int32), firsts
