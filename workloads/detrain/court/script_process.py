"""Runs the script in forked processes: a server imports the script's packages once, and forks for each run.

``python -m iotwin.workloads.detrain.court.script_process DESCRIPTOR [NAME...]`` is the server. DESCRIPTOR is a socket for
requests. For each request the server sends the descriptor of the run's held calls, and later how the run ended.
"""

import ast
import builtins
import contextlib
import gc
import importlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_rewritten
from iotwin.common.processes.process_end import end_process, exit_status_of
from iotwin.common.untrusted_files import read_foreign
from iotwin.workloads.detrain.court.held_calls import CallHolder, HeldCall, hold_own_calls
from iotwin.workloads.detrain.forked_runs import RunEnd, RunOfRanks, RunServer, serve
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES
from iotwin.workloads.detrain.script_ranks import path_of_rank

_POLL_S = 0.2
_HASH_SEED = "PYTHONHASHSEED"
# If it is set, PyTorch looks for GPUs without starting CUDA. A process that is forked after CUDA has started cannot use it.
_CUDA_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


class Run(RunOfRanks, frozen=True, kw_only=True):
    """How to run a script. `folder`: its current folder; `log`: file for its updates; `killed_after`: see `observe`."""

    script: str
    arguments: list[str]
    folder: str
    log: str
    output: str  # file for what it prints
    errors: str
    seed: int
    holds_calls: bool
    killed_after: int | None = None


class _Started(msgspec.Struct):
    """The process group of a run."""

    group: int


class _Ready(msgspec.Struct):
    """Sent by a server that has imported its modules. `threads`: how many threads it has."""

    threads: int


class ScriptProcesses(RunServer):
    """Runs scripts, one at a time. `hash_seed`: value of PYTHONHASHSEED; `names`: modules to import first (`imported_names`)."""

    def __init__(self, names: Sequence[str], hash_seed: int) -> None:
        environment = {_HASH_SEED: str(hash_seed), _CUDA_CHECK: "1", **os.environ}
        super().__init__(__name__, names, environment, subprocess.DEVNULL)
        self._is_ready = False

    def run(self, run: Run, on_call: Callable[[HeldCall], bool], limit_s: float) -> RunEnd:
        """Run the script. `on_call` gets each held call; if it returns True, all processes of the run are killed before the call.

        The run is killed too if it takes longer than `limit_s` seconds. Raises IotwinError if the run cannot be started.
        """
        self._await_server()
        self.send(run)
        holders: dict[int, CallHolder] = {}
        group = 0
        try:
            for _ in range(run.ranks):
                begun, descriptors = self.receive_files(_Started)
                holders |= {each: CallHolder(each) for each in descriptors}
                group = begun.group
            return self._follow(group, holders, on_call, limit_s)
        finally:
            if group:
                _kill_group(group)  # workers that outlived their parent
            for holder in holders.values():
                holder.close()

    def _await_server(self) -> None:
        """Wait until the server has imported its modules."""
        if not self._is_ready and self.receive(_Ready).threads > 1 and self._arguments:  # a fork would copy only one thread
            self.close()
            self.start([])
            self.receive(_Ready)
        self._is_ready = True

    def _follow(self, group: int, holders: dict[int, CallHolder], on_call: Callable[[HeldCall], bool], limit_s: float) -> RunEnd:
        """Answer the held calls of all ranks until the run ends. `holders`: by their descriptors."""
        deadline, timed_out = time.monotonic() + limit_s, False
        sources = select.poll()
        for descriptor in (self._socket.fileno(), *holders):
            sources.register(descriptor, select.POLLIN)
        while True:
            ready = dict(sources.poll(_POLL_S * 1000))
            if self._socket.fileno() in ready:
                ended = self.receive(RunEnd)
                return msgspec.structs.replace(ended, timed_out=timed_out)
            for descriptor, event in ready.items():
                if not event & select.POLLIN:  # all processes of this rank have ended
                    sources.unregister(descriptor)
                elif call := holders[descriptor].receive():
                    if on_call(call):
                        _kill_group(group)
                    else:
                        holders[descriptor].let_go(call)
            if time.monotonic() > deadline and not timed_out:
                timed_out = True
                _kill_group(group)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def imported_names(script: Path) -> list[str]:
    """Return what the script imports from installed packages, each as MODULE or MODULE:NAME, for a server to import beforehand.

    NAME is imported too, since some packages import their parts only at its first use. Returns [] if the script sets environment
    variables, since packages may read these when they are imported.
    """
    source = read_foreign(script, MOST_SOURCE_BYTES)
    if b"environ" in source or b"putenv" in source:
        return []
    try:
        tree = ast.parse(source, str(script))
    except (SyntaxError, ValueError) as error:
        raise IotwinError(f"{script}: is no Python program ({error})") from None
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}:{alias.name}" for alias in node.names]
    own = {path.stem for path in script.parent.iterdir()} | set(sys.stdlib_module_names)
    return list(dict.fromkeys(name for name in names if re.split("[.:]", name)[0] not in own))


def _prepare(run: Run, requests: socket.socket) -> None:
    """Enter the run's folder, log its updates of weights, and let the kernel hold its calls that change files until released."""
    from iotwin.workloads.detrain.court.update_log import observe

    os.chdir(run.folder)
    for target, path in ((1, run.output), (2, run.errors)):
        with open_rewritten(path_of_rank(Path(path), run.rank)) as file:
            os.dup2(file.fileno(), target)
    observe(path_of_rank(Path(run.log), run.rank), run.seed, None if run.rank else run.killed_after)
    listener = [hold_own_calls()] if run.holds_calls else []
    socket.send_fds(requests, [msgspec.json.encode(_Started(os.getpgrp()))], listener)
    for descriptor in listener:
        os.close(descriptor)
    requests.close()


def _execute(script: Path, arguments: Sequence[str]) -> None:
    """Run the script as Python does."""
    main = ModuleType("__main__")
    main.__file__, main.__dict__["__builtins__"] = str(script), builtins
    sys.modules["__main__"] = main
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.parent)
    exec(compile(read_foreign(script, MOST_SOURCE_BYTES), str(script), "exec"), main.__dict__)  # noqa: S102 - the user's script


def main() -> None:
    """Serve until the socket is closed; in each forked process, run the script."""
    descriptor, *names = sys.argv[1:]
    requests = socket.socket(fileno=int(descriptor))
    for name in names:
        with contextlib.suppress(Exception):  # the script will report the same failure
            module, _, attribute = name.partition(":")
            getattr(importlib.import_module(module), attribute or "__name__", None)
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # takes seconds, and the first optimizer imports it
    gc.freeze()  # forked processes need not search these modules for garbage
    requests.send(msgspec.json.encode(_Ready(threading.active_count())))
    run = serve(requests, Run)
    if run is None:
        return
    _prepare(run, requests)
    imported = set(sys.modules)
    status = exit_status_of(lambda: _execute(Path(run.script), run.arguments))
    end_process(status, [module for name, module in sys.modules.items() if name == "__main__" or name not in imported])


if __name__ == "__main__":
    main()
