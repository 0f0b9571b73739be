"""The keeper of a job's output: a process that copies output from the job's pipes to the logs and to the terminal.

    python -I -S output_keeper.py CONTROL PIPE LOG PIPE LOG

The arguments are descriptors. The keeper shares stdout and stderr with the tracer. It may run longer than the tracer, because the
job's next print would fail without a reader. If a log cannot grow, it lacks output, but the job continues. When the tracer ends,
the keeper closes stdout and stderr, so that their readers see the end, and writes logs until all writers have closed the pipes.

The keeper blocks all signals. It belongs to the tracer's process group, so a signal that is pending in the keeper was sent to
the whole group, and so to the job. The keeper imports few modules, because it starts with every trace.
"""

import os
import select
import signal
import stat
import struct
import sys
from collections import deque
from contextlib import suppress
from itertools import pairwise

SHOW, DRAIN, END = b"s", b"d", b"e"  # the tracer's commands; the keeper answers DRAIN, and END once all output was shown
# A reply: command, bytes of stdout that the logs lack, bytes of stderr that the logs lack. The keeper sends END when it ends.
REPLY = struct.Struct("<cQQ")

FOR_TRACERS = b':::MLLOG {"namespace": "iotwin"'  # how lines begin whose namespace is mllog.FOR_TRACERS

_CHUNK_BYTES = 1 << 20  # bytes to read at once: the most that a pipe can hold
_REST_MS = 10  # pause between reads of a pipe with little output, so that one read serves many prints
_BUSY_BYTES = 1 << 16
_HELD_BYTES = 64 << 20  # most output to buffer for a terminal that does not read; then the job blocks, as without a tracer
_WITHOUT_BLOCKING_BYTES = select.PIPE_BUF  # a pipe or terminal that is ready accepts this much without blocking


class _Stream:
    """The job's stdout or stderr: the pipe to which the job prints, the log, and the tracer's stream of the same name."""

    def __init__(self, pipe: int, log: int, shown: int) -> None:
        self.pipe, self._log, self.shown = pipe, log, shown
        self.ended = False
        self.missing_bytes = 0  # bytes that the log lacks
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._is_shown = False
        self._is_terminal = os.isatty(shown)
        self._step = _CHUNK_BYTES if _is_file(shown) else _WITHOUT_BLOCKING_BYTES

    @property
    def is_waiting(self) -> bool:
        return self._waiting_bytes > 0

    @property
    def is_full(self) -> bool:
        return self._waiting_bytes >= _HELD_BYTES

    def show(self) -> None:
        self._is_shown = True

    def hide(self) -> None:
        """Stop showing output, and close the tracer's stream."""
        self._is_shown = False
        self._waiting.clear()
        self._waiting_bytes = 0
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.shown)
        os.close(nothing)

    def take(self) -> int:
        """Move the content of the pipe, which must be readable or at its end. Return the number of bytes moved."""
        try:
            content = memoryview(os.read(self.pipe, _CHUNK_BYTES))
        except BlockingIOError:
            return 0  # `_drain` has emptied the pipe
        self.ended = not content
        self._write_log(content)
        shown = for_people(content) if self._is_terminal else content
        if self._is_shown and shown:
            self._waiting.append(shown)
            self._waiting_bytes += len(shown)
        return len(content)

    def _write_log(self, content: memoryview) -> None:
        while content:
            try:
                content = content[os.write(self._log, content) :]
            except OSError:
                self.missing_bytes += len(content)
                return

    def show_some(self) -> None:
        """Write to the tracer's stream, which must be ready, as much as it accepts."""
        first = self._waiting[0]
        piece = bytes(first[: self._step])
        if len(piece) < len(first):
            piece = piece[: piece.rfind(b"\n") + 1] or piece  # show whole lines if possible, as other processes may print
        try:
            shown = os.write(self.shown, piece)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.hide()  # the stream's reader has ended
            return
        except OSError:
            shown = len(first)
        self._waiting_bytes -= shown
        if shown < len(first):
            self._waiting[0] = first[shown:]
        else:
            self._waiting.popleft()


def for_people(content: memoryview) -> memoryview:
    """Return `content` without the log lines that only tracers read. The job writes each of these lines by a single call.

    Such a line may begin in the middle of another line, whose rest is still in the job's buffer and is printed later.
    """
    if FOR_TRACERS not in bytes(content):
        return content
    first, *others = bytes(content).split(FOR_TRACERS)
    return memoryview(b"".join([first, *(each.partition(b"\n")[2] for each in others)]))


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False  # the descriptor is closed


class _Keeper:
    def __init__(self, control: int, streams: list[_Stream]) -> None:
        self._control, self._streams = control, streams
        self._is_ending = self._is_alone = False

    def run(self) -> None:
        rests = False
        while not all(stream.ended and not stream.is_waiting for stream in self._streams):
            moved = self._turn(rests)
            rests = 0 < moved < _BUSY_BYTES
            if self._is_ending and not any(stream.is_waiting for stream in self._streams):
                self._is_ending = False
                for stream in self._streams:
                    stream.hide()
                self._reply(END)
        self._reply(END)

    def _turn(self, rests: bool) -> int:
        """Wait for events and handle them. Return the number of bytes moved. If `rests`, new output does not end the wait."""
        poll, control = select.poll(), select.poll()
        if not self._is_alone:
            poll.register(self._control, select.POLLIN)
            control.register(self._control, select.POLLIN)
        for stream in self._streams:
            if not stream.ended and not stream.is_full:
                poll.register(stream.pipe, 0 if rests else select.POLLIN)
            if stream.is_waiting:
                poll.register(stream.shown, select.POLLOUT)
        ready = dict(poll.poll(_REST_MS if rests else None))
        if control.poll(0):  # handle commands before newer output
            self._obey()
        moved = 0
        for stream in self._streams:
            if stream.pipe in ready:
                moved += stream.take()
            if stream.shown in ready and stream.is_waiting:
                stream.show_some()
        return moved

    def _obey(self) -> None:
        try:
            command = os.read(self._control, 1)
        except OSError:
            command = b""
        if command == SHOW:
            for stream in self._streams:
                stream.show()
        elif command == DRAIN:
            self._drain()
            while signal.sigtimedwait(signal.valid_signals(), 0):
                pass  # clear the pending signals
            self._reply(DRAIN)
        elif command == END:
            self._is_ending = True
        else:
            self._is_alone = True
            for stream in self._streams:
                stream.hide()

    def _drain(self) -> None:
        """Move only what the pipes contain now, since the job may print without end."""
        for stream in self._streams:
            poll, left = select.poll(), _CHUNK_BYTES
            poll.register(stream.pipe, select.POLLIN)
            while left > 0 and not stream.ended and poll.poll(0):
                left -= stream.take()

    def _reply(self, command: bytes) -> None:
        with suppress(OSError):  # the tracer has ended
            os.write(self._control, REPLY.pack(command, *(stream.missing_bytes for stream in self._streams)))


def main(control: int, pipe: int, log: int, second_pipe: int, second_log: int) -> None:
    """Copy the output of both streams until their end. The arguments are descriptors."""
    with suppress(OSError):  # stdin may be closed
        os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    kept = sorted((2, control, pipe, log, second_pipe, second_log, 1 << 20))
    for before, after in pairwise(kept):
        os.closerange(before + 1, after)
    with suppress(OSError):  # only root may lower the score
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"-1000")  # never kill the keeper if memory runs out: without it, the job ends
        os.close(score)
    _Keeper(control, [_Stream(pipe, log, 1), _Stream(second_pipe, second_log, 2)]).run()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
