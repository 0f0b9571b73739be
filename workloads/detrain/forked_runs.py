"""A server that runs a script many times, each time in new processes: it imports packages once, and forks for each rank."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from iotwin.common.foreign_files import decode_foreign
from iotwin.common.processes.children import dying_with_us
from iotwin.common.processes.process_settings import die_with_parent
from iotwin.common.ranks import become_local_rank

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


def started(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], output: int | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start ``python -m module DESCRIPTOR ARGUMENTS``, a server, and return it with the socket that it serves.

    `output`: descriptor for what it prints, None: this process's.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), *arguments], pass_fds=[theirs.fileno()], env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=dying_with_us(signal.SIGKILL),
            start_new_session=True,
        )  # fmt: skip
    return server, ours


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
