"""The calls of a trace that a recording keeps: those that succeeded, on files that storage holds and on pipes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyarrow import compute as pc

from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml.recording import Op

_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "tid", "file_id", "fd", "offset", "requested", "result", "flags")
_KINDS = ("dataset", "checkpoint", "other", "log")
_NOT_STORAGE = ("/dev/", "/proc/", "/sys/", "pipe:", "socket:", "anon_inode:", "/memfd:")
_LARGE_BYTES = 1 << 24
_COPIES = ("sendfile", "splice", "copy_file_range")
_Ints = NDArray[np.int64]
POLL = -1  # an operation to be resolved later: a wait for several descriptors

_OPS: dict[str, int] = {
    **dict.fromkeys(schema.OPEN_OPS, Op.OPEN), **dict.fromkeys(schema.READ_OPS, Op.READ),
    **dict.fromkeys(schema.WRITE_OPS, Op.WRITE), **dict.fromkeys(schema.CLOSE_OPS, Op.CLOSE),
    "fsync": Op.SYNC, "io_uring_fsync": Op.SYNC, "aio_fsync": Op.SYNC, "msync": Op.SYNC, "sync_file_range": Op.SYNC,
    "io_uring_sync_file_range": Op.SYNC, "fdatasync": Op.DATASYNC, "io_uring_fdatasync": Op.DATASYNC,
    "aio_fdatasync": Op.DATASYNC, "rename": Op.RENAME, "renameat": Op.RENAME, "renameat2": Op.RENAME,
    "unlink": Op.UNLINK, "unlinkat": Op.UNLINK, "mmap": Op.MAP, "munmap": Op.UNMAP, "ftruncate": Op.TRUNCATE,
    "truncate": Op.TRUNCATE, "page_fault": Op.TOUCH, **dict.fromkeys(schema.WAIT_OPS, POLL),
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """The calls to record. Columns of `calls`, in order of start: `at`, `end` (ns), `op` (Op, or POLL), `pid`, `tid`, `file`
    (file_id; -1: none), `fd`, `offset` (-1: none), `size`, `flags`.
    """

    trace: Trace
    files: pd.DataFrame
    processes: pd.DataFrame
    calls: pd.DataFrame


def see(trace: Trace) -> Seen:
    """Return the calls of the trace to record. Raises IotwinError if none is on storage."""
    files, processes = trace.files(), trace.processes()
    paths = files["path"].astype(str)
    # The job's stdout and stderr are logs, too, but none of its files.
    own_output = (files["kind"] == "log") & paths.str.fullmatch(r".*/std(?:out|err)")
    on_storage = files["kind"].isin(_KINDS) & ~paths.str.startswith(_NOT_STORAGE) & ~own_output
    on_pipe = files["kind"] == "pipe"
    ids = files.loc[on_storage | on_pipe, "file_id"].tolist()
    frame = trace.events_frame(_COLUMNS, pc.field("file_id").isin(ids) | pc.field("op").isin(list(schema.WAIT_OPS)))
    calls = _rows(frame, files)
    # A file that was only unlinked, such as a semaphore's or a socket's name, is none; nor is a program that exec mapped.
    used = np.zeros(len(files) + 1, np.bool_)
    used[calls.loc[calls["op"].isin([Op.OPEN, Op.READ, Op.WRITE, Op.COPY, Op.COPY_TO, Op.MAP]), "file"]] = True
    on_file = np.append(on_storage.to_numpy(np.bool_), False)[calls["file"]] & used[calls["file"]]
    if not on_file.any():
        raise IotwinError(f"{trace.path}: no call on a file of a storage device is in this trace: there is nothing to replay")
    is_pipe = np.append(on_pipe.to_numpy(np.bool_), False)[calls["file"]]
    calls.loc[is_pipe, "op"] = calls.loc[is_pipe, "op"].map(_of_pipe).fillna(POLL - 1).astype(np.int64)
    moved = is_pipe & (calls["op"] >= 0) & (calls["moved"] > 0)
    kept = on_file | moved | (calls["op"] == POLL).to_numpy(np.bool_)
    return Seen(trace, files, processes, calls[kept].reset_index(drop=True))


def _of_pipe(op: int) -> int:
    reads, writes = (Op.READ, Op.COPY), (Op.WRITE, Op.COPY_TO)
    return int(Op.PIPE_READ) if op in reads else int(Op.PIPE_WRITE) if op in writes else POLL - 1


def _rows(frame: pd.DataFrame, files: pd.DataFrame) -> pd.DataFrame:
    names = frame["op"].astype(str)
    frame = frame[names.isin(list(_OPS)) & (frame["result"] >= 0)]
    names = frame["op"].astype(str)
    file = frame["file_id"].fillna(-1).to_numpy(np.int64)
    op = np.array(names.map(_OPS), np.int64)
    start, result = frame["start_ns"].to_numpy(np.int64), frame["result"].to_numpy(np.int64)
    requested = frame["requested"].fillna(frame["result"]).to_numpy(np.int64)
    _tell_copies(op, names.to_numpy(), file, frame["tid"].to_numpy(np.int64), start, files)
    # A read that asks for gigabytes and finds less must not cost them; smaller ones are asked for as they were.
    asked = np.where(requested <= _LARGE_BYTES, requested, np.minimum(requested, result + 4096))
    size = np.select(
        [op == Op.READ, np.isin(op, [Op.MAP, Op.TRUNCATE]), np.isin(op, [Op.OPEN, Op.CLOSE])], [asked, requested, 0], result
    )
    return pd.DataFrame({
        "at": start, "end": start + np.maximum(frame["duration_ns"].to_numpy(np.int64), 0), "op": op,
        "pid": frame["pid"].to_numpy(np.int64), "tid": frame["tid"].to_numpy(np.int64), "file": file,
        "fd": frame["fd"].to_numpy(np.int64), "offset": frame["offset"].fillna(-1).to_numpy(np.int64),
        "size": np.clip(size, 0, (1 << 31) - 1), "flags": frame["flags"].to_numpy(np.int64) & 31, "moved": result,
    })  # fmt: skip


def _tell_copies(op: _Ints, names: NDArray[Any], file: _Ints, tid: _Ints, start: _Ints, files: pd.DataFrame) -> None:
    """Set `op` of the two rows of a call that copies between two recorded files to COPY and COPY_TO."""
    is_pipe = np.append((files["kind"] == "pipe").to_numpy(np.bool_), True)[file]
    first = np.isin(names[:-1], _COPIES) & np.isin(names[1:], [f"{name}_to" for name in _COPIES]) & (tid[:-1] == tid[1:])
    first &= (start[:-1] == start[1:]) & ~is_pipe[:-1] & ~is_pipe[1:]
    op[:-1][first], op[1:][first] = Op.COPY, Op.COPY_TO
