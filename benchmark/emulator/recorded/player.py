"""Replay one thread of a recording: its rows one after another, each at its recorded time after the end of the previous one.

A replay is a closed loop: calls take as long as they take here, and the thread sleeps for the job's time between them. A read
from a pipe waits for the bytes that another thread writes, as in the job.
"""

import ctypes
import mmap
import os
import queue
import select
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Protocol, cast

import numpy as np

from iotwin.benchmark.emulator.recorded.files import JobFiles
from iotwin.benchmark.emulator.recorded.open_files import Descriptors, Maps
from iotwin.benchmark.emulator.recorded.shared_state import (
    BUCKETS,
    DONE,
    ENDED_NS,
    FIRST_PIPE,
    LET_GO,
    READ_BYTES,
    READ_NS,
    ROWS,
    RUNNING,
    STATE,
    STOPPED,
    WAITED_NS,
    WAITING,
    WRITTEN_BYTES,
    Board,
    Shared,
)
from iotwin.benchmark.emulator.recorded.slow_reads import read_slowly, repeated
from iotwin.common.direct_io import write_direct
from iotwin.trace_store.schema import FLAG_DIRECT
from iotwin.workload_yaml.recording import CALLS, DUPLICATED, RENAMED, Op, RecordedFile, TwinRecording

_CHUNK = 4096  # rows that are converted to Python numbers at a time
_BLOCK_BYTES = 1 << 22
# From this size on, malloc maps new memory, as the job's reads did; see mallopt(3), M_MMAP_THRESHOLD.
_FRESH_BYTES = 1 << 17
_TICK_S = 0.5
_NEXT_LOOK_S = 0.0002  # seconds between two checks of whether the other ranks have arrived
_EMPTY_CALLS = 101  # calls that are timed to find the cost of one
_LIBC = ctypes.CDLL(None)
_NO_WORK = _LIBC.getppid  # the kernel only returns a number; arguments are ignored
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC  # those of JobFiles.open
_INSTANT = frozenset({Op.POST, Op.START, Op.THREAD, Op.MARK, Op.END, Op.STEP})
_WAITS = frozenset({Op.WAIT, Op.JOIN})
_FIRST_PIPE_OP = int(Op.PIPE_WRITE)  # operations with a smaller number are calls on files


class Home(Protocol):
    """The interface of a thread's process."""

    number: int
    shared: Shared
    files: JobFiles
    fds: Descriptors
    maps: list[Maps]
    channels: list[queue.SimpleQueue[int]]

    def start(self, number: int, begin_ns: int) -> None:
        """Fork a process that replays the recording's process `number`.

        Its first row is timed from `begin_ns` (CLOCK_MONOTONIC).
        """

    def join(self, number: int, waiting: int) -> int:
        """Let the thread `waiting` wait for the end of the process `number`. Return when this end was due."""

    def start_thread(self, thread: int, begin_ns: int) -> None:
        """Start a thread that replays the recording's `thread`. Its first row is timed from `begin_ns` (CLOCK_MONOTONIC)."""

    def wait(self, channel: int, tick_s: float) -> int:
        """Wait for a post on a channel, and return when the post was due."""


class Player:
    """Replays one thread in its process. The time of the first row is counted from `begin_ns` (CLOCK_MONOTONIC)."""

    longest_delay_ns = 50_000_000  # longer delays do not shorten later sleeps; forking a process takes some milliseconds
    now_ns: Callable[[], int] = staticmethod(time.monotonic_ns)
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(self, process: Home, thread: int, begin_ns: int) -> None:
        self._process, self._thread = process, thread
        self._board = process.shared.board.of(thread)
        self._begin_ns = self._due_ns = begin_ns
        self._fds, self._files, self._latency_s = process.fds, process.files, process.shared.read_latency_s
        self._maps = Maps(process.fds, process.maps)
        self._noise = memoryview(process.shared.noise)
        self._scratch = memoryview(mmap.mmap(-1, _FRESH_BYTES))
        self._from: tuple[int, int] = -1, -1  # descriptor and offset of a copy
        self._spent_ns = [0] * len(Op)  # time of the thread's rows so far, by operation
        does: dict[Op, Callable[[int, int, int, int, int], int]] = {
            Op.OPEN: self._open, Op.READ: self._read, Op.WRITE: self._write, Op.SYNC: self._sync, Op.DATASYNC: self._datasync,
            Op.CLOSE: self._close, Op.RENAME: self._rename, Op.UNLINK: self._unlink, Op.MAP: self._maps.map,
            Op.TOUCH: self._maps.touch, Op.UNMAP: self._maps.unmap, Op.COPY: self._copy, Op.COPY_TO: self._copy_to,
            Op.TRUNCATE: self._truncate, Op.PIPE_WRITE: self._pipe_write, Op.PIPE_READ: self._pipe_read, Op.POLL: self._poll,
            Op.POST: self._post, Op.WAIT: self._wait, Op.START: self._start, Op.JOIN: self._join, Op.THREAD: self._start_thread,
            Op.MARK: self._mark, Op.END: self._end, Op.MEET: self._meet, Op.STEP: self._step,
        }  # fmt: skip
        self._does = [does[op] for op in Op]

    def play(self) -> None:
        """Replay the thread to its end, or until the board stops all threads.

        `due` is when the job would have begun a row. If a row begins late, the next sleeps are shorter. A call takes the measured
        time minus the time that the player itself needs for a call: the job's own such time is in its recorded time between
        calls. The thread writes its counts to the board at the end. Before each row that may block for long, it writes the number
        of rows.
        """
        shared, board, does = self._process.shared, self._board, self._does
        word, deadline_ns, longest_ns = shared.board.word, shared.deadline_ns, self.longest_delay_ns
        now_ns, sleep, own_ns = self.now_ns, self.sleep, shared.own_costs_ns
        counts, late, moved_bytes, spent_ns = [0] * len(Op), [0] * BUCKETS, [0] * len(Op), self._spent_ns
        logical = self._begin_ns
        board[STATE] = RUNNING
        for done, (think, op, subject, fd, offset, size, flags) in enumerate(self._rows()):
            due = logical + think
            if due >= deadline_ns or word[0]:
                word[0] = word[0] or STOPPED
                break
            begun = now_ns()
            if due > begun:
                sleep((due - begun) / 1e9)
                begun = now_ns()
            elif begun - due > longest_ns and done:
                due = begun - longest_ns
            if op >= _FIRST_PIPE_OP:
                self._due_ns, board[ROWS] = due, done
            moved = does[op](subject, fd, offset, size, flags)
            ended = now_ns()
            counts[op] += 1
            if op < _FIRST_PIPE_OP:
                took = ended - begun - own_ns[op]
                logical = due + took if took > 0 else due
                moved_bytes[op] += moved
            else:
                logical = self._after(op, due, begun, ended, moved)
            spent_ns[op] += logical - due
            if op < CALLS:
                late[(begun - due).bit_length()] += 1
        Board.record(board, counts[:CALLS], late)
        board[READ_BYTES] = moved_bytes[Op.READ] + moved_bytes[Op.COPY_TO]
        board[WRITTEN_BYTES] = moved_bytes[Op.WRITE] + moved_bytes[Op.COPY_TO]
        board[WAITED_NS] = spent_ns[Op.PIPE_READ] + spent_ns[Op.POLL]
        board[READ_NS] = spent_ns[Op.READ] + spent_ns[Op.COPY] + spent_ns[Op.TOUCH]
        board[ENDED_NS] = logical
        board[STATE] = DONE

    def _after(self, op: int, due: int, begun: int, ended: int, moved: int) -> int:
        """Return when the job would have ended a hand-over between threads that was due at `due` and ran from `begun` to `ended`.

        `moved`: the result of the row. If the operation waits for an event, this is when the event was due.
        """
        if op in _WAITS:
            return max(due, moved, ended - self.longest_delay_ns)
        if op in _INSTANT:
            return due  # its duration is overhead of the replay
        return ended - max(0, begun - due - (ended - begun))  # the wait absorbs the row's delay, as far as it is long enough

    def _rows(self) -> Iterator[tuple[int, ...]]:
        """Yield the thread's rows as (think_ns, op, subject, fd, offset, size, flags), with scaled times."""
        scale = self._process.shared.think_scale
        recording: TwinRecording = self._process.shared.recording
        first, end = self._process.shared.bounds[self._thread : self._thread + 2].tolist()
        names = ("think_ns", "op", "subject", "fd", "offset", "size", "flags")
        for begin in range(first, end, _CHUNK):
            part = slice(begin, min(begin + _CHUNK, end))
            columns = [recording.columns[name][part] for name in names]
            columns[0] = (columns[0] * scale).astype(np.int64)
            yield from zip(*(column.tolist() for column in columns), strict=True)

    def _open(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        ours = self._files.open(file, bool(flags & RENAMED), flags)
        self._fds.opened(fd, file, ours, bool(flags & DUPLICATED))
        return 0

    def _read(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        actual, latency_s = self._fds.of(fd, file, flags), self._latency_s
        if latency_s:
            return read_slowly(actual, size, offset, self._scratch, partial(self.sleep, latency_s))
        if flags & FLAG_DIRECT:  # into whole pages, as O_DIRECT requires
            buffers = repeated(size, self._scratch)
        elif size >= _FRESH_BYTES and offset >= 0:
            return len(os.pread(actual, size, offset))
        else:
            buffers = [self._scratch[:size]]
        return os.preadv(actual, buffers, offset) if offset >= 0 else os.readv(actual, buffers)

    def _write(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        actual = self._process.fds.of(fd, file, flags)
        if size <= _BLOCK_BYTES:
            buffers = [self._noise[:size]]
        else:
            buffers = [self._noise] * (size // _BLOCK_BYTES) + [self._noise[: size % _BLOCK_BYTES]]
        written, _ = write_direct(actual, bool(flags & FLAG_DIRECT), partial(_write_once, actual, buffers, offset))
        return written

    def _sync(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        os.fsync(self._process.fds.of(fd, file, flags))
        return 0

    def _datasync(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        os.fdatasync(self._process.fds.of(fd, file, flags))
        return 0

    def _close(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        os.close(self._fds.closed(fd, file, flags))
        return 0

    def _rename(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._process.files.rename(file, bool(flags & RENAMED))
        return 0

    def _unlink(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._process.files.unlink(file, bool(flags & RENAMED))
        return 0

    def _truncate(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        os.ftruncate(self._process.fds.of(fd, file, flags), size)
        return 0

    def _copy(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._from = self._process.fds.of(fd, file, flags), offset
        return 0

    def _copy_to(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        source, begin = self._from
        target = self._process.fds.of(fd, file, flags)
        return os.copy_file_range(source, target, size, None if begin < 0 else begin, None if offset < 0 else offset)

    def _pipe_write(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        end, word = self._process.shared.pipes.ends[pipe][1], self._process.shared.board.word
        self._board[LET_GO] = 0
        self._board[STATE] = -1 - pipe
        while size > 0 and not word[0] and not self._board[LET_GO]:
            size -= os.write(end, self._noise[:size])
        self._board[STATE] = RUNNING
        return 0

    def _pipe_read(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        end, word = self._process.shared.pipes.ends[pipe][0], self._process.shared.board.word
        self._board[LET_GO] = 0
        self._board[STATE] = FIRST_PIPE + pipe
        while size > 0 and not word[0] and not self._board[LET_GO]:
            size -= len(os.read(end, size))
        self._board[STATE] = RUNNING
        return 0

    def _poll(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        poll = select.poll()
        poll.register(self._process.shared.pipes.ends[pipe][0], select.POLLIN)
        self._board[STATE] = FIRST_PIPE + pipe
        poll.poll()
        self._board[STATE] = RUNNING
        return 0

    def _post(self, channel: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._process.channels[channel].put(self._due_ns)
        return 0

    def _wait(self, channel: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._board[STATE] = WAITING
        posted_ns = self._process.wait(channel, _TICK_S)
        self._board[STATE] = RUNNING
        return posted_ns

    def _start(self, number: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._process.start(number, self._due_ns)
        return 0

    def _join(self, number: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._board[STATE] = WAITING
        # The due time counts, not the time at which the process really ended, which includes overhead of the replay.
        ended_ns = self._process.join(number, self._thread)
        self._board[STATE] = RUNNING
        return ended_ns

    def _start_thread(self, thread: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._process.start_thread(thread, self._due_ns)
        return 0

    def _mark(self, mark: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._process.shared.log_mark(mark)
        return 0

    def _meet(self, subject: int, fd: int, offset: int, size: int, flags: int) -> int:
        word, all_arrived = self._process.shared.board.word, self._process.shared.arrive()
        self._board[STATE] = WAITING
        while not word[0] and not all_arrived():
            time.sleep(_NEXT_LOOK_S)
        self._board[STATE] = RUNNING
        return 0

    def _step(self, subject: int, fd: int, offset: int, size: int, flags: int) -> int:
        self._process.shared.points.record(flags, self._due_ns, self._spent_ns)
        return 0

    def _end(self, subject: int, fd: int, offset: int, size: int, flags: int) -> int:
        return 0


def _write_once(descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
    return os.pwritev(descriptor, parts, offset) if offset >= 0 else os.writev(descriptor, parts)


def own_costs_ns(now_ns: Callable[[], int]) -> list[int]:
    """Return the median time in ns, on the clock `now_ns`, that a player itself spends on a call of each Op.

    The calls are made on /dev/null. A read of no bytes takes only the player's own time. From an open and a close, the kernel's
    time is subtracted: how much longer they take than a system call that only returns a number. Other operations count as a read.
    """
    player = _player_on_null()
    does = player._does
    timed_ops = {Op.OPEN: does[Op.OPEN], Op.READ: does[Op.READ], Op.CLOSE: does[Op.CLOSE]}
    whole, kernel = {op: list[int]() for op in timed_ops}, {Op.OPEN: list[int](), Op.CLOSE: list[int]()}

    def timed(call: Callable[..., int], *arguments: object) -> tuple[int, int]:
        begun = now_ns()
        result = call(*arguments)
        return now_ns() - begun, result

    folder = os.open("/dev", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(_EMPTY_CALLS):
            for op, call in timed_ops.items():
                whole[op].append(timed(call, 0, 0, 0, 0, 0)[0])
            nothing_ns, _ = timed(_NO_WORK, folder, b"null", _OPEN_FLAGS)
            took_ns, descriptor = timed(_LIBC.openat, folder, b"null", _OPEN_FLAGS)
            kernel[Op.OPEN].append(took_ns - nothing_ns)
            nothing_ns, _ = timed(_NO_WORK, descriptor)
            kernel[Op.CLOSE].append(timed(_LIBC.close, descriptor)[0] - nothing_ns)
    finally:
        os.close(folder)
        player._process.files.close()
    costs = [int(median(whole[Op.READ]))] * len(Op)
    for op, taken in kernel.items():
        costs[op] = max(int(median(whole[op]) - median(taken)), 0)
    return costs


def _player_on_null() -> Player:
    """Return a player whose only file is /dev/null."""
    files = JobFiles([RecordedFile("null")], Path("/dev"), Path("/dev"), 1, Path("/dev"))
    fds = Descriptors(lambda file, flags: files.open(file, False, flags))
    shared = SimpleNamespace(board=Board(1), read_latency_s=0.0, noise=bytearray(1))
    return Player(cast(Home, SimpleNamespace(shared=shared, files=files, fds=fds, maps=[])), 0, 0)
