"""A server that runs a script many times, each time in new processes: it imports packages once, and forks for each rank."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import dying_with_us
from iotwin.common.processes.process_settings import die_with_parent
from iotwin.common.ranks import become_local_rank
from iotwin.common.untrusted_files import decode_foreign

MOST_MESSAGE_BYTES = 1 << 20


class RunOfRanks(msgspec.Struct, frozen=True, kw_only=True):
    """What a server runs. `ranks`: number of processes, as torchrun starts them, with `port` for rank 0.

    `rank`: the rank of this process. Each rank but 0 has its own output files (`path_of_rank`).
    """

    ranks: int = 1
    port: int = 0
    rank: int = 0


class RunEnd(msgspec.Struct, frozen=True):
    """How a run ended. `status`: 0, or the exit status of `rank`, the first rank that failed; -signal if a signal killed it.

    `timed_out`: it exceeded its time limit.
    """

    status: int
    rank: int = 0
    timed_out: bool = False


_Run = TypeVar("_Run", bound=RunOfRanks)
_Message = TypeVar("_Message")


class RunServer:
    """The program ``python -m module DESCRIPTOR ARGUMENTS``, which calls `serve` with the socket at that descriptor.

    It runs as long as a `with` block. `output`: descriptor for what it prints, None: this process's.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: int | None = None) -> None:
        self._module, self._arguments, self._environment, self._output = module, arguments, environment, output
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start(self._arguments)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None and self._server is not None:  # as by Ctrl-C, in the middle of a run, which ends with the server
            self._server.kill()
        self.close()

    def start(self, arguments: Sequence[str]) -> None:
        """Start the program."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", self._module, str(theirs.fileno()), *arguments], pass_fds=[theirs.fileno()],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
                preexec_fn=dying_with_us(signal.SIGKILL), start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End the program."""
        if self._server is not None:
            self._socket.close()
            self._server.wait()

    def send(self, request: RunOfRanks) -> None:
        """Request a run, in all its ranks."""
        with contextlib.suppress(OSError):  # `receive` reports that the program has died
            self._socket.send(msgspec.json.encode(request))

    def receive(self, kind: type[_Message]) -> _Message:
        """Return the next message. Raises IotwinError if the program could not be started, or has died."""
        return self.receive_files(kind)[0]

    def receive_files(self, kind: type[_Message]) -> tuple[_Message, list[int]]:
        """As `receive`, with the descriptors that were sent along."""
        message, files = b"", list[int]()
        with contextlib.suppress(OSError):
            message, files, _, _ = socket.recv_fds(self._socket, MOST_MESSAGE_BYTES, 1)
        if not message:
            raise IotwinError("the process that runs the script has died, or could not be started; run the command again")
        return decode_foreign(message, kind, "the message of the process that runs the script"), files


def serve(requests: socket.socket, kind: type[_Run]) -> _Run | None:
    """Fork for each rank of each request of a `kind`, and reply how the run ended.

    Returns the request in forked processes, and None in the server when no more come. The ranks are a process group.
    """
    server = os.getpid()
    while message := requests.recv(MOST_MESSAGE_BYTES):
        run = decode_foreign(message, kind, "the request for a run")
        rank_of: dict[int, int] = {}
        for rank in range(run.ranks):
            group = next(iter(rank_of), 0)
            child = os.fork()
            os.setpgid(child, group)  # both processes do this, so that neither goes on before it is done
            if child == 0:
                die_with_parent(server, signal.SIGKILL)
                become_local_rank(rank, run.ranks, run.port)
                return msgspec.structs.replace(run, rank=rank)
            rank_of[child] = rank
        requests.send(msgspec.json.encode(_awaited(rank_of)))
    return None


def _awaited(rank_of: dict[int, int]) -> RunEnd:
    """Wait for the end of all processes, the keys of `rank_of`. If one fails, kill the others, which might wait for it."""
    end = RunEnd(0)
    while rank_of:
        child, status = os.wait()
        rank = rank_of.pop(child)
        if status and not end.status:
            end = RunEnd(os.waitstatus_to_exitcode(status), rank)
            for other in rank_of:
                os.kill(other, signal.SIGKILL)
    return end
