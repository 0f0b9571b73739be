"""Programs in Python that run in forks of a process which has their packages, since importing PyTorch takes seconds."""

import atexit
import multiprocessing.process
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
from typing import Any

from iotwin.common.processes.process_end import exit_status_of


class ForkedProgram(subprocess.Popen[Any]):
    """Forks this process if the command is [sys.executable, "-m", MODULE, OPTION...], or the same with -P, else acts as `Popen`.

    The program must not use several threads in PyTorch: those of the tests' process do not survive a fork.
    """

    def _execute_child(  # type: ignore[no-untyped-def,override]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more,
    ):  # fmt: skip
        words = [] if isinstance(args, str | bytes) else [os.fsdecode(word) for word in args if word != "-P"]
        if words[:2] != [sys.executable, "-m"] or pass_fds or shell:
            return super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more,
            )  # fmt: skip
        self._child_created = True
        self.pid = os.fork()
        if self.pid:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
            return None
        status = 70
        try:
            if preexec_fn is not None:
                preexec_fn()
            for number, descriptor in enumerate((p2cread, c2pwrite, errwrite)):
                if descriptor != -1:
                    os.dup2(descriptor, number)
            for descriptor in (p2cwrite, c2pread, errread):
                if descriptor != -1:
                    os.close(descriptor)
            os.chdir(cwd or ".")
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            status = run_python(words[1:])
        finally:
            os._exit(status)


def run_python(words: list[str]) -> int:
    """Run ``python WORD...`` in a process that begins anew, and return its exit status.

    The words are -m MODULE, -c CODE, or the path of a script, and the program's own.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)
    multiprocessing.process._children = set()  # type: ignore[attr-defined]
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)  # pytest has replaced both
    status = exit_status_of(lambda: _run_main(words))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return status


def _run_main(words: list[str]) -> None:
    option, program = (words[0], words[1]) if words[0] in ("-m", "-c") else ("", words[0])
    sys.argv[:] = words[1 if option else 0 :]
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
