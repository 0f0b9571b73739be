"""A job's output: pipes from a command to a keeper process, which writes logs; and copying of logs to iotwin's own streams."""

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from iotwin.common.files import open_append
from iotwin.tracing_tools.targets import output_keeper

_NAMES = ("stdout", "stderr")
_PIPE_BYTES = 1 << 20  # the most that an unprivileged user may set
_PAGE_BYTES = 4096  # a pipe that is not full accepts this much without blocking
_ANSWER_S = 5.0  # time for the keeper to answer
_MARK_S = 0.005  # time for a signal to a process group to reach all its processes


class JobOutput:
    """A command's stdout and stderr: two pipes, and the keeper (output_keeper.py) that copies them to `logs` and to our streams.

    Neither a full disk nor the tracer's end affects the command: the keeper drops output for which a log has no room, and runs
    until all writers have closed the pipes. The tracer also holds the pipes open, and replaces a killed keeper. The command's
    next print fails only if both are killed.
    """

    def __init__(self, logs: Path, user_id: int | None = None) -> None:
        """`user_id`: the user who runs the command; None if it is the tracer's user."""
        self.missing_bytes = [0, 0]  # bytes of stdout and of stderr that the logs lack
        self.was_mended = False
        self.paths = [os.fsencode((logs / name).resolve()) for name in _NAMES]
        self._logs = [open_append(logs / name, 0o644) for name in _NAMES]
        self._pipes, self.ends = (list(side) for side in zip(os.pipe(), os.pipe(), strict=True))
        for pipe, end in zip(self._pipes, self.ends, strict=True):
            os.set_blocking(pipe, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            if user_id is not None:
                os.fchown(end, user_id, -1)  # otherwise the command could not open /dev/stderr
        self._is_shown = self._is_ending = False
        self._start()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = [theirs.fileno(), self._pipes[0], self._logs[0], self._pipes[1], self._logs[1]]
        command = [sys.executable, "-I", "-S", output_keeper.__file__, *map(str, descriptors)]
        kept = [(os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in descriptors]
        try:
            blocked = signal.valid_signals()
            self._keeper = os.posix_spawn(sys.executable, command, os.environ, file_actions=kept, setsigmask=blocked)
        except OSError:
            self._keeper = _fork_keeper(descriptors)
        theirs.close()

    def close_ends(self) -> None:
        """Close this process's copies of the ends to which the command prints; call this after the fork."""
        for end in self.ends:
            os.close(end)

    def show(self) -> None:
        """Copy the output to iotwin's own streams, too."""
        self._is_shown = True
        self._ask(output_keeper.SHOW)

    def mend(self) -> None:
        """Start another keeper if the present one was killed."""
        if self._keeper and self._has_ended(os.WNOHANG):
            self._control.close()
            self._start()
            self.was_mended = True
            if self._is_shown:
                self._ask(output_keeper.SHOW)

    def _has_ended(self, options: int = 0) -> bool:
        """Whether the keeper ended before the end of the output."""
        pid, status = os.waitpid(self._keeper, options)
        if pid:
            self._keeper = 0
        return bool(pid and status)

    def drain(self) -> bool:
        """Copy everything printed so far to the logs; return False if the keeper does not answer in 5 s."""
        self._ask(output_keeper.DRAIN)
        return self._is_answered((output_keeper.DRAIN, output_keeper.END), _ANSWER_S)

    def is_shown(self, wait_s: float) -> bool:
        """Whether all output was copied to iotwin's streams; output printed after the first call is copied to the logs only."""
        if not self._is_ending:
            self._is_ending = True
            self._ask(output_keeper.END)
        return self._is_answered((output_keeper.END,), wait_s)

    def was_signalled(self, number: int) -> bool:
        """Whether the signal was sent to our whole process group, so also to the command: it is then pending in the keeper."""
        time.sleep(_MARK_S)
        try:
            lines = Path(f"/proc/{self._keeper}/status").read_text().splitlines()
        except OSError:
            return False
        waiting = next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
        self.drain()  # clears the pending signals
        return bool(waiting >> (number - 1) & 1)

    def _ask(self, command: bytes) -> None:
        with contextlib.suppress(OSError):  # the keeper has ended; its last reply can still be read
            self._control.send(command)

    def _is_answered(self, replies: tuple[bytes, ...], wait_s: float) -> bool:
        """Whether one of the replies arrives within `wait_s`, or none can arrive any more."""
        self._control.settimeout(wait_s)
        command = b""
        while command not in replies:
            try:
                reply = self._control.recv(output_keeper.REPLY.size)
            except TimeoutError:
                return False
            except OSError:
                return True
            if not reply:
                return True
            command, *self.missing_bytes = output_keeper.REPLY.unpack(reply)
        return True

    def close(self) -> None:
        """Close the pipes and logs. If a process can still print, the keeper continues; otherwise wait for its end."""
        if not self._pipes:
            return
        has_writers = self._keeper and not self._is_at_its_end()
        self._control.close()
        for descriptor in (*self._pipes, *self._logs):
            os.close(descriptor)
        self._pipes = []
        if self._keeper and not has_writers:
            self._has_ended()

    def _is_at_its_end(self) -> bool:
        """Whether all writers have closed the pipes."""
        pipes = select.poll()
        for pipe in self._pipes:
            pipes.register(pipe, 0)
        return len(pipes.poll(0)) == len(self._pipes)


def _fork_keeper(descriptors: list[int]) -> int:
    """Fork the keeper: the tracer may lack the permission to execute our Python."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            output_keeper.main(*descriptors)
            os._exit(0)
        finally:
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


class Tail:
    """Copies the growth of a log file to a stream."""

    def __init__(self, path: Path, stream: BinaryIO, takes: Callable[[float], object]) -> None:
        """`takes(seconds)` returns whether the stream accepts a page within this time, or never will."""
        self._path, self._stream, self._takes, self._position = path, stream, takes, 0
        self._log: FileIO | None = None

    def forward(self, wait_s: float = 0) -> bool:
        """Copy new content while the stream accepts it within `wait_s` a page; return whether everything is copied."""
        if self._log is None:  # opened once: root must not open names in a trace that its user owns by then
            try:
                self._log = FileIO(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
            except FileNotFoundError:
                return True
        size = os.fstat(self._log.fileno()).st_size
        while size > self._position:  # up to the size at the call: a job that prints without end must not block the recorder
            if not self._takes(wait_s):
                return False
            content = os.pread(self._log.fileno(), min(_PAGE_BYTES, size - self._position), self._position)
            if not content:
                return True
            self._position += len(content)
            # The reader of our output may have ended (head), or its disk may be full; the trace continues.
            with contextlib.suppress(OSError):
                self._stream.write(content)
                self._stream.flush()
        return True


def _writable(stream: BinaryIO) -> Callable[[float], object]:
    """Return `takes` of Tail for `stream`."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return lambda wait_s: poll.poll(wait_s * 1000)


def output_tails(logs: Path) -> list[Tail]:
    """Return Tails that copy the files `stdout` and `stderr` of the directory `logs` to iotwin's own streams."""
    streams = sys.stdout.buffer, sys.stderr.buffer
    return [Tail(logs / name, stream, _writable(stream)) for name, stream in zip(_NAMES, streams, strict=True)]
