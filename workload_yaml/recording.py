"""Recordings: files with every thread's storage calls and waits in a traced job. `fit` writes them, the emulator replays them.

A recording is a Parquet table of calls, sorted by thread. Its metadata list the threads, processes, files, pipes and phases as
JSON, and the calls refer to their indices. As a recording may be a stranger's, `read_recording` checks all numbers and names.
"""

from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_whole
from iotwin.common.paths_below import stays_within
from iotwin.common.untrusted_files import decode_foreign, open_foreign
from iotwin.trace_store.columns import numbers

SUFFIX = ".recording"
_KEY = b"iotwin.recording"
_NUMBERS = ("at_ns", "think_ns")  # columns without dictionary encoding, since their values hardly repeat
MOST_ROWS, _MOST_FILES, _MOST_THREADS, _LARGEST_HEADER_BYTES = 200_000_000, 4_000_000, 100_000, 256 << 20
_MOST_PASSES = 1 << 30
_MOST_BYTES, _LONGEST_NS, _FARTHEST = 1 << 31, 1 << 54, 1 << 54  # limits: bytes of one call, a time (half a year), a file offset


class Op(IntEnum):
    """Operation of a row. The row's `subject` is the index of a file for OPEN to TRUNCATE, and of a pipe for PIPE_WRITE to POLL.

    It is the index of a channel for POST and WAIT, a process for START and JOIN, a thread for THREAD, and a mark for MARK.
    """

    OPEN = 0
    READ = 1
    WRITE = 2
    SYNC = 3
    DATASYNC = 4
    CLOSE = 5
    RENAME = 6  # renames a file to its last name
    UNLINK = 7
    MAP = 8  # `size` bytes from `offset`
    TOUCH = 9  # a page of a mapped file
    UNMAP = 10
    COPY = 11  # the next row, COPY_TO, has the target
    COPY_TO = 12
    TRUNCATE = 13
    PIPE_WRITE = 14
    PIPE_READ = 15  # reads from a pipe, and waits for the bytes
    POLL = 16  # waits until a pipe has something to read
    POST = 17  # puts a token into a channel between two threads of a process
    WAIT = 18  # waits for a token in a channel
    START = 19  # starts a process
    JOIN = 20  # waits for a process to end
    THREAD = 21  # starts a thread
    MARK = 22  # logs that a phase begins or ends
    END = 23  # the process or thread ends; no call is replayed, but its time is
    MEET = 24  # waits for the other ranks, as an all-reduce does
    STEP = 25  # in edited recordings: the player records when it gets here (benchmark.emulator.recorded.step_points)


CALLS = 17  # operations with a smaller number are system calls on files and pipes
# Flags besides FLAG_* of iotwin.trace_store.schema: the file already has its last name; the job duplicated its descriptor.
RENAMED, DUPLICATED = 1 << 8, 1 << 9
COLUMNS = {
    "thread": np.int32,
    "at_ns": np.int64,  # since the start of the job: when a wait ended, or when another operation began
    "think_ns": np.int64,  # time since the end of the thread's previous row
    "op": np.uint8,
    "subject": np.int32,
    "fd": np.int32,  # the job's file descriptor; -1: none
    "offset": np.int64,  # -1: none
    "size": np.int64,
    "flags": np.int32,
}


# More columns of a recording with batches: the Label of a call on a file, the index of the batch in Header.batches that it
# served, and the index of the sample within that batch; -1: none, or unknown.
LABELS = {"label": np.int8, "batch": np.int32, "sample": np.int32}


class Label(IntEnum):
    """Whether a recorded call belongs to a batch or a sample, and so how an edit moves the call."""

    TIMED = 0  # the call belongs to no known batch: it is replayed at its recorded time
    STREAMED = 1  # the call reads ahead of the batches: it is replayed when the samples before it are consumed
    DEALT = 2  # the call reads a sample of a batch: it moves with the sample, to whichever rank and batch gets that sample


class RecordedFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file that the job read or wrote."""

    name: str
    renamed_to: str | None = None
    size_bytes: int = 0  # when the job began
    written: bool = False  # True: the job wrote the file, which is in the output folder; False: it is in the data folder
    made: bool = False  # True: the job created the file; False: the file existed when the job began
    checkpoint: bool = False  # the file belongs to a checkpoint; recordings of earlier versions do not have this


class Pipe(msgspec.Struct, forbid_unknown_fields=True):
    """A pipe between threads. `messages`: the pipe has several readers or writers, so messages are counted instead of bytes."""

    messages: bool = False


class Mark(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the job's log: the begin or end of a phase."""

    key: str
    begins: bool
    epoch: int | None = None
    step: int | None = None


class RecordedPass(msgspec.Struct, forbid_unknown_fields=True):
    """One pass of a rank over samples: an epoch of training, or an evaluation."""

    process: int  # the rank, which takes the batches
    training: bool
    batches: int  # number of batches
    depth: int  # most batches that were requested and not yet taken; 0: the rank reads its batches itself


class RecordedBatches(msgspec.Struct, forbid_unknown_fields=True):
    """The batches of all passes, pass after pass in the order of the requests. Times are on the clock of `at_ns`."""

    passes: list[RecordedPass]
    loader: list[int]  # the process that read the batch: a loader, or the rank itself
    samples: list[int]  # 0: unknown
    requested_ns: list[int]  # when the rank requested the batch
    received_ns: list[int]  # when the loader received the request
    delivered_ns: list[int]
    taken_ns: list[int]  # when the rank began to compute on the batch
    computed_ns: list[int]  # when that computation ended, and the rank wanted the next batch
    usual_samples: int = 1  # the YAML's batch size if samples are unknown; 1: the recording is older


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """The metadata of a recording: lists whose items the rows refer to by index."""

    version: int
    files: list[RecordedFile]
    pipes: list[Pipe]
    channels: int
    parents: list[int]  # index of each process's parent process; -1 for the first
    threads: list[int]  # index of each thread's process; the first thread of a process is its main thread
    marks: list[Mark]
    batches: RecordedBatches | None = None  # None: the recording has no labels, and no edit can be made
    ranks: int = 0  # the YAML's twin.ranks; 0: the recording is older, and its YAML does not give them
    # How much longer tracing made a read or write, and another call, in ns; 0: not measured. `think_ns` includes this time.
    transfer_ns: int = 0
    call_ns: int = 0


@dataclass(frozen=True)
class TwinRecording:
    """A recording: its header, and its rows as one array per column. Rows are sorted by thread, then by time.

    The columns are those of COLUMNS, and those of LABELS if the header has batches.
    """

    header: Header
    columns: dict[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns["op"])

    @property
    def batches(self) -> RecordedBatches:
        """Return the batches of the header. Raises IotwinError if there are none."""
        if self.header.batches is None:
            raise IotwinError("the recording has no batches, so that no edit can deal samples anew")
        return self.header.batches

    def starts(self) -> NDArray[np.int64]:
        """Return the index of each thread's first row, and last the number of rows."""
        found: NDArray[np.int64] = np.searchsorted(self.columns["thread"], np.arange(len(self.header.threads) + 1)).astype(
            np.int64
        )
        return found

    def where(self, kept: NDArray[np.bool_]) -> "TwinRecording":
        """Return a recording of the rows at which the mask `kept` is True."""
        return TwinRecording(self.header, {name: column[kept] for name, column in self.columns.items()})


def write_recording(recording: TwinRecording, path: Path) -> None:
    """Write `recording` to `path`, whole or not at all. Raises IotwinError if the write fails."""
    kinds = _kinds(recording.header)
    schema = pa.schema([(name, pa.from_numpy_dtype(kind)) for name, kind in kinds.items()])
    table = pa.table([recording.columns[name] for name in kinds], schema=schema)
    options = {
        "compression": "zstd", "write_page_checksum": True, "store_schema": False,  # which would hold the header once more
        "use_dictionary": [name for name in kinds if name not in _NUMBERS], "column_encoding": {"at_ns": "DELTA_BINARY_PACKED"},
    }  # fmt: skip
    with open_whole(path) as file, pq.ParquetWriter(file, schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_KEY: msgspec.json.encode(recording.header)})


def read_recording(path: Path) -> TwinRecording:
    """Return the recording at `path`. Raises IotwinError, in one line, if the file is missing or damaged."""
    try:
        with open_foreign(path) as file, pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            header = _header(parquet, path)
            # Threads of Arrow that read through a file of Python may outlive the interpreter, which then aborts at its exit.
            table = parquet.read(list(_kinds(header)), use_threads=False)
    except FileNotFoundError:
        raise IotwinError(f"{path}: the recording of this twin is not there; copy it next to the YAML") from None
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise IotwinError(f"{path}: is not a whole recording ({reason}); fit the trace again") from None
    for name in table.column_names:
        if table[name].null_count:
            raise _damaged(path, f"{name} has gaps")
    recording = TwinRecording(header, {name: numbers(table[name]) for name in table.column_names})
    if problem := _problem(recording):
        raise _damaged(path, problem)
    return recording


def _kinds(header: Header) -> dict[str, Any]:
    """Return the types of the columns of a recording with this header, by column name."""
    return {**COLUMNS} if header.batches is None else {**COLUMNS, **LABELS}


def _header(parquet: pq.ParquetFile, path: Path) -> Header:
    content = (parquet.metadata.metadata or {}).get(_KEY, b"")
    if not content or len(content) > _LARGEST_HEADER_BYTES or parquet.metadata.num_rows > MOST_ROWS:
        raise _damaged(path, "no recording, or larger than any of ours")
    try:
        header = decode_foreign(content, Header, "its header")
    except IotwinError as error:
        raise _damaged(path, str(error)[:200]) from None
    for name, kind in _kinds(header).items():
        if name not in parquet.schema_arrow.names or parquet.schema_arrow.field(name).type != pa.from_numpy_dtype(kind):
            raise _damaged(path, f"no column {name} of {np.dtype(kind).name}")
    if header.version != 1:
        raise _damaged(path, f"version {header.version}, of a newer iotwin")
    return header


def _damaged(path: Path, problem: str) -> IotwinError:
    return IotwinError(f"{path}: is no sound recording: {problem}; fit the trace again")


def _problem(recording: TwinRecording) -> str | None:
    """Return what is wrong with the recording, None if it is valid."""
    header = recording.header
    for file in header.files:
        for name in (file.name, file.renamed_to):
            if name is not None and not stays_within(name):
                return f"the name {name!r} leads out of its folder"
        if not 0 <= file.size_bytes <= _FARTHEST:
            return f"{file.name!r} has {file.size_bytes} bytes"
    if not 0 <= header.transfer_ns <= _LONGEST_NS or not 0 <= header.call_ns <= _LONGEST_NS:
        return "a time of tracing out of bounds"
    if len(header.files) > _MOST_FILES or max(len(header.threads), len(header.pipes), header.channels) > _MOST_THREADS:
        return "more files, threads or pipes than any of ours"
    return _tree_problem(header) or _rows_problem(recording) or _batches_problem(recording)


def _tree_problem(header: Header) -> str | None:
    parents, threads = np.array(header.parents, np.int64), np.array(header.threads, np.int64)
    if not len(parents) or parents[0] != -1 or ((parents < 0) | (parents >= np.arange(len(parents))))[1:].any():
        return "processes without a parent"
    if (np.diff(threads) < 0).any() or set(header.threads) != set(range(len(parents))):
        return "threads that belong to no process, or processes without one"
    return None


def _rows_problem(recording: TwinRecording) -> str | None:
    header, rows = recording.header, recording.columns
    op, subject, thread = rows["op"], rows["subject"], rows["thread"]
    bounds = {"thread": len(header.threads), "op": len(Op), "think_ns": _LONGEST_NS, "size": _MOST_BYTES}
    for name, bound in bounds.items():
        if ((rows[name] < 0) | (rows[name] >= bound)).any():
            return f"{name} out of bounds"
    if ((rows["offset"] < -1) | (rows["offset"] > _FARTHEST)).any() or (np.diff(thread) < 0).any():
        return "offset or order of threads out of bounds"
    limits = np.zeros(len(Op), np.int64)
    limits[: Op.PIPE_WRITE] = len(header.files)
    limits[Op.PIPE_WRITE : Op.POST] = len(header.pipes)
    limits[[Op.POST, Op.WAIT]] = header.channels
    limits[[Op.START, Op.JOIN]] = len(header.parents)
    limits[Op.STEP] = _MOST_PASSES
    limits[Op.THREAD], limits[Op.MARK], limits[[Op.END, Op.MEET]] = len(header.threads), len(header.marks), 1
    if ((subject < 0) | (subject >= limits[op])).any():
        return "a row names what is not there"
    processes, parents = np.array(header.threads, np.int64), np.array(header.parents, np.int64)
    started, begun = op == Op.START, op == Op.THREAD
    if len(np.unique(subject[started])) < started.sum() or len(np.unique(subject[begun])) < begun.sum():
        return "a process or a thread starts twice"
    if (parents[subject[started]] != processes[thread[started]]).any():
        return "a process is started by another than its parent"
    mains = np.searchsorted(processes, np.arange(len(parents)))
    if (processes[subject[begun]] != processes[thread[begun]]).any() or np.isin(subject[begun], mains).any():
        return "a thread is started by another process than its own"
    return None


def _batches_problem(recording: TwinRecording) -> str | None:
    batches, processes = recording.header.batches, len(recording.header.parents)
    if batches is None:
        return None
    count = len(batches.loader)
    times = (batches.requested_ns, batches.received_ns, batches.delivered_ns, batches.taken_ns, batches.computed_ns)
    if any(len(each) != count for each in (batches.samples, *times)) or sum(each.batches for each in batches.passes) != count:
        return "batches without a pass, a loader or a time"
    if any(each.batches < 1 or not 0 <= each.depth <= count for each in batches.passes):
        return "a pass without batches"
    if any(not 0 <= process < processes for process in (*batches.loader, *(each.process for each in batches.passes))):
        return "a batch of a process that is not there"
    if any(not 0 <= value <= _LONGEST_NS for value in chain(batches.samples, *times)):
        return "a time of a batch, or its samples, out of bounds"
    if not any(each.training for each in batches.passes):
        return "passes that do not train"
    rows = recording.columns
    if not np.isin(rows["label"], list(Label)).all() or ((rows["batch"] < -1) | (rows["batch"] >= count)).any():
        return "a label that is none"
    return None
