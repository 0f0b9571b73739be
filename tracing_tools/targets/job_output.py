"""The output of a job: pipes from the command to a keeper process, which writes logs, and copies of logs to iotwin's streams."""

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
_PIPE_BYTES = 1 << 20  # largest pipe that an unprivileged user may have
_PAGE_BYTES = 4096  # a pipe that is not full accepts this much without blocking
_ANSWER_S = 5.0  # how long the keeper may take to answer
_MARK_S = 0.005  # within this time, a signal to a process group reaches all its processes


class JobOutput:
    """A command's stdout and stderr: two pipes, which the keeper (output_keeper.py) copies to `logs` and to iotwin's streams.

    Neither a full disk nor the tracer's end affects the command. The keeper drops output for which a log has no room, and runs
    until all writers have closed the pipes. The tracer also holds the pipes open, and replaces a killed keeper. Only if both are
    killed does the command's next print fail.
    """

    def __init__(self, logs: Path, user_id: int | None = None, prefix: str = "") -> None:
        """Create the pipes and start the keeper. `user_id`: the user who runs the command, None for the tracer's user.

        The names of the logs begin with `prefix`.
        """
        self.missing_bytes = [0, 0]  # bytes of stdout and of stderr that the logs lack
        self.was_mended = False
        self.paths = [os.fsencode((logs / f"{prefix}{name}").resolve()) for name in _NAMES]
        self._logs = [open_append(logs / f"{prefix}{name}", 0o644) for name in _NAMES]
        self._pipes, self.ends = (list(side) for side in zip(os.pipe(), os.pipe(), strict=True))
        for pipe, end in zip(self._pipes, self.ends, strict=True):
            os.set_blocking(pipe, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            if user_id is not None:
                os.fchown(end, user_id, -1)  # else the command's user could not open /dev/stderr
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
        """Close this process's copies of the ends of the pipes to which the command prints. Call this after the fork."""
        for end in self.ends:
            os.close(end)

    def show(self) -> None:
        """Let the keeper copy the output to iotwin's own streams, too."""
        self._is_shown = True
        self._ask(output_keeper.SHOW)

    def mend(self) -> None:
        """If the keeper was killed, start a new one."""
        if self._keeper and self._has_ended(os.WNOHANG):
            self._control.close()
            self._start()
            self.was_mended = True
            if self._is_shown:
                self._ask(output_keeper.SHOW)

    def _has_ended(self, options: int = 0) -> bool:
        """Return True if the keeper ended before the output did, as after a kill. `options`: the options of waitpid."""
        pid, status = os.waitpid(self._keeper, options)
        if pid:
            self._keeper = 0
        return bool(pid and status)

    def drain(self) -> bool:
        """Let the keeper copy everything printed so far to the logs. Return False if it does not answer in 5 s."""
        self._ask(output_keeper.DRAIN)
        return self._is_answered((output_keeper.DRAIN, output_keeper.END), _ANSWER_S)

    def is_shown(self, wait_s: float) -> bool:
        """Wait up to `wait_s` until all output was copied to iotwin's streams. Return True if it was.

        Output that is printed after the first call is copied to the logs only.
        """
        if not self._is_ending:
            self._is_ending = True
            self._ask(output_keeper.END)
        return self._is_answered((output_keeper.END,), wait_s)

    def was_signalled(self, number: int) -> bool:
        """Return True if the signal `number` was sent to iotwin's whole process group, and so also to the command.

        The keeper blocks all signals, so the signal is then pending in the keeper.
        """
        time.sleep(_MARK_S)
        try:
            lines = Path(f"/proc/{self._keeper}/status").read_text().splitlines()
        except OSError:
            return False
        waiting = next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
        self.drain()  # the keeper clears its pending signals, too
        return bool(waiting >> (number - 1) & 1)

    def _ask(self, command: bytes) -> None:
        with contextlib.suppress(OSError):  # the keeper has ended, but its last reply can be read
            self._control.send(command)

    def _is_answered(self, replies: tuple[bytes, ...], wait_s: float) -> bool:
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
        """Close the pipes and logs. If a process can still print, the keeper continues; otherwise wait for the keeper's end."""
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
        pipes = select.poll()
        for pipe in self._pipes:
            pipes.register(pipe, 0)
        return len(pipes.poll(0)) == len(self._pipes)


def _fork_keeper(descriptors: list[int]) -> int:
    """Start the keeper by a fork and return the keeper's pid. This works even if the tracer may not execute Python."""
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
    """Copies what is appended to a log file to a stream."""

    def __init__(self, path: Path, stream: BinaryIO, takes: Callable[[float], object]) -> None:
        """`takes(seconds)` must return True if the stream accepts a page within this time, or if it will never accept any."""
        self._path, self._stream, self._takes, self._position = path, stream, takes, 0
        self._log: FileIO | None = None

    def forward(self, wait_s: float = 0) -> bool:
        """Copy new content while the stream accepts each page within `wait_s`. Return True if everything is copied."""
        if self._log is None:  # opened only once: later, the user owns the trace, and root must not follow names in it
            try:
                self._log = FileIO(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
            except FileNotFoundError:
                return True
        size = os.fstat(self._log.fileno()).st_size
        while size > self._position:  # up to the present size only, since a job may print without end
            if not self._takes(wait_s):
                return False
            content = os.pread(self._log.fileno(), min(_PAGE_BYTES, size - self._position), self._position)
            if not content:
                return True
            self._position += len(content)
            # The reader of iotwin's output, such as head, may have ended, or a disk may be full. The trace continues.
            with contextlib.suppress(OSError):
                self._stream.write(content)
                self._stream.flush()
        return True


def _writable(stream: BinaryIO) -> Callable[[float], object]:
    """Return a function of seconds: True if `stream` accepts a page within this time, or never will."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return lambda wait_s: poll.poll(wait_s * 1000)


def output_tails(logs: Path) -> list[Tail]:
    """Return Tails that copy the files `stdout` and `stderr` in the directory `logs` to iotwin's own streams."""
    streams = sys.stdout.buffer, sys.stderr.buffer
    return [Tail(logs / name, stream, _writable(stream)) for name, stream in zip(_NAMES, streams, strict=True)]
