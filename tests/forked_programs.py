"""Programs in Python that tests start as processes, in forks of a process that has imported their packages."""

import atexit
import ctypes
import multiprocessing.process
import multiprocessing.util
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from iotwin.common.processes.process_end import exit_status_of
from tests.program_server import program_server, start_program

_PR_SET_CHILD_SUBREAPER = 36
_OF_PYTHON_ITSELF = ("PYTHONHASHSEED", "PYTHONOPTIMIZE", "LD_PRELOAD")  # what only a new interpreter heeds


class ForkedProgram(subprocess.Popen[Any]):
    """Acts as `Popen`, but runs a command [sys.executable, WORD...] in a fork: of `server`, or if that is None, of this process.

    A command with options of Python's other than -P, or with other variables that only a new interpreter heeds, is no fork.
    """

    server: ClassVar[Path | None] = None

    def _execute_child(  # type: ignore[no-untyped-def,override]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more,
    ):  # fmt: skip
        environment = os.environ if env is None else env
        words = [] if isinstance(args, str | bytes | os.PathLike) else [os.fsdecode(word) for word in args]
        unusual = pass_fds or shell or preexec_fn is not None or any(each is not None for each in more[1:4])
        if unusual or not _can_be_forked(words, environment):
            return super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more,
            )  # fmt: skip
        self._child_created = True
        folder, session = str(Path(os.fsdecode(cwd or ".")).absolute()), bool(more[5])
        streams = [number if used == -1 else used for number, used in enumerate((p2cread, c2pwrite, errwrite))]
        if self.server is not None:
            self.pid = start_program(self.server, words[1:], environment, folder, session, streams)
        else:
            self.pid = os.fork()
            if self.pid == 0:
                _become(words[1:], environment, folder, session, streams)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        return None


def _can_be_forked(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    if any(environment.get(name) != os.environ.get(name) for name in _OF_PYTHON_ITSELF):
        return False
    first = next((word for word in words[1:] if word != "-P"), "-")
    return words[:1] == [sys.executable] and (first in ("-m", "-c") or not first.startswith("-"))


@contextmanager
def programs_of(folder: Path, packages: Sequence[str], **variables: str) -> Iterator[type[ForkedProgram]]:
    """The class that starts programs in forks of a server that has imported the packages, with environment `variables`."""
    with program_server(folder, packages, os.environ | variables) as server:
        yield type("ServedProgram", (ForkedProgram,), {"server": server})


@contextmanager
def used_for_programs(program: type[subprocess.Popen[Any]]) -> Iterator[None]:
    """Use the class wherever Python starts a process. What a server forks is an orphan, which this process adopts meanwhile."""
    before = subprocess.Popen
    _adopt_orphans(True)
    subprocess.Popen = program  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]
        _adopt_orphans(False)


def _adopt_orphans(adopts: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _become(words: list[str], environment: Mapping[str, str], folder: str, session: bool, streams: Sequence[int]) -> None:
    status = 70
    try:
        if session:
            os.setsid()
        kept = [os.dup(stream) for stream in streams]
        for number, stream in enumerate(kept):
            os.dup2(stream, number)
        os.closerange(3, max(kept) + 1)
        status = run_python(words, environment, folder, forks=True)
    finally:
        os._exit(status)


def run_python(words: list[str], environment: Mapping[str, str], folder: str, forks: bool) -> int:
    """Run ``python WORD...`` in a process that begins anew, and return its exit status.

    The words are -m MODULE, -c CODE, or the path of a script, and the program's own, after -P or not.
    `forks`: the programs that it starts run in forks, too.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
    os.chdir(folder)
    added = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in added if path and path not in sys.path]
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)
    multiprocessing.process._children = set()  # type: ignore[attr-defined]
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)  # pytest has replaced both
    if forks:
        subprocess.Popen = ForkedProgram  # type: ignore[misc]
    status = exit_status_of(lambda: _run_main(words))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return status


def _run_main(words: list[str]) -> None:
    safe = words[0] == "-P"
    words = words[safe:]
    option, program = (words[0], words[1]) if words[0] in ("-m", "-c") else ("", words[0])
    sys.argv[:] = words[1 if option else 0 :]
    if not safe:
        sys.path.insert(0, str(Path.cwd() if option else Path(program).absolute().parent))
    if option == "-m":
        package = hasattr(sys.modules.get(program), "__path__")
        sys.modules.pop(f"{program}.__main__" if package else program, None)
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv[0] = option
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        runpy.run_path(program, run_name="__main__")
