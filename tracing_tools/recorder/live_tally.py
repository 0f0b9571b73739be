"""Sums of a recording's calls while it grows: by rank, operation and kind of file. The live view and the metrics show them."""

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iotwin.common.ranks import MPI_VARIABLES
from iotwin.trace_store import schema
from iotwin.trace_store.columns import column
from iotwin.trace_store.file_kinds import file_kind
from iotwin.trace_store.raw.file_table import factorize, readable
from iotwin.trace_store.raw.records import (
    FILE_TYPE_MASK,
    LAST_NS,
    NAME_EXEC,
    NAME_EXIT,
    NAME_FORK,
    NAME_INHERITED,
    NAME_OPENED,
    NameRecord,
    read_names,
)
from iotwin.trace_store.schema import FILE_KINDS, OP_GROUPS, WAIT_OPS
from iotwin.trace_store.syscalls import NUMBER_OF_OP

BUCKETS_PER_OCTAVE = 8
BUCKETS = 64 * BUCKETS_PER_OCTAVE
GROUPS = [*OP_GROUPS, "other"]
READ, WRITE = GROUPS.index("read"), GROUPS.index("write")
OPS = [*NUMBER_OF_OP, "other"]
KINDS = [*FILE_KINDS, "none"]
_NO_FILE, _OTHER, _DATASET = KINDS.index("none"), KINDS.index("other"), KINDS.index("dataset")
GROUP_OF_OP = np.array([GROUPS.index(schema.GROUP_OF_OP.get(op, "other")) for op in OPS])
_IS_WAIT = np.array([op in WAIT_OPS for op in OPS])
_OP_OF_NUMBER = np.full(1024, len(OPS) - 1, np.int64)
for _index, _op in enumerate(NUMBER_OF_OP):
    _OP_OF_NUMBER[NUMBER_OF_OP[_op]] = _index
_IDENTITY = np.dtype([("inode", "<u8"), ("device", "<u4"), ("generation", "<u4")])
_MOST_FILES = 100_000  # files whose names, kinds and bytes are stored; the oldest are forgotten
_LOGS = ("stdout", "stderr")
_MUCH_BYTES = 1 << 20  # the first read or write decides a file's kind, as if the job read or wrote so much of it
_RANK_VARIABLES = [b"RANK", *(rank.encode() for rank, _ in MPI_VARIABLES)]

FileIdentity = tuple[int, int, int]  # inode, device, generation
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LiveTally:
    """Sums over all records that were added. Rows of the arrays are pairs of rank and operation, in order of their first call.

    `calls` and `bytes` have shape (pairs, KINDS), `latencies` (pairs, BUCKETS), `seconds` (pairs,). A rank stalls while its main
    thread is in a call that waits or that reads the data set; `stall_s` has the sum of these times by rank. It trains from its
    first read of the data set, or the first stall counted for it, until it ends.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []  # (rank, index of the operation in OPS)
        self.calls = np.zeros((0, len(KINDS)), np.int64)
        self.bytes = np.zeros((0, len(KINDS)), np.int64)
        self.latencies = np.zeros((0, BUCKETS), np.int64)
        self.seconds = np.zeros(0)
        self.stall_s: dict[int, float] = {}
        self.file_bytes: dict[FileIdentity, int] = {}
        self._kind_of: dict[FileIdentity, int] = {}
        self._opened: dict[FileIdentity, NameRecord] = {}
        self._slots: list[int] = []  # ranks, in order of their first call
        self._row_of = np.zeros(0, np.int64)  # by slot * len(OPS) + op; -1 if there was no such call
        self._rank_of: dict[int, int] = {}
        self._parents: dict[int, int] = {}  # parent by pid, for forked processes that have executed no program
        self._mains: dict[int, int] = {}  # by pid of a rank: time in ns at which it began to train
        self._ended: dict[int, int] = {}  # by pid of an ended process: time in ns of its end
        # By rank: ns for which ended processes trained whose pids now belong to other processes.
        self._earlier_ns: dict[int, int] = {}

    def add_events(self, records: NDArray[np.void]) -> None:
        """Add event records (dtype records.EVENT)."""
        if not len(records):
            return
        op = _OP_OF_NUMBER[records["call_flags_cpu"] & np.uint32(1023)]
        group = GROUP_OF_OP[op]
        moved = np.maximum(records["result"], 0) * ((group == READ) | (group == WRITE))
        kind = self._kinds(records, group, moved)
        encoded = column(records["pid"], pa.uint32()).dictionary_encode()
        # Arrow's own conversion to numpy would import pandas: it takes half a second, and the user may be unable to read it.
        codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(records))
        pids = encoded.dictionary.to_pylist()
        pair = self._pairs(np.array([self._slot(self.rank(pid)) for pid in pids])[codes] * len(OPS) + op)
        self._add_cells(pair, kind, moved, records["duration_ns"].astype(np.float64))
        reads = (kind == _DATASET) & (group == READ)
        chosen = (reads | _IS_WAIT[op]) & (records["pid"] == records["tid"])
        begins: dict[int, int] = {}
        for code in np.flatnonzero(np.bincount(codes[reads], minlength=len(pids))).tolist():
            main = self._parents.get(pids[code], pids[code])  # a rank, or the rank that forked this loader
            if main not in self._mains:
                counted = (reads & (codes == code)) | (chosen & (records["pid"] == main))
                begins[main] = min(begins.get(main, LAST_NS), int(records["start_ns"][counted].min()))
        self._mains |= begins
        sums = np.bincount(codes[chosen], weights=records["duration_ns"][chosen], minlength=len(pids))
        for pid, duration_ns in zip(pids, sums.tolist(), strict=True):
            if pid in self._mains:
                self.stall_s[self.rank(pid)] = self.stall_s.get(self.rank(pid), 0.0) + duration_ns / 1e9

    def _slot(self, rank: int) -> int:
        if rank not in self._slots:
            self._slots.append(rank)
            self._row_of = np.append(self._row_of, np.full(len(OPS), -1))
        return self._slots.index(rank)

    def _add_cells(
        self, pair: NDArray[np.int64], kind: NDArray[np.int64], moved: NDArray[np.int64], duration_ns: NDArray[np.float64]
    ) -> None:
        cells, shape = pair * len(KINDS) + kind, self.calls.shape
        self.calls += np.bincount(cells, minlength=self.calls.size).reshape(shape)
        self.bytes += np.bincount(cells, weights=moved, minlength=self.calls.size).astype(np.int64).reshape(shape)
        bucket = (np.log2(np.maximum(duration_ns, 1)) * BUCKETS_PER_OCTAVE).astype(np.int64)
        cells = pair * BUCKETS + np.minimum(bucket, BUCKETS - 1)
        self.latencies += np.bincount(cells, minlength=self.latencies.size).reshape(self.latencies.shape)
        self.seconds += np.bincount(pair, weights=duration_ns, minlength=len(self.pairs)) / 1e9

    def _pairs(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each call, from its slot * len(OPS) + op. Rows are added for pairs that are new."""
        used = np.flatnonzero(np.bincount(codes, minlength=len(self._row_of)))
        new = used[self._row_of[used] < 0]
        self._row_of[new] = len(self.pairs) + np.arange(len(new))
        for slot, op in (divmod(code, len(OPS)) for code in new.tolist()):
            self.pairs.append((self._slots[slot], op))
        if len(new):
            rows = ((0, len(new)), (0, 0))
            self.calls, self.bytes, self.latencies = (np.pad(each, rows) for each in (self.calls, self.bytes, self.latencies))
            self.seconds = np.pad(self.seconds, rows[0])
        return self._row_of[codes]

    def _kinds(self, records: NDArray[np.void], group: NDArray[np.int64], moved: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the kind (index in KINDS) of each call's file, and add `moved` to the bytes of the files."""
        identity = np.empty(len(records), _IDENTITY)
        for field in ("inode", "device", "generation"):
            identity[field] = records[field]
        codes, firsts = factorize(identity)
        moves = np.flatnonzero((group == READ) | (group == WRITE))[::-1]
        first_move = np.full(len(firsts), -1)
        first_move[codes[moves]] = moves
        sums = np.bincount(codes, weights=moved, minlength=len(firsts)).tolist()
        kinds = []
        for code, file in enumerate(identity[firsts].tolist()):  # one iteration per file, not per call
            if sums[code]:
                _remember(self.file_bytes, file, self.file_bytes.get(file, 0) + int(sums[code]))
            kind, row = self._kind_of.get(file), int(first_move[code])
            if kind is None:
                file_type = int(records["call_flags_cpu"][firsts[code]]) >> 10 & FILE_TYPE_MASK
                kind = self._kind(file, file_type, row >= 0 and bool(group[row] == WRITE))
                if row >= 0:
                    _remember(self._kind_of, file, kind)
            kinds.append(kind)
        return np.array(kinds)[codes]

    def _kind(self, file: FileIdentity, file_type: int, is_written: bool) -> int:
        if not file[0] and not file[1]:
            return _NO_FILE
        record = self._record(file)
        path = readable(record.text) if record else "anon_inode:"
        is_log = record is not None and record.type == NAME_INHERITED and "/logs/" in path and path.endswith(_LOGS)
        read_bytes, written_bytes = _MUCH_BYTES * (not is_written), _MUCH_BYTES * is_written
        kind = file_kind(path, file_type, read_bytes, written_bytes, is_log, record.size if record else None)
        return KINDS.index(kind) if record or kind != "system" else _OTHER

    def _record(self, file: FileIdentity) -> NameRecord | None:
        return self._opened.get(file) or self._opened.get((*file[:2], 0))  # /proc does not report generations

    def name(self, file: FileIdentity) -> str | None:
        """Return the path of a file; None if it is unknown."""
        record = self._record(file)
        return readable(record.text) if record else None

    def running_ranks(self) -> int:
        """Return the number of running ranks. A rank is a process that reads the data set itself or by loaders."""
        return len(self._mains.keys() - self._ended.keys())

    def training_s(self, now_ns: int) -> dict[int, float]:
        """Return for how many seconds each rank has trained until `now_ns`, summed over its processes."""
        found = dict(self._earlier_ns)
        for pid, begin_ns in self._mains.items():
            found[self.rank(pid)] = found.get(self.rank(pid), 0) + max(self._ended.get(pid, now_ns) - begin_ns, 0)
        return {rank: ns / 1e9 for rank, ns in found.items()}

    def rank(self, pid: int) -> int:
        """Return the rank of a process: from its environment, else its parent's, else this process's, else 0."""
        if pid not in self._rank_of:
            found = _rank_in_environment(pid)
            if found is None:
                parent = self._parents.get(pid)
                found = (_rank_in(os.environb) or 0) if parent is None else self.rank(parent)
            _remember(self._rank_of, pid, found)
        return self._rank_of[pid]

    def add_names(self, content: bytes | memoryview) -> None:
        """Add name records: the names of opened files, and the forks, programs and ends of processes."""
        for record in read_names(bytes(content)):
            if record.type in (NAME_OPENED, NAME_INHERITED):
                _remember(self._opened, (record.inode, record.device, record.generation), record)
            elif record.type == NAME_FORK:
                if record.pid in self._mains:
                    rank, begin_ns = self.rank(record.pid), self._mains.pop(record.pid)
                    trained_ns = max(self._ended.get(record.pid, record.time_ns) - begin_ns, 0)
                    self._earlier_ns[rank] = self._earlier_ns.get(rank, 0) + trained_ns
                for table in (self._rank_of, self._ended):
                    table.pop(record.pid, None)
                _remember(self._parents, record.pid, record.parent)
            elif record.type == NAME_EXEC and b"multiprocessing" not in record.text:
                self._parents.pop(record.pid, None)
                self._rank_of.pop(record.pid, None)
            elif record.type == NAME_EXIT:
                _remember(self._ended, record.pid, record.time_ns)


def _remember(table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    table[key] = value
    if len(table) > _MOST_FILES:
        del table[next(iter(table))]


def _rank_in_environment(pid: int) -> int | None:
    """Return the rank in the environment that the process started with; None if there is none, or the process has ended."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    return _rank_in(dict(word.partition(b"=")[::2] for word in content.split(b"\0")))


def _rank_in(environment: Mapping[bytes, bytes]) -> int | None:
    found = next((environment[name] for name in _RANK_VARIABLES if environment.get(name, b"").isdigit()), None)
    return None if found is None else int(found[:9])
