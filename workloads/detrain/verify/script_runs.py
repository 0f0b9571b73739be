"""Runs a script many times, each time in a new process. A server imports PyTorch once and forks for each run.

As a program, ``python -m iotwin.workloads.detrain.verify.script_runs DESCRIPTOR``: the server. Its socket brings requests.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_rewritten
from iotwin.common.foreign_files import decode_foreign
from iotwin.common.processes.children import dying_with_us
from iotwin.common.processes.process_end import end_process, exit_status_of
from iotwin.common.processes.process_settings import die_with_parent
from iotwin.common.ranks import become_local_rank
from iotwin.workloads.detrain.script_ranks import path_of_rank

if TYPE_CHECKING:
    from iotwin.workloads.detrain.verify.observed_run import RunRequest

_MOST_MESSAGE_BYTES = 1 << 20
# Modules that each run would import. The first optimizer imports torch._dynamo.
_IMPORTED = ("torch._dynamo", "iotwin.workloads.detrain.verify.observed_run", "iotwin.workloads.detrain.discover")


class RunEnd(NamedTuple):
    """How a run ended. `status`: 0, or the exit status of `rank`, the first rank that failed; -signal if a signal killed it."""

    status: int
    rank: int


class ScriptRuns:
    """Runs of a script, one at a time, in processes that have `variables` in their environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __enter__(self) -> Self:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env=os.environ | self._variables, preexec_fn=dying_with_us(signal.SIGKILL), start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._socket.close()
        if kind is not None:  # as by Ctrl-C, in the middle of a run, which ends with the server
            self._server.kill()
        self._server.wait()

    def run(self, request: "RunRequest") -> RunEnd:
        """Run the script, in all its ranks. Raises IotwinError if the server has died."""
        reply = b""
        with contextlib.suppress(OSError):
            self._socket.send(msgspec.json.encode(request))
            reply = self._socket.recv(_MOST_MESSAGE_BYTES)
        if not reply:
            raise IotwinError("the process that runs the script has died; run the command again")
        return decode_foreign(reply, RunEnd, "the reply of the process that runs the script")


def _serve(requests: socket.socket) -> "RunRequest | None":
    """Fork for each rank of each request. Return the request in forked processes, and None in the server when no more come."""
    from iotwin.workloads.detrain.verify.observed_run import RunRequest

    server = os.getpid()
    while message := requests.recv(_MOST_MESSAGE_BYTES):
        request = decode_foreign(message, RunRequest, "the request for a run")
        rank_of = {}
        for rank in range(request.ranks):
            if (child := os.fork()) == 0:
                die_with_parent(server, signal.SIGKILL)
                become_local_rank(rank, request.ranks, request.port)
                return msgspec.structs.replace(request, rank=rank)
            rank_of[child] = rank
        requests.send(msgspec.json.encode(_awaited(rank_of)))
    return None


def _awaited(rank_of: dict[int, int]) -> RunEnd:
    """Wait for the end of all processes, the keys of `rank_of`. If one fails, kill the others, which might wait for it."""
    end = RunEnd(0, 0)
    while rank_of:
        child, status = os.wait()
        rank = rank_of.pop(child)
        if status and not end.status:
            end = RunEnd(os.waitstatus_to_exitcode(status), rank)
            for other in rank_of:
                os.kill(other, signal.SIGKILL)
    return end


def main(descriptor: int) -> None:
    """Serve until the other end of the socket is closed. In a forked process, run the script."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # forked processes need not search these modules for garbage
    with socket.socket(fileno=descriptor) as requests:
        request = _serve(requests)
    if request is None:
        return
    with open_rewritten(path_of_rank(Path(request.output), request.rank)) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    end_process(exit_status_of(partial(_run, request)), [sys.modules["__main__"]])


def _run(request: "RunRequest") -> None:
    from iotwin.workloads.detrain.verify.observed_run import run

    try:
        run(request)
    except IotwinError as error:
        print(f"detrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main(int(sys.argv[1]))
