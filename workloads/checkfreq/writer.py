"""``python -m workloads.checkfreq.writer``: the process that writes a job's checkpoints from its snapshots, one after another.

It shares the buffers by their descriptors and is sent a JSON document for each snapshot; torch is not needed here. It ends when
the job does: when it closes the socket, or by the kernel when it dies.
"""

import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from common.checkpoints import Manifest
from common.commit import Retention, Store
from common.errors import IotwinError
from common.processes import die_with_parent, name_process
from common.tensor_file import Entry, Packed

_LENGTH = struct.Struct("<Q")
_END_S = 60.0  # a process that is stuck in the kernel cannot be waited for


class Request(msgspec.Struct):
    """A checkpoint to write: of the first `buffer_bytes` of the buffer whose descriptor comes along."""

    directory: str
    retention: dict[str, Any]
    manifest: Manifest
    buffer_bytes: int
    tensors: list[Entry]
    values: Any


class WriterProcess:
    """The job's side: starts the process when it is first needed, and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def send(self, request: Request, descriptor: int) -> None:
        """Have a checkpoint written, whose end `receive` tells. IotwinError when the process is gone."""
        connection = self._socket or self._start()
        content = msgspec.json.encode(request)
        try:
            socket.send_fds(connection, [_LENGTH.pack(len(content))], [descriptor])
            connection.sendall(content)
        except OSError:
            raise self._gone(request.directory) from None

    def receive(self, directory: str) -> float:
        """Return the CPU seconds that it took to write what was sent. IotwinError when that failed, or the process is gone."""
        try:
            if self._socket is None:
                raise EOFError
            reply = json.loads(_receive(self._socket))
        except (OSError, EOFError):
            raise self._gone(directory) from None
        if reply["error"] is not None:
            raise IotwinError(reply["error"])
        return float(reply["cpu_s"])

    def _gone(self, directory: str) -> IotwinError:
        return IotwinError(
            f"the process that writes checkpoints ended with status {self.close()}; {directory} has those before it"
        )

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        # Isolated from the current directory, where a job may have modules of the names of ours.
        command = [sys.executable, "-P", "-m", "workloads.checkfreq.writer", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path}
            )
        self._socket = ours
        return ours

    @property
    def pid(self) -> int | None:
        """Return the process's id, None while there is none."""
        return self._process.pid if self._process else None

    def close(self) -> int | None:
        """Let the process end and return its status, None when there was none."""
        if self._socket is None or self._process is None:
            return None
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        status = self._process.returncode
        self._process = self._socket = None
        return status


def _receive(connection: socket.socket) -> bytes:
    """Return what the other side sent after its length; EOFError when it is gone."""
    [length] = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    content = bytearray()
    while len(content) < length:
        part = connection.recv(min(length - len(content), 1 << 20))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


class _Served:
    """The process's side: buffers stay mapped, as each mapping anew would fault in all their pages."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mapped: dict[int, mmap.mmap] = {}  # by inode

    def serve(self) -> None:
        """Write checkpoints until the other side closes."""
        while True:
            head, descriptors, _, _ = socket.recv_fds(self._connection, _LENGTH.size, 1)
            if not head:
                return
            head += _exactly(self._connection, _LENGTH.size - len(head))
            [length] = _LENGTH.unpack(head)
            request = msgspec.json.decode(_exactly(self._connection, length), type=Request)
            begin = time.process_time()
            error = self._write(request, descriptors[0])
            reply = json.dumps({"error": error, "cpu_s": time.process_time() - begin}).encode()
            self._connection.sendall(_LENGTH.pack(len(reply)) + reply)

    def _write(self, request: Request, descriptor: int) -> str | None:
        """Commit the checkpoint; return why that failed."""
        try:
            packed = Packed(request.tensors, self._memory(descriptor, request.buffer_bytes)[: request.buffer_bytes])
            # The job holds the store's lock.
            Store(Path(request.directory), Retention(**request.retention)).commit(request.manifest, packed, request.values)
        except IotwinError as failure:
            return str(failure)
        finally:
            os.close(descriptor)
        return None

    def _memory(self, descriptor: int, size_bytes: int) -> np.ndarray:
        inode = os.fstat(descriptor).st_ino
        if inode not in self._mapped or len(self._mapped[inode]) < size_bytes:
            self._mapped[inode] = mmap.mmap(descriptor, max(size_bytes, 1), prot=mmap.PROT_READ)
        return np.frombuffer(self._mapped[inode], np.uint8)


def main(arguments: list[str]) -> None:
    """Serve the job whose socket and process id are the arguments."""
    descriptor, parent_pid = (int(argument) for argument in arguments)
    name_process("iotwin-writer")
    for number in (signal.SIGINT, signal.SIGTERM):  # the job decides, and lets a checkpoint come to its end
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent_pid, signal.SIGKILL)
    with socket.socket(fileno=descriptor) as connection:
        _Served(connection).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
