"""The tasks that a launcher (as srun) starts on one machine: one of them traces, and the others let it trace their commands.

All tasks of a launch on a machine know the name of one abstract Unix socket. The kernel grants this name to only one process at
a time. The task that gets the name listens there and traces; it is the tracer. When the tracer ends, the name is free again.
Each other task connects to the tracer. It starts its command itself, with its own environment and streams, and holds the command
until the tracer follows it.

Messages are JSON. A task sends three `_Request`s: its rank and its program, then the pid of its command, and at last the exit
status. The tracer answers the first two by a `_Reply`. If the connection ends, the other side was killed.
"""

import contextlib
import errno
import hashlib
import os
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.ranks import NodeTask
from iotwin.common.untrusted_files import decode_foreign
from iotwin.trace_store.manifest import Target, TracedTask
from iotwin.tracing_tools.backend_base import Backend
from iotwin.tracing_tools.targets.cgroup import JobCgroup
from iotwin.tracing_tools.targets.command import CommandTarget
from iotwin.tracing_tools.targets.running_processes import open_files, process_tree

_MOST_BYTES = 1 << 16  # most bytes of a message
_CREDENTIALS = struct.Struct("iII")  # struct ucred of socket(7): pid, user id, group id
ANSWER_S = 60.0  # seconds that a task waits while the tracer loads its probes; after that, its command runs untraced
_LATEST_TASK_S = 60.0  # seconds that the tracer waits for the tasks that the launcher announces
_RETRY_S = 0.005
_BACKLOG = 1024  # tasks that may wait for the tracer to accept them


class TracerGoneError(IotwinError):
    """The tracer ended, was killed, or does not answer."""


class _Request(msgspec.Struct, omit_defaults=True):
    """A message of a task; one of the three values is set. `program` is as the task's user wrote it."""

    rank: int = 0
    program: str | None = None
    pid: int | None = None
    exit_status: int | None = None


class _Reply(msgspec.Struct, omit_defaults=True):
    """The tracer's answer: the words that run the program under the backend, the folder of logs, or why it is not traced."""

    words: list[str] = []
    logs: str = ""
    refused: str = ""


def _encoded(message: _Request | _Reply) -> bytes:
    return msgspec.json.encode(message)


def _text(path: str) -> str:
    """Return a path as text without lone surrogates, whatever its bytes; `_path` reverses it."""
    return os.fsencode(path).decode("latin-1")


def _path(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))


def socket_name(task: NodeTask, trace: Path) -> str:
    """Return the name of the abstract socket of the tasks that write the trace `trace` together."""
    words = (str(os.geteuid()), task.launch, task.node, os.path.realpath(trace))
    return "\0iotwin-node-" + hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def listen(name: str) -> socket.socket | None:
    """Return a socket that listens under `name`; None if another process has the name. Raises OSError if the name is invalid."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(name)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _is_ours(connection: socket.socket) -> bool:
    """Return True if the process at the other end belongs to the user of this process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.geteuid()


class _Member:
    """A task that is connected to the tracer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection: socket.socket | None = connection
        self.task = TracedTask(0, 0)
        connection.setblocking(False)

    def receive(self) -> _Request | None:
        """Return the next message, None if there is none. Closes the connection if the task has ended."""
        if self.connection is None:
            return None
        try:
            content = self.connection.recv(_MOST_BYTES)
            if content:
                return decode_foreign(content, _Request, "the message of a task")
        except BlockingIOError:
            return None
        except (OSError, IotwinError):
            pass
        self.close()
        return None

    def answer(self, reply: _Reply) -> None:
        """Send the reply. If the task cannot receive the reply, the task counts as ended."""
        try:
            if self.connection is not None:
                self.connection.send(_encoded(reply))
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class NodeTarget(CommandTarget):
    """The command of the task that traces, and the commands of the other tasks of its machine.

    The target ends when all tasks that the launcher announced for this machine have connected, and all commands have ended.
    """

    def __init__(self, command: list[str], task: NodeTask, listener: socket.socket) -> None:
        super().__init__(command, logs_prefix=logs_prefix(task.rank))
        self.scope = replace(self.scope, several_commands=task.tasks_here != 1)
        self._task, self._listener = task, listener
        self._members: list[_Member] = []
        self._joined = b""
        self._raw = Path()
        self._is_recording = False
        self._wait_until_s = time.monotonic() + _LATEST_TASK_S

    def describe(self) -> Target:
        """Return the description of this task's command, with the pids and exit statuses of all tasks."""
        tasks = [TracedTask(self._task.rank, self.root_pid, self.exit_status)] if self.root_pid else []
        tasks += [member.task for member in self._members if member.task.pid]
        found = super().describe()
        found.launch, found.tasks = self._task.launch, sorted(tasks, key=lambda task: task.rank)
        return found

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Start the process that executes this task's command after `release`."""
        self._raw = raw
        super().start(backend, logs, raw)

    def attach(self, backend: Backend) -> None:
        """Let the backend follow this task's command, and from now on the commands of other tasks."""
        super().attach(backend)
        self._is_recording = True

    def has_ended(self) -> bool:
        """Answer the other tasks. Return True if all have ended and none is missing."""
        has_ended = super().has_ended()
        self._serve()
        return has_ended and not any(member.connection for member in self._members) and self._have_all_come()

    def _have_all_come(self) -> bool:
        expected = self._task.tasks_here or 0
        return len(self._members) + 1 >= expected or time.monotonic() > self._wait_until_s

    def _serve(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_BACKLOG):
                connection, _ = self._listener.accept()
                if _is_ours(connection):
                    self._members.append(_Member(connection))
                else:
                    connection.close()
        for member in self._members:
            while request := member.receive():
                self._obey(member, request)

    def _obey(self, member: _Member, request: _Request) -> None:
        if request.exit_status is not None:
            member.task.exit_status = request.exit_status
        elif request.pid is not None:
            member.answer(self._follow(member, request.pid))
        elif request.program is not None:
            member.task.rank = request.rank
            member.answer(self._accept(_path(request.program)))

    def _accept(self, program: str) -> _Reply:
        """Return the answer to a task that announces its program."""
        if not self._is_recording or self._backend is None:
            return _Reply(refused="the recording of this node has ended")
        try:
            words = self._backend.wrap([program], self._raw)
        except (IotwinError, OSError) as error:
            return _Reply(refused=str(error))
        return _Reply([_text(word) for word in words], _text(str(self._raw.parent / "logs")))

    def _follow(self, member: _Member, pid: int) -> _Reply:
        """Let the backend follow the process `pid`, which waits for the answer."""
        if not self._is_recording:
            return _Reply(refused="the recording of this node has ended")
        try:
            self.admit(pid)
        except (IotwinError, OSError) as error:
            return _Reply(refused=f"it cannot be followed: {error}")
        member.task.pid = pid
        logs = self._raw.parent / "logs" / logs_prefix(member.task.rank)
        outputs = {number: os.fsencode(f"{logs}{name}") for number, name in ((1, "stdout"), (2, "stderr"))}
        self._joined += open_files(pid, (0, 1, 2), outputs)
        return _Reply()

    def take_joined(self) -> bytes:
        """Return name records of the commands that joined since the last call."""
        joined, self._joined = self._joined, b""
        return joined

    def failed_status(self) -> int | None:
        """Return the exit status of a task's command that failed, None if none has."""
        self.has_ended()  # receives the statuses
        statuses = (self.exit_status, *(member.task.exit_status for member in self._members))
        return next(filter(None, statuses), None)

    def remaining(self) -> list[int]:
        """Return the pids of the processes of all tasks, as far as they are known."""
        others = [member.task.pid for member in self._members if member.connection and member.task.pid]
        return super().remaining() if self._own else super().remaining() + others

    def signal(self, number: int) -> None:
        """Send the signal to this task's command and its descendants only, since each task passes on its own signals.

        After this, the target no longer waits for tasks that have not begun: a launcher that ends a launch starts no more tasks.
        """
        self._wait_until_s = 0.0
        if self.root_pid is not None and self.exit_status is None:
            self._send(number, process_tree([self.root_pid]))

    def closing_notes(self) -> list[str]:
        """Accept no more commands, and return notes on how the target ended."""
        self._is_recording = False
        notes = super().closing_notes()
        missing = (self._task.tasks_here or 0) - 1 - len(self._members)
        if missing > 0:
            notes.append(f"{missing} of the {self._task.tasks_here} tasks of this node are not in the trace: they did not come")
        return notes

    def close(self) -> None:
        """Remove what was created for the target, and free the socket's name."""
        super().close()
        self._listener.close()
        for member in self._members:
            member.close()


def logs_prefix(rank: int) -> str:
    """Return the prefix of the names of the logs of the task `rank` (see trace_store.logs.job_log.rank_of_log)."""
    return f"rank-{rank}."


class NodeTracer(Backend):
    """The tracer of this machine, which is another process. It has the methods of a backend that a joining command needs."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        self._connection, self._rank = connection, rank
        self._words: list[str] = []
        self._is_lost = False

    @classmethod
    def find(cls, name: str, rank: int) -> "NodeTracer | None":
        """Return the tracer that listens under the socket's name; None if no process listens, or if it is another user's."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(name)
        except OSError:
            connection.close()
            time.sleep(_RETRY_S)  # the tracer has ended, or does not listen yet
            return None
        if not _is_ours(connection):
            raise IotwinError("another user holds the name by which the tasks of this node find their tracer; choose another -o")
        return cls(connection, rank)

    def begin(self, program: str) -> Path | None:
        """Announce the program. Return the folder for logs once the tracer records; None if the tracer failed before that.

        Raises TracerGoneError if the tracer does not trace the program.
        """
        reply = self._ask(_Request(self._rank, program=_text(program)))
        if reply is None:
            return None
        if reply.refused:
            raise TracerGoneError(reply.refused)
        self._words = [_path(word) for word in reply.words]
        return Path(_path(reply.logs))

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` under the tracer's backend."""
        return [*self._words, *command[1:]]

    def follow(self, pid: int) -> None:
        """Let the tracer follow the process `pid`. If it cannot, the process remains untraced."""
        reply = self._ask(_Request(self._rank, pid=pid))
        self._is_lost = reply is None or bool(reply.refused)

    def end(self, exit_status: int) -> bool:
        """Report the exit status of the command. Return False if the tracer has ended or never followed the command."""
        try:
            self._connection.send(_encoded(_Request(self._rank, exit_status=exit_status)))
            return not self._is_lost
        except OSError:
            return False

    def close(self) -> None:
        """Close the connection. By this, the tracer learns that this task has ended."""
        self._connection.close()

    def _ask(self, request: _Request) -> _Reply | None:
        try:
            self._connection.send(_encoded(request))
            content = self._connection.recv(_MOST_BYTES)
        except TimeoutError:
            raise TracerGoneError(f"the tracer of this node did not answer within {ANSWER_S:g} s") from None
        except OSError:
            return None
        return decode_foreign(content, _Reply, "the answer of the tracer") if content else None


class JoiningTarget(CommandTarget):
    """The command of a task that another task of its machine traces."""

    def __init__(self, command: list[str], rank: int) -> None:
        super().__init__(command, logs_prefix=logs_prefix(rank))

    def _new_cgroup(self, parent: Path | None) -> JobCgroup | str:
        return "the tracer has one"
