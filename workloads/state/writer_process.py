"""``python -m iotwin.workloads.state.writer_process``: a process that writes a job's snapshots to the checkpoint store.

For each snapshot, the job sends a JSON request and the descriptor of a shared buffer. The process ends when the job closes the
socket, and the kernel kills it if the job dies. The process does not import torch.
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

from iotwin.common.checkpoints import CheckpointManifest
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError
from iotwin.common.processes.process_settings import die_with_parent, name_process
from iotwin.common.retention import Retention
from iotwin.common.tensor_file import Entry, Packed
from iotwin.common.untrusted_files import decode_foreign

_LENGTH = struct.Struct("<Q")
_END_S = 60.0  # seconds that the process gets to end before it is killed


class WriteRequest(msgspec.Struct):
    """A checkpoint to write from the first `buffer_bytes` of the buffer whose descriptor is sent with the request."""

    directory: str
    retention: dict[str, Any]
    manifest: CheckpointManifest
    buffer_bytes: int
    tensors: list[Entry]
    values: Any


class WriterProcess:
    """The job's side of the connection: starts the writer process when the first request is sent, or after a kill."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def send(self, request: WriteRequest, descriptor: int) -> None:
        """Send a request. `receive` then returns when the checkpoint is written. Raises IotwinError if the process has ended."""
        connection = self._socket or self._start()
        content = msgspec.json.encode(request)
        try:
            socket.send_fds(connection, [_LENGTH.pack(len(content))], [descriptor])
            connection.sendall(content)
        except OSError:
            raise self._gone(request.directory) from None

    def receive(self, directory: str) -> float:
        """Wait until the checkpoint is written and return the CPU seconds used. Raises IotwinError if the write failed."""
        try:
            if self._socket is None:
                raise EOFError
            reply = decode_foreign(_receive(self._socket), dict[str, Any], "the reply of the process that writes checkpoints")
        except (OSError, EOFError):
            raise self._gone(directory) from None
        if reply["error"] is not None:
            raise IotwinError(reply["error"])
        return float(reply["cpu_s"])

    def _gone(self, directory: str) -> IotwinError:
        return IotwinError(
            f"the process that writes checkpoints ended with status {self.close()}; {directory} has the earlier checkpoints"
        )

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        # -P: modules in the current directory may have the names of modules that the process imports.
        command = [sys.executable, "-P", "-m", "iotwin.workloads.state.writer_process", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path}
            )
        self._socket = ours
        return ours

    @property
    def pid(self) -> int | None:
        """Return the process's id, None if none runs."""
        return self._process.pid if self._process else None

    def close(self) -> int | None:
        """Let the process end and return its exit status, None if none runs."""
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
    """Return the content of one message. Raises EOFError if the other side has closed."""
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


class _RequestServer:
    """The writer process's side: reads requests from the job's socket, writes the checkpoints, and replies.

    The job's buffers remain mapped, because mapping a buffer again would cause a page fault on every page.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mapped: dict[int, mmap.mmap] = {}  # mapped buffers, by inode

    def serve(self) -> None:
        """Write checkpoints until the job closes the socket."""
        while True:
            head, descriptors, _, _ = socket.recv_fds(self._connection, _LENGTH.size, 1)
            if not head:
                return
            head += _exactly(self._connection, _LENGTH.size - len(head))
            [length] = _LENGTH.unpack(head)
            request = decode_foreign(_exactly(self._connection, length), WriteRequest, "the request for a checkpoint")
            begin = time.process_time()
            error = self._write(request, descriptors[0])
            reply = json.dumps({"error": error, "cpu_s": time.process_time() - begin}).encode()
            self._connection.sendall(_LENGTH.pack(len(reply)) + reply)

    def _write(self, request: WriteRequest, descriptor: int) -> str | None:
        """Commit the checkpoint and return an error message, None on success."""
        try:
            packed = Packed(request.tensors, self._memory(descriptor, request.buffer_bytes)[: request.buffer_bytes])
            # The store is not entered as a context, since the job holds the store's lock already.
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
    """Serve a job. `arguments` are the descriptor of the job's socket and the job's process id."""
    descriptor, parent_pid = (int(argument) for argument in arguments)
    name_process("iotwin-writer")
    for number in (signal.SIGINT, signal.SIGTERM):  # the job ends this process after the last checkpoint
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent_pid, signal.SIGKILL)
    with socket.socket(fileno=descriptor) as connection:
        _RequestServer(connection).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
