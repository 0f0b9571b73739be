"""The checkpoint files of a traced job, each time they were written."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.recorded.files import common_folder
from iotwin.benchmark.fit.traced_job import Job
from iotwin.trace_store import schema
from iotwin.trace_store.figures.process_ranks import rank_process

Format = Literal["zip", "legacy", "dcp"]

REMOVALS = ("unlink", "unlinkat")
_DISTRIBUTED = re.compile(r"__\d+_\d+\.distcp|\.metadata")
_END_BYTES = 98  # size of what follows the list of records at the end of a torch.save archive
_LEAST_RECORD_BYTES = 54  # least size of an entry in the list of records
_LENGTH_BYTES = 8  # length before each tensor of the legacy format
_MOST_BEFORE = 3  # most writes before the first tensor of the legacy format
_LEAST_PAIRS = 2


@dataclass
class SeenFile:
    """One checkpoint file as the trace shows it. A file that is written several times has a SeenFile for each."""

    file_id: int
    path: str  # its final path
    name: str  # its path relative to the folder of all checkpoints
    start_ns: int
    end_ns: int
    whole_ns: int  # end of its last write plus the durations of later calls; the file may be closed much later
    pid: int
    tid: int
    rank: int  # pid of the rank whose file it is: the process that wrote it, or an ancestor of that process
    write_sizes: list[tuple[int, int]]  # (size in bytes, number of consecutive writes of that size)
    fsync: bool
    renamed: bool
    format: Format | None  # None if the writes do not show it
    direct: bool  # at least one call bypassed the page cache
    folder_renamed: bool  # the folder of the file was renamed, not the file
    visits: list[tuple[int, list[tuple[int, int]]]]  # later openings: (start in ns, (offset, bytes) of each read)
    serialization_s: float  # time from the first open to the end of the last write, except in writes
    ahead_s: float  # part of serialization_s before the first write
    calls_s: float  # time in system calls on the file
    next_ns: int | None = None  # when the next checkpoint begins
    looked_at: Literal["opened", "read"] | None = None  # what the job did to the file while it wrote later checkpoints
    keep: int | None = None  # number of newest files of this kind that remain; None: all

    @property
    def read_back(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of each read of the file between its last write and the next checkpoint."""
        return [read for begin_ns, reads in self.visits if self.next_ns is None or begin_ns < self.next_ns for read in reads]


class _Calls(NamedTuple):
    """System calls on checkpoint files, one array per column. Rows are sorted by file and then by start."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    op: NDArray[np.object_]
    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    offset: NDArray[np.float64]  # NaN if the call has none
    result: NDArray[np.int64]
    writes: NDArray[np.bool_]
    reads: NDArray[np.bool_]  # successful reads with an offset
    syncs: NDArray[np.bool_]
    direct: NDArray[np.bool_]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        op, result, offset = frame["op"], frame["result"].to_numpy(np.int64), frame["offset"].to_numpy(np.float64)
        writes, reads, syncs = (op.isin(ops).to_numpy() for ops in (schema.WRITE_OPS, schema.READ_OPS, schema.SYNC_OPS))
        direct = (frame["flags"] & schema.FLAG_DIRECT).to_numpy() != 0
        start_ns, end_ns, duration_ns = (frame[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "duration_ns"))
        return cls(
            start_ns, end_ns, duration_ns, op.astype(str).to_numpy(object), frame["pid"].to_numpy(np.int64),
            frame["tid"].to_numpy(np.int64), offset, result, writes & (result > 0),
            reads & (result >= 0) & ~np.isnan(offset), syncs, direct,
        )  # fmt: skip

    def within(self, begin: int, end: int) -> "_Calls":
        """Return the calls with the indices `begin` to `end` - 1."""
        return _Calls._make(column[begin:end] for column in self)

    def chosen(self, which: NDArray[np.bool_]) -> "_Calls":
        return _Calls._make(column[which] for column in self)


def find_files(job: Job) -> list[SeenFile]:
    """Return a SeenFile for each time that a checkpoint file was opened and written, sorted by start."""
    kept = job.files[job.files["kind"] == "checkpoint"]
    paths = dict(zip(kept["file_id"].tolist(), zip(kept["path"], kept["renamed_to"], strict=True), strict=True))
    # Removals come much later, when newer files replace these, so they are not part of writing a file.
    events = job.calls[job.calls["file_id"].isin(kept["file_id"]) & ~job.calls["op"].isin(REMOVALS)]
    events = events.sort_values(["file_id", "start_ns"], kind="stable")
    opened = events["op"].isin(schema.OPEN_OPS).astype(np.int64)
    open_before = (opened - events["op"].isin(schema.CLOSE_OPS)).groupby(events["file_id"]).cumsum() - opened
    begun = ((opened == 1) & (open_before <= 0)).to_numpy()
    calls, file_ids = _Calls.of(events), events["file_id"].to_numpy(np.int64)
    begins = np.flatnonzero(begun | (np.diff(file_ids, prepend=-1) != 0))
    ranks: dict[int, int] = {}
    seen: list[SeenFile] = []
    last: dict[int, SeenFile] = {}
    for begin, end in pairwise([*begins.tolist(), len(file_ids)]):
        own, file_id = calls.within(begin, end), int(file_ids[begin])
        if own.writes.any():
            pid = int(own.pid[own.writes][0])
            if pid not in ranks:
                ranks[pid] = _rank_of(job, pid)
            path, renamed_to = paths[file_id]
            seen.append(_seen_file(file_id, path, renamed_to, own, ranks[pid]))
            last[file_id] = seen[-1]
        elif file_id in last:
            reads = own.chosen(own.reads)
            own_reads = list(zip(reads.offset.astype(np.int64).tolist(), reads.result.tolist(), strict=True))
            last[file_id].visits.append((int(own.start_ns[0]), own_reads))
    folder = folder_of(seen) if seen else ""
    for file in seen:
        file.name = str(PurePosixPath(file.path).relative_to(folder))
    return sorted(seen, key=lambda file: file.start_ns)


def folder_of(files: Sequence[SeenFile]) -> str:
    """Return the innermost folder that contains all `files`, but never the folder of a single checkpoint."""
    found = PurePosixPath(common_folder([file.path for file in files]))
    inside = any(file.folder_renamed and PurePosixPath(file.path).parent == found for file in files)
    return str(found.parent if inside else found)


def without_leaving(path: str) -> str:
    """Return `path` without the suffix `.gone`, which iotwin.common.commit appends to a folder before it removes it."""
    return re.sub(r"\.gone/([^/]+)$", r"/\1", path)


def _rank_of(job: Job, pid: int) -> int:
    """Return the pid of the rank that process `pid` is or descends from; `pid` if there is none."""
    roles, parents = job.roles(), dict(zip(job.processes["pid"], job.processes["ppid"], strict=True))
    return rank_process(pid, parents, {each for each, role in roles.items() if role == "rank"}) or pid


def _seen_file(file_id: int, opened_path: str, renamed_to: str | None, calls: _Calls, rank: int) -> SeenFile:
    renamed = isinstance(renamed_to, str)
    path = renamed_to if isinstance(renamed_to, str) else opened_path
    in_folder = renamed and PurePosixPath(path).name == PurePosixPath(opened_path).name
    path, writes = without_leaving(path) if in_folder else path, calls.chosen(calls.writes)
    start_ns, written_ns = int(calls.start_ns[0]), int(writes.end_ns.max())
    return SeenFile(
        file_id=file_id,
        path=path,
        name=PurePosixPath(path).name,
        start_ns=start_ns,
        end_ns=int(calls.end_ns.max()),
        whole_ns=written_ns + int(calls.duration_ns[calls.start_ns >= written_ns].sum()),
        pid=int(writes.pid[0]),
        tid=int(writes.tid[0]),
        rank=rank,
        write_sizes=_run_lengths(writes.result),
        format=format_of(PurePosixPath(path).name, writes.op.tolist(), writes.result.tolist()),
        fsync=bool(calls.syncs.any()),
        renamed=renamed and not in_folder,
        direct=bool(calls.direct.any()),
        folder_renamed=in_folder,
        visits=[],
        serialization_s=max(written_ns - start_ns - int(writes.duration_ns.sum()), 0) / 1e9,
        ahead_s=max(int(writes.start_ns[0]) - int(calls.end_ns[0]), 0) / 1e9,
        calls_s=int(calls.duration_ns.sum()) / 1e9,
    )


def format_of(name: str, ops: Sequence[str], sizes: Sequence[int]) -> Format | None:
    """Return the format of the file `name`, written by the calls `ops` of `sizes` bytes; None if it is unknown.

    As strace shows, torch.save (torch 2.13) writes each tensor with its header by one writev, and the archive's end by a write.
    In its legacy format it writes each tensor by two writes; the first one holds the length.
    """
    if _DISTRIBUTED.fullmatch(name):
        return "dcp"
    records = len(sizes) - 1
    if records >= 1 and set(ops[:-1]) == {"writev"} and ops[-1] == "write":
        whole = sizes[-1] == _END_BYTES or sizes[-1] >= _END_BYTES + records * _LEAST_RECORD_BYTES
        return "zip" if whole else None
    for before in range(1, min(_MOST_BEFORE, len(sizes) - 2) + 1):
        tensors = sizes[before:]
        pairs = len(tensors) >= 2 * _LEAST_PAIRS and len(tensors) % 2 == 0
        if pairs and set(ops) == {"write"} and set(tensors[::2]) == {_LENGTH_BYTES}:
            return "legacy"
    return None


def _run_lengths(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int]]:
    begins = np.flatnonzero(np.append(True, np.diff(sizes) != 0))
    counts = np.diff(np.append(begins, len(sizes)))
    return [(int(sizes[i]), int(count)) for i, count in zip(begins, counts, strict=True)]
