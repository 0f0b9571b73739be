"""The calls of a trace that a recording keeps: those that succeeded, on files that storage holds and on pipes."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyarrow import compute as pc

from iotwin.benchmark.fit.recorded.pipes import POLL, match_pipes
from iotwin.benchmark.fit.recorded.process_tree import Tree, grow
from iotwin.benchmark.fit.traced_job import Job
from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.workload_yaml.recording import Op, Pipe

_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "tid", "file_id", "fd", "offset", "requested", "result", "flags")
_KINDS = ("dataset", "checkpoint", "other", "log")
_NOT_STORAGE = ("/dev/", "/proc/", "/sys/", "pipe:", "socket:", "anon_inode:", "/memfd:")
_LARGE_BYTES = 1 << 24
_COPIES = ("sendfile", "splice", "copy_file_range")
_Ints = NDArray[np.int64]
_Mask = NDArray[np.bool_]

_OPS: dict[str, int] = {
    **dict.fromkeys(schema.OPEN_OPS, Op.OPEN), **dict.fromkeys(schema.READ_OPS, Op.READ),
    **dict.fromkeys(schema.WRITE_OPS, Op.WRITE), **dict.fromkeys(schema.CLOSE_OPS, Op.CLOSE),
    "fsync": Op.SYNC, "io_uring_fsync": Op.SYNC, "aio_fsync": Op.SYNC, "msync": Op.SYNC, "sync_file_range": Op.SYNC,
    "io_uring_sync_file_range": Op.SYNC, "fdatasync": Op.DATASYNC, "io_uring_fdatasync": Op.DATASYNC,
    "aio_fdatasync": Op.DATASYNC, "rename": Op.RENAME, "renameat": Op.RENAME, "renameat2": Op.RENAME,
    "unlink": Op.UNLINK, "unlinkat": Op.UNLINK, "mmap": Op.MAP, "munmap": Op.UNMAP, "ftruncate": Op.TRUNCATE,
    "truncate": Op.TRUNCATE, "page_fault": Op.TOUCH, **dict.fromkeys(schema.WAIT_OPS, POLL),
}  # fmt: skip


class Replayable(NamedTuple):
    """The part of a trace that can be replayed.

    Columns of `calls`: `at`, `end` (ns), `op` (Op), `pid`, `tid`, `thread` (index), `file` and `subject` (file_id or index of the
    pipe; -1: none), `fd`, `offset` (-1: none), `size`, `moved` (bytes), `flags`.
    """

    calls: pd.DataFrame
    pipes: list[Pipe]  # those whose messages could be matched
    tree: Tree
    thread_of: dict[int, int]  # index of the thread by tid
    made: pd.DataFrame  # all calls on files of these kinds, also those that cannot be replayed: op, file_id, result


def find_replayable(job: Job) -> Replayable:
    """Return the part of the trace that can be replayed. Raises IotwinError if the job made no call on storage."""
    made, calls = _calls(job)
    calls, pipes = match_pipes(calls)
    tree = grow(job, calls)
    thread_of = {tid: index for index, tid in enumerate(tree.tid)}
    calls = calls.assign(thread=calls["tid"].map(thread_of).astype(np.int32), subject=calls["file"])
    return Replayable(calls, pipes, tree, thread_of, made)


def _calls(job: Job) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return all calls on files, and those to record, in order of start. Waits for descriptors have the `op` POLL."""
    files, trace = job.files, job.trace
    paths = files["path"].astype(str)
    # The job's stdout and stderr are of kind log, too, but are no files of the job.
    own_output = (files["kind"] == "log") & paths.str.fullmatch(r".*/std(?:out|err)")
    on_storage = files["kind"].isin(_KINDS) & ~paths.str.startswith(_NOT_STORAGE) & ~own_output
    on_pipe = files["kind"] == "pipe"
    ids = files.loc[files["kind"].isin(_KINDS) | on_pipe, "file_id"].tolist()
    made = trace.events_frame(_COLUMNS, pc.field("file_id").isin(ids) | pc.field("op").isin(list(schema.WAIT_OPS)))
    is_chosen = np.append((on_storage | on_pipe).to_numpy(np.bool_), False)[made["file_id"].fillna(-1).to_numpy(np.int64)]
    chosen = made[(is_chosen | made["op"].isin(schema.WAIT_OPS)) & made["op"].isin(list(_OPS)) & (made["result"] >= 0)]
    made = made.loc[made["result"] >= 0, ["op", "file_id", "result"]]  # before the columns below, so that fewer are in memory
    calls = _rows(chosen, files)
    del chosen
    # Names that were only unlinked (of semaphores or sockets), and programs that exec mapped, do not count.
    used = np.zeros(len(files) + 1, np.bool_)
    used[calls.loc[calls["op"].isin([Op.OPEN, Op.READ, Op.WRITE, Op.COPY, Op.COPY_TO, Op.MAP]), "file"]] = True
    on_file = np.append(on_storage.to_numpy(np.bool_), False)[calls["file"]] & used[calls["file"]]
    if not on_file.any():
        raise IotwinError(f"{trace.path}: no call on a file of a storage device is in this trace: there is nothing to replay")
    is_pipe = np.append(on_pipe.to_numpy(np.bool_), False)[calls["file"]]
    calls.loc[is_pipe, "op"] = calls.loc[is_pipe, "op"].map(_of_pipe).astype(np.int8)
    moved = is_pipe & (calls["op"] >= 0) & (calls["moved"] > 0)
    kept = on_file | moved | (calls["op"] == POLL).to_numpy(np.bool_)
    return made, calls if kept.all() else calls[kept].reset_index(drop=True)


def _of_pipe(op: int) -> int:
    reads, writes = (Op.READ, Op.COPY), (Op.WRITE, Op.COPY_TO)
    return int(Op.PIPE_READ) if op in reads else int(Op.PIPE_WRITE) if op in writes else POLL - 1


def _rows(frame: pd.DataFrame, files: pd.DataFrame) -> pd.DataFrame:
    names = frame["op"].cat.categories.tolist()
    code = frame["op"].cat.codes.to_numpy()
    file = frame["file_id"].fillna(-1).to_numpy(np.int32)
    op = np.array([_OPS.get(name, POLL) for name in names], np.int8)[code]
    start, result = frame["start_ns"].to_numpy(np.int64), frame["result"].to_numpy(np.int64)
    requested = frame["requested"].fillna(frame["result"]).to_numpy(np.int64)
    copies, targets = (np.isin(names, [f"{name}{half}" for name in _COPIES])[code] for half in ("", "_to"))
    _mark_copies(op, copies, targets, file, frame["tid"].to_numpy(np.int32), start, files)
    # A read that requests gigabytes and finds less must not make the replay allocate them. Smaller requests keep their size.
    asked = np.where(requested <= _LARGE_BYTES, requested, np.minimum(requested, result + 4096))
    size = np.select(
        [op == Op.READ, np.isin(op, [Op.MAP, Op.TRUNCATE]), np.isin(op, [Op.OPEN, Op.CLOSE])], [asked, requested, 0], result
    )
    return pd.DataFrame({
        "at": start, "end": start + np.maximum(frame["duration_ns"].to_numpy(np.int64), 0), "op": op,
        "pid": frame["pid"].to_numpy(np.int32), "tid": frame["tid"].to_numpy(np.int32), "file": file,
        "fd": frame["fd"].to_numpy(np.int32), "offset": frame["offset"].fillna(-1).to_numpy(np.int64),
        "size": np.clip(size, 0, (1 << 31) - 1), "flags": frame["flags"].to_numpy(np.int32) & 31, "moved": result,
    }, copy=False)  # fmt: skip


def _mark_copies(
    op: NDArray[np.int8], copies: _Mask, targets: _Mask, file: NDArray[np.int32], tid: NDArray[np.int32], start: _Ints,
    files: pd.DataFrame,
) -> None:  # fmt: skip
    """Set `op` of the two rows of a call that copies between two recorded files to COPY and COPY_TO.

    `copies` and `targets`: True for rows that may be the first, and the second row of such a call.
    """
    is_pipe = np.append((files["kind"] == "pipe").to_numpy(np.bool_), True)[file]
    first = copies[:-1] & targets[1:] & (tid[:-1] == tid[1:])
    first &= (start[:-1] == start[1:]) & ~is_pipe[:-1] & ~is_pipe[1:]
    op[:-1][first], op[1:][first] = Op.COPY, Op.COPY_TO
