"""Where a job's output goes: a command's through pipes and their keeper, and what is in a log file on to whoever reads along."""

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

from tracing_tools.targets import output_keeper

_NAMES = ("stdout", "stderr")
_PIPE_BYTES = 1 << 20  # all that a user without privileges may have
_PAGE = 4096  # what a pipe that is not full takes without a wait
_ANSWER_S = 5.0
_MARK_S = 0.005  # for a signal to the whole group to have reached all of it


class JobOutput:
    """A command's stdout and stderr: two pipes, and the keeper (output_keeper.py) that moves what they hold to `logs` and to us.

    Neither a full disk nor the end of the tracer reaches the command: what no log has room for is left out, and the keeper lives
    as long as somebody can print. The tracer holds the pipes open, too, and starts another keeper should one be killed. Only
    without both does the command's next print fail, as with any pipe whose reader has gone.
    """

    def __init__(self, logs: Path, user_id: int | None = None) -> None:
        self.missing_bytes = [0, 0]  # of stdout and stderr in the logs
        self.was_mended = False
        self.paths = [os.fsencode((logs / name).resolve()) for name in _NAMES]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._logs = [os.open(logs / name, flags, 0o644) for name in _NAMES]
        self._pipes, self.ends = (list(side) for side in zip(os.pipe(), os.pipe(), strict=True))
        for pipe, end in zip(self._pipes, self.ends, strict=True):
            os.set_blocking(pipe, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            if user_id is not None:
                os.fchown(end, user_id, -1)  # or the command could not open /dev/stderr
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
        """Close the ends that the command prints to, which it has by now."""
        for end in self.ends:
            os.close(end)

    def show(self) -> None:
        """Let our own streams have the output, too."""
        self._is_shown = True
        self._ask(output_keeper.SHOW)

    def mend(self) -> None:
        """Start another keeper if ours was killed."""
        if self._keeper and self._has_ended(os.WNOHANG):
            self._control.close()
            self._start()
            self.was_mended = True
            if self._is_shown:
                self._ask(output_keeper.SHOW)

    def _has_ended(self, options: int = 0) -> bool:
        """Whether the keeper has ended otherwise than at the end of the output."""
        pid, status = os.waitpid(self._keeper, options)
        if pid:
            self._keeper = 0
        return bool(pid and status)

    def drain(self) -> bool:
        """Have the logs hold what was printed until now; return whether they do."""
        self._ask(output_keeper.DRAIN)
        return self._is_answered((output_keeper.DRAIN, output_keeper.END), _ANSWER_S)

    def is_shown(self, wait_s: float) -> bool:
        """Whether all that was printed has been shown; what is printed from the first such question on goes to the logs alone."""
        if not self._is_ending:
            self._is_ending = True
            self._ask(output_keeper.END)
        return self._is_answered((output_keeper.END,), wait_s)

    def was_told(self, number: int) -> bool:
        """Whether the signal went to our whole process group, and so to the command: it then waits in the keeper, too."""
        time.sleep(_MARK_S)
        try:
            lines = Path(f"/proc/{self._keeper}/status").read_text().splitlines()
        except OSError:
            return False
        waiting = next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
        self.drain()  # and forget it
        return bool(waiting >> (number - 1) & 1)

    def _ask(self, command: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, and what it said last is still to be read
            self._control.send(command)

    def _is_answered(self, replies: tuple[bytes, ...], wait_s: float) -> bool:
        """Whether one of the replies came within so long, or none will come any more."""
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
        """Leave the keeper to what may still be printed; without anybody who could, wait for its end."""
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
        """Whether nobody can print any more."""
        pipes = select.poll()
        for pipe in self._pipes:
            pipes.register(pipe, 0)
        return len(pipes.poll(0)) == len(self._pipes)


def _fork_keeper(descriptors: list[int]) -> int:
    """Start the keeper where our Python may not be executed, by one that has given up root."""
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
        """`takes`: whether the stream takes a page within so many seconds, or never will."""
        self._path, self._stream, self._takes, self._position = path, stream, takes, 0
        self._log: FileIO | None = None

    def forward(self, wait_s: float = 0) -> bool:
        """Copy what is new as far as the stream takes it, a slow reader waited for so long; return whether it is all copied."""
        if self._log is None:  # once: when the trace is its user's, root opens nothing in it by name
            try:
                self._log = FileIO(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
            except FileNotFoundError:
                return True
        size = os.fstat(self._log.fileno()).st_size
        while size > self._position:  # no more than that: a job that prints without end must not hold the recorder
            if not self._takes(wait_s):
                return False
            content = os.pread(self._log.fileno(), min(_PAGE, size - self._position), self._position)
            if not content:
                return True
            self._position += len(content)
            # Whoever read our output may have gone (head), or its disk may be full; the trace does not end with that.
            with contextlib.suppress(OSError):
                self._stream.write(content)
                self._stream.flush()
        return True


def _writable(stream: BinaryIO) -> Callable[[float], object]:
    """Return a function of seconds: whether the stream takes a page within them, or never will, as a pipe may stay full."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return lambda wait_s: poll.poll(wait_s * 1000)


def output_tails(logs: Path) -> list[Tail]:
    """Return what copies the files `stdout` and `stderr` of the directory `logs` to our own."""
    streams = sys.stdout.buffer, sys.stderr.buffer
    return [Tail(logs / name, stream, _writable(stream)) for name, stream in zip(_NAMES, streams, strict=True)]
