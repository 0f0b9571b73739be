"""Runs a script many times, each time in a new process that a server with PyTorch forks.

``python -m iotwin.workloads.detrain.verify.script_runs DESCRIPTOR`` is the server. DESCRIPTOR is a socket for requests.
"""

import gc
import importlib
import os
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_rewritten
from iotwin.common.processes.process_end import end_process, exit_status_of
from iotwin.workloads.detrain.forked_runs import RunEnd, RunServer, serve
from iotwin.workloads.detrain.script_ranks import path_of_rank

if TYPE_CHECKING:
    from iotwin.workloads.detrain.verify.observed_run import RunRequest

# Modules that each run would import. The first optimizer imports torch._dynamo.
_IMPORTED = ("torch._dynamo", "iotwin.workloads.detrain.discover")


class ScriptRuns(RunServer):
    """Runs of a script, one at a time, in processes that have `variables` in their environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(__name__, [], os.environ | variables)

    def run(self, request: "RunRequest") -> RunEnd:
        """Run the script, in all its ranks. Raises IotwinError if the server has died."""
        self.send(request)
        return self.receive(RunEnd)


def main(descriptor: int) -> None:
    """Serve until the other end of the socket is closed. In a forked process, run the script."""
    from iotwin.workloads.detrain.verify.observed_run import RunRequest

    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # forked processes need not search these modules for garbage
    with socket.socket(fileno=descriptor) as requests:
        request = serve(requests, RunRequest)
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
