"""Other tracers around a program that makes a known number of preads of 4 KiB; one that did not see them all has no time."""

import gzip
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iotwin.tracing_tools.backends.tracefs import with_tracefs

_WARM = 1024  # preads that preads.c makes before those that it times
_ROUNDS = 3
_START_S = 30.0

# As the artifact's read.bt: maps from entry to exit, the file's name, one printed line a call.
_BPFTRACE = """
tracepoint:syscalls:sys_enter_pread64 /comm == "preads"/ {
  @start[tid] = nsecs; @fd[tid] = args->fd; @size[tid] = args->count; @offset[tid] = args->pos; @name[tid] = comm;
}
tracepoint:syscalls:sys_exit_pread64 /@start[tid]/ {
  printf("%lu %d %d %s %d %lu %lu %d %lu\\n", nsecs, pid, tid, @name[tid], @fd[tid], @size[tid], @offset[tid], args->ret,
    nsecs - @start[tid]);
  delete(@start[tid]); delete(@fd[tid]); delete(@size[tid]); delete(@offset[tid]); delete(@name[tid]);
}
"""


@dataclass
class Traced:
    """What a tracer gave of one run: the program's own nanoseconds, the preads that the tracer wrote down, its last line."""

    nanoseconds: float
    seen: int
    last_line: str = ""


class NotMeasuredError(Exception):
    """The rival is missing, or did not trace; the text gives the reason."""


def own_ns(command: list[str], **environment: str) -> float:
    """Run the program and return the nanoseconds that it prints last; NotMeasuredError with its, or its tracer's, last line."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise NotMeasuredError(f"it ended with {done.returncode}: {last_line(done.stderr)}")
    return float(done.stdout.split()[-1])


def nanoseconds_a_call(run: Callable[[], Traced], preads: int) -> float:
    """Return the median over a few runs; NotMeasuredError when one of them did not write down every call, once."""
    values = []
    for _ in range(_ROUNDS):
        traced = run()
        if traced.seen != preads + _WARM:
            told = f"; its last line: {traced.last_line}" if traced.last_line else ""
            raise NotMeasuredError(f"it saw {traced.seen} of {preads + _WARM} calls{told}")
        values.append(traced.nanoseconds / preads)
    return float(np.median(values))


def last_line(text: str) -> str:
    """Return the last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")


def under_strace(command: list[str], directory: Path) -> Callable[[], Traced]:
    """Return a run under ``strace -f``."""
    _require("strace")
    out = directory / "strace"
    call = re.compile(r"^\d+ .*pread64\(.*, 4096, \d+\) += 4096 ", re.MULTILINE)

    def run() -> Traced:
        taken = own_ns(["strace", "-f", "-T", "-ttt", "-o", str(out), *command])
        text = out.read_text(errors="replace")
        return Traced(taken, len(call.findall(text)), last_line(text))

    return run


def under_perf(command: list[str], directory: Path) -> Callable[[], Traced]:
    """Return a run under ``perf trace``."""
    _require("perf")
    out = directory / "perf"
    call = re.compile(r"pread64\(.*\) += 4096$", re.MULTILINE)

    def run() -> Traced:
        taken = own_ns(with_tracefs(["perf", "trace", "-o", str(out), *command]))
        text = out.read_text(errors="replace")
        return Traced(taken, len(call.findall(text)), last_line(text))

    return run


def under_bpftrace(command: list[str], directory: Path, script: str = _BPFTRACE) -> Callable[[], Traced]:
    """Return a run under a script in the artifact's style."""
    _require("bpftrace")

    def run() -> Traced:
        with tempfile.NamedTemporaryFile("w+", dir=directory) as out:
            path = Path(out.name)
            tracer = subprocess.Popen(
                with_tracefs(["bpftrace", "-B", "full", "-e", script]),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "BPFTRACE_PERF_RB_PAGES": "4096"},
            )
            try:
                _wait_until_it_traces(tracer, path, [*command[:-1], "10"])
                job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                taken = float(job.communicate()[0])
            finally:
                _interrupt(tracer)
            text = path.read_text(errors="replace")
            call = re.compile(rf"^\d+ {job.pid} \d+ preads \d+ 4096 \d+ 4096 \d+$", re.MULTILINE)
            return Traced(taken, len(call.findall(text)), last_line(text))

    return run


def under_dftracer(command: list[str], directory: Path) -> Callable[[], Traced]:
    """Return a run under DFTracer's preloaded library, with metadata, from the Python that IOTWIN_DFTRACER_PYTHON names."""
    settings = dftracer_settings(directory / "dftracer", str(directory))

    def run() -> Traced:
        for earlier in directory.glob("dftracer*"):
            earlier.unlink()
        taken = own_ns(command, **settings)
        texts = [
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for path in directory.glob("dftracer*")
        ]
        seen = sum(len(re.findall(rb'"name":"pread(?:64)?"', text)) for text in texts)
        return Traced(taken, seen)

    return run


def dftracer_settings(log: Path, data: str) -> dict[str, str]:
    """Return the environment in which DFTracer logs a program's calls on files below `data` (or "all") to files called `log`-...

    NotMeasuredError where IOTWIN_DFTRACER_PYTHON names no Python that has it.
    """
    python = os.environ.get("IOTWIN_DFTRACER_PYTHON")
    if not python:
        raise NotMeasuredError("DFTracer (IOTWIN_DFTRACER_PYTHON) is not installed")
    code = "import dftracer, pathlib; print(next(pathlib.Path(dftracer.__file__).parent.rglob('libdftracer_preload.so')))"
    library = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return {
        "LD_PRELOAD": library,
        "DFTRACER_ENABLE": "1",
        "DFTRACER_INIT": "PRELOAD",
        "DFTRACER_INC_METADATA": "1",
        "DFTRACER_DATA_DIR": data,
        "DFTRACER_LOG_FILE": str(log),
    }


def _require(program: str) -> None:
    if not shutil.which(program):
        raise NotMeasuredError(f"{program} is not installed")


def _wait_until_it_traces(tracer: "subprocess.Popen[bytes]", out: Path, command: list[str]) -> None:
    """Run the program until the tracer, which writes when its buffer is full, has written of it."""
    deadline = time.monotonic() + _START_S
    while "preads" not in out.read_text(errors="replace"):
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise NotMeasuredError(f"it did not trace: {last_line(out.read_text(errors='replace'))}")
        own_ns(command)
        time.sleep(0.1)


def _interrupt(tracer: "subprocess.Popen[bytes]") -> None:
    """Have it write what it holds and end; bpftrace sometimes sleeps through a signal."""
    deadline = time.monotonic() + _START_S
    while tracer.poll() is None and time.monotonic() < deadline:
        tracer.send_signal(signal.SIGINT)
        try:
            tracer.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    tracer.kill()
    tracer.wait()
