"""State that the processes of a replay share: pipes, and a board on which each thread records its position and its calls."""

import mmap
import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.files import JobFiles
from iotwin.benchmark.emulator.recorded.step_points import StepPoints
from iotwin.benchmark.emulator.recorded.thread_slots import VirtualReplay
from iotwin.common.mllog import MlLog
from iotwin.workload_yaml.recording import CALLS, Header, TwinRecording

BUCKETS = 64  # number of buckets of delays in ns: one for 0, then one for each octave (trace_store.figures.log_buckets)
# Other states: -1 - pipe if the thread waits to write to a pipe, FIRST_PIPE + pipe if it waits to read from one.
RUNNING, DONE, WAITING = 1, 2, 3
FIRST_PIPE = 16
# Columns of a thread's row. ENDED_NS: when the thread's end was due; LET_GO: not 0 if it must not wait for its pipe any more.
# WAITED_NS, READ_NS: time in reads and polls of pipes, and in reads of files.
STATE, ROWS, READ_BYTES, WRITTEN_BYTES, ENDED_NS, LET_GO, WAITED_NS, READ_NS, COUNTS = range(9)
_HISTOGRAM = COUNTS + CALLS
_WIDTH = _HISTOGRAM + BUCKETS
GO_ON, STOPPED, FAILED = 0, 1, 2
_DRAINED_BYTES, _NEXT_WRITE_MS, _LONGEST_DRAIN_S = 1 << 16, 20, 0.5


class Board:
    """Memory that forked processes share: a row of numbers for each thread, and one word for all."""

    def __init__(self, threads: int) -> None:
        memory = mmap.mmap(-1, (1 + threads * _WIDTH) * 8)
        self._cells = memoryview(memory).cast("q")
        self._rows = np.frombuffer(memory, np.int64)[1:].reshape(threads, _WIDTH)

    def of(self, thread: int) -> memoryview:
        """Return the row of a thread. Other threads write only its LET_GO."""
        begin = 1 + thread * _WIDTH
        return self._cells[begin : begin + _WIDTH]

    @property
    def word(self) -> memoryview:
        """Return the cell with GO_ON, STOPPED or FAILED, which all processes read."""
        return self._cells[:1]

    def states(self) -> NDArray[np.int64]:
        """Return a copy of (state, rows done) of every thread, shape (threads, 2)."""
        return self._rows[:, :2].copy()

    def totals(self) -> NDArray[np.int64]:
        """Return the sum over threads of each column, shape (columns,)."""
        total: NDArray[np.int64] = self._rows.sum(axis=0)
        return total

    def column(self, column: int, threads: Sequence[int]) -> int:
        """Return the sum of a column over `threads`."""
        return int(self._rows[list(threads), column].sum())

    @staticmethod
    def histogram(totals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of calls by bucket of delay, from the result of `totals`."""
        part: NDArray[np.int64] = totals[_HISTOGRAM:]
        return part

    @staticmethod
    def record(row: memoryview, counts: list[int], late: list[int]) -> None:
        """Write a thread's numbers of calls, by operation and by bucket of delay, into its row."""
        for column, value in enumerate(counts + late, COUNTS):
            row[column] = value


class Pipes:
    """The pipes of a recording: (read end, write end) of each, inherited by all processes.

    If time is virtual, writes do not block, since the clock must know who waits.
    """

    def __init__(self, header: Header, is_virtual: bool = False) -> None:
        self.ends = [os.pipe() for _ in header.pipes]
        if is_virtual:
            for _, write_end in self.ends:
                os.set_blocking(write_end, False)
        self.in_messages = [pipe.messages for pipe in header.pipes]

    def free_one(self, state: int) -> None:
        """Release a thread that waits for the pipe in its `state`: write a byte for a reader, or drain the pipe for a writer.

        One write may fill the pipe several times, so the drain continues while bytes arrive, for at most _LONGEST_DRAIN_S.
        """
        if state >= 0:
            os.write(self.ends[state - FIRST_PIPE][1], b"\0")
            return
        read_end = self.ends[-1 - state][0]
        poll, deadline = select.poll(), time.monotonic() + _LONGEST_DRAIN_S
        poll.register(read_end, select.POLLIN)
        while time.monotonic() < deadline and poll.poll(_NEXT_WRITE_MS):
            os.set_blocking(read_end, False)
            try:
                os.read(read_end, _DRAINED_BYTES)
            except BlockingIOError:  # a thread of the recording has read the bytes
                return
            finally:
                os.set_blocking(read_end, True)

    def close(self) -> None:
        """Close both ends of all pipes."""
        for ends in self.ends:
            for end in ends:
                os.close(end)


@dataclass
class Shared:
    """State that all processes of a replay inherit when they are forked."""

    recording: TwinRecording
    bounds: NDArray[np.int64]  # index of the first row of each thread, then the number of rows
    board: Board
    points: StepPoints
    pipes: Pipes
    files: JobFiles
    log: MlLog
    noise: mmap.mmap  # the bytes that replayed writes write
    think_scale: float
    read_latency_s: float
    deadline_ns: int
    failures: tuple[int, int]  # ends of a pipe for error messages
    virtual: VirtualReplay | None  # None: time is real
    own_costs_ns: list[int]  # by Op: time that a player itself spends on a call, without the kernel's work
    # Announces this rank to the others; the returned function returns True once all have arrived.
    arrive: Callable[[], Callable[[], bool]]

    def now_ns(self) -> int:
        """Return the time in ns: CLOCK_MONOTONIC, or that of the virtual clock."""
        return time.monotonic_ns() if self.virtual is None else self.virtual.clock.now_ns()

    def is_over(self) -> bool:
        """Return True if the replay was stopped or has failed."""
        return self.board.word[0] != GO_ON

    def main(self, process: int) -> int:
        """Return the index of the main thread of a process."""
        return int(np.searchsorted(self.recording.header.threads, process))

    def log_mark(self, number: int) -> None:
        """Log the mark at index `number`: a phase begins or ends."""
        mark = self.recording.header.marks[number]
        numbers = {name: value for name, value in (("epoch_num", mark.epoch), ("step_num", mark.step)) if value is not None}
        (self.log.start if mark.begins else self.log.end)(mark.key, **numbers)

    def fail(self, error: BaseException) -> None:
        """Report `error` to all processes: the replay has failed."""
        self.board.word[0] = FAILED
        text = f"{getattr(error, 'filename', None) or ''} {getattr(error, 'strerror', None) or error}".strip()
        os.write(self.failures[1], (text[:2000] + "\n").encode("utf-8", "replace"))
