"""Runs scripts, plain or by `python -m iotwin.workloads.detrain`, each in its own process, which need not import PyTorch anew."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

# What the server runs. Its code has no file, so none of its frames is taken for the script's. A run ends as Python ends, but for
# the collection of all that PyTorch's import has made, which takes longer than most runs. A run that hangs prints the stacks of
# its threads as errors, and ends with status 1.
_PROGRAM = """
import atexit, faulthandler, gc, json, os, runpy, sys
import torch._dynamo
from iotwin.common.processes.process_end import exit_status_of
from iotwin.workloads.detrain import discover, runner, session, steps_log
from iotwin.workloads.detrain.__main__ import main

for name in sys.argv[1:]:
    __import__(name)
gc.freeze()
parent = os.getpid()
for line in sys.stdin:
    children = []
    for request in json.loads(line):
        children.append(os.fork())
        if not children[-1]:
            break
    if os.getpid() != parent:
        break
    print(json.dumps(children), flush=True)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
if os.getpid() != parent:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    faulthandler.dump_traceback_later(150, exit=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["folder"])
    os.environ.update(request["variables"])
    sys.argv[1:] = request["arguments"]
    if request["plain"]:
        del sys.argv[0]
        main = lambda: runpy.run_path(sys.argv[0], run_name="__main__")
    status = exit_status_of(main)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)
"""


class Ended(NamedTuple):
    """A run that has ended: its exit status (-signal if one ended it), and what it printed."""

    status: int
    out: str
    err: str


class ScriptServer:
    """Starts runs, one at a time, in `folder`, into which their output goes. `imported`: packages that the scripts import too."""

    def __init__(self, folder: Path, imported: Sequence[str] = ()) -> None:
        self.folder, self._imported = folder, imported
        self.pid = 0  # of the run that was started last

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *self._imported],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        return self

    def __exit__(self, *exception: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # runs that are left, too
        self._process.communicate()

    def _pipe(self, name: str) -> IO[str]:
        pipe: IO[str] | None = getattr(self._process, name)
        assert pipe is not None
        return pipe

    def start(self, arguments: Sequence[object], plain: bool = False, **variables: str) -> int:
        """Start a run with environment `variables`, and return the id of its process. `plain`: the script without detrain."""
        self.pid = self.start_ranks(arguments, [variables], plain)[0]
        return self.pid

    def start_ranks(self, arguments: Sequence[object], variables: Sequence[Mapping[str, str]], plain: bool = False) -> list[int]:
        """Start a process for each of `variables`, and return their ids. Output of later ones goes to out.txt.1, err.txt.1 ..."""
        requests: list[dict[str, Any]] = [
            {
                "arguments": list(map(str, arguments)), "variables": dict(each), "folder": str(self.folder),
                "plain": plain,
                **{name: str(self._output(name, rank)) for name in ("out", "err")},
            }
            for rank, each in enumerate(variables)
        ]  # fmt: skip
        for request in requests:  # so that nobody reads what an earlier run printed
            for name in ("out", "err"):
                Path(request[name]).write_text("")
        print(json.dumps(requests), file=self._pipe("stdin"), flush=True)
        pids: list[int] = json.loads(self._pipe("stdout").readline())
        return pids

    def _output(self, name: str, rank: int) -> Path:
        return self.folder / (f"{name}.txt.{rank}" if rank else f"{name}.txt")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the run that was started last."""
        os.kill(self.pid, number)

    def wait(self) -> Ended:
        """Wait for the end of the run."""
        return self.wait_ranks()[0]

    def wait_ranks(self) -> list[Ended]:
        """Wait for the end of all processes that were started together."""
        statuses = json.loads(self._pipe("stdout").readline())
        files = ([self._output(name, rank).read_text() for name in ("out", "err")] for rank in range(len(statuses)))
        return [Ended(status, *texts) for status, texts in zip(statuses, files, strict=True)]

    def run(self, arguments: Sequence[object], plain: bool = False, **variables: str) -> Ended:
        """Start a run and wait for its end."""
        self.start(arguments, plain, **variables)
        return self.wait()
