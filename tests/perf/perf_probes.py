"""What the kernel side costs, beside its rivals, and what the recorder needs: start-up, sustained rate, memory, finishing."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.perf.figures import Figure, interleaved
from tests.perf.floor import floor_attached
from tests.perf.made_up import peak_megabytes
from tracing_tools.backends.libbpf import LibbpfBackend
from tracing_tools.capture import Options, trace_command
from tracing_tools.targets.cgroup import JobCgroup
from tracing_tools.trace.reader import Trace

_HERE = Path(__file__).parent
_ROUNDS = 9
_PREADS = 100_000
_GETPPIDS = 1_000_000
_SUSTAINED_S = int(os.environ.get("IOTWIN_PERF_SUSTAINED_S", "20"))
_FINISHED_EVENTS = int(os.environ.get("IOTWIN_PERF_FINISHED_EVENTS", "10000000"))

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


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        directory = Path(name)
        for program in ("preads", "load"):
            subprocess.run(["cc", "-O2", "-o", directory / program, _HERE / f"{program}.c"], check=True)
        yield from _rivals(directory)
        yield from _neighbour(directory)
        yield _start_up(directory)
        yield from _sustained(directory)
        yield from _finish(directory)


def _rivals(directory: Path) -> Iterator[Figure]:
    """Time that each rival adds to cached preads of 4 KiB, over the time that we add."""
    data = directory / "cached"
    data.write_bytes(os.urandom(1 << 20))
    command = [str(directory / "preads"), str(data), "4096", str(_PREADS)]
    few = [*command[:-1], str(_PREADS // 50)]  # for the rivals that take a tenth of a millisecond a call

    def plain() -> float:
        return _own_ns(command) / _PREADS

    def ours() -> float:
        trace_command(command, directory / "rivals.trace", Options(forward_output=False, force=True))
        return float((directory / "rivals.trace" / "logs" / "stdout").read_text()) / _PREADS

    untraced, traced = interleaved(_ROUNDS, plain, ours)
    base = float(np.median(untraced))
    added = float(np.median(traced)) - base
    rivals: dict[str, tuple[float, Callable[[], float] | None, str]] = {
        "bpftrace scripts in the artifact's style": (15, _under_bpftrace(command), "bpftrace"),
        "strace -f": (200, _under(["strace", "-f", "-T", "-ttt", "-o", str(directory / "strace")], few), "strace"),
        "perf trace": (100, _under(["perf", "trace", "-o", str(directory / "perf")], few), "perf"),
        "DFTracer with metadata": (8, _under_dftracer(command, directory), "DFTracer (IOTWIN_DFTRACER_PYTHON)"),
    }
    for name, (bound, run, needed) in rivals.items():
        if run is None:
            yield Figure(f"added time of {name} / ours", float("nan"), detail=f"not measured: {needed} is not installed")
            continue
        value = float(np.median([run() for _ in range(3)])) - base
        detail = f"{value:.0f} ns against {added:.0f} ns a call, untraced {base:.0f} ns"
        yield Figure(f"added time of {name} / ours", value / added, bound, at_most=False, detail=detail)


def _own_ns(command: list[str], **environment: str) -> float:
    result = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    return float(result.stdout.split()[-1])


def _under(tracer: list[str], command: list[str]) -> Callable[[], float] | None:
    return (lambda: _own_ns([*tracer, *command]) / int(command[-1])) if shutil.which(tracer[0]) else None


def _under_bpftrace(command: list[str]) -> Callable[[], float] | None:
    if not shutil.which("bpftrace"):
        return None

    def run() -> float:
        with tempfile.NamedTemporaryFile("w+") as out, tempfile.NamedTemporaryFile("w") as errors:
            tracer = subprocess.Popen(["bpftrace", "-B", "none", "-e", _BPFTRACE], stdout=out, stderr=errors)
            try:
                few = [*command[:-1], "10"]
                while not Path(out.name).stat().st_size > 1000 and tracer.poll() is None:  # it tells when it sees something
                    _own_ns(few)
                    time.sleep(0.1)
                return _own_ns(command) / int(command[-1])
            finally:
                tracer.kill()
                tracer.wait()

    return run


def _under_dftracer(command: list[str], directory: Path) -> Callable[[], float] | None:
    python = os.environ.get("IOTWIN_DFTRACER_PYTHON")
    if not python:
        return None
    code = "import dftracer, pathlib; print(next(pathlib.Path(dftracer.__file__).parent.rglob('libdftracer_preload.so')))"
    library = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    settings = {
        "LD_PRELOAD": library, "DFTRACER_ENABLE": "1", "DFTRACER_INIT": "PRELOAD", "DFTRACER_INC_METADATA": "1",
        "DFTRACER_DATA_DIR": str(directory), "DFTRACER_LOG_FILE": str(directory / "dftracer"),
    }  # fmt: skip
    return lambda: _own_ns(command, **settings) / int(command[-1])


def _neighbour(directory: Path) -> Iterator[Figure]:
    """Nanoseconds more per system call of a process that is not traced, with the probes attached for another's cgroup.

    Also what each further tracer adds, of several jobs that are traced at once.
    """
    command = [str(directory / "load"), "getppid", str(_GETPPIDS)]
    group = JobCgroup.create()
    if isinstance(group, str):
        yield Figure("an untraced neighbour: ns more per call", float("nan"), detail=f"not measured: {group}")
        return

    def beside(tracers: int) -> float:
        backends = [LibbpfBackend(group.scope) for _ in range(tracers)]
        for backend in backends:
            backend.start()
        try:
            return _own_ns(command) / _GETPPIDS
        finally:
            for backend in backends:
                backend.stop(None)

    def beside_nothing() -> float:
        with floor_attached("nothing", directory):
            return _own_ns(command) / _GETPPIDS

    try:
        alone, together, crowded, least = interleaved(
            _ROUNDS, lambda: beside(0), lambda: beside(1), lambda: beside(3), beside_nothing
        )
    finally:
        group.remove()
    more = float(np.median(together) - np.median(alone))
    detail = (
        f"getppid takes {np.median(alone):.0f} ns alone, {np.median(together):.0f} ns beside, "
        f"{np.median(least):.0f} ns beside programs that do nothing; {_ROUNDS} rounds"
    )
    yield Figure("an untraced neighbour: ns more per call", more, 50, detail=detail)
    further = float(np.median(crowded) - np.median(together)) / 2
    yield Figure(
        "each further job traced at once (--jobs): ns more per call", further, detail="of any process; of the second and third"
    )


def _start_up(directory: Path) -> Figure:
    """Seconds from starting iotwin to the first instruction of the command."""
    command = [sys.executable, "-m", "iotwin.main", "trace", "--quiet", "--force", "-o", str(directory / "start.trace"), "--"]
    taken = []
    for _ in range(_ROUNDS):
        begin_ns = time.monotonic_ns()
        subprocess.run([*command, directory / "load", "now"], check=True, capture_output=True)
        taken.append((int((directory / "start.trace" / "logs" / "stdout").read_text()) - begin_ns) / 1e9)
    return Figure("start-up: seconds until the command runs", float(np.median(taken)), 0.5, detail=f"of {_ROUNDS} runs")


def _sustained(directory: Path) -> Iterator[Figure]:
    """Two readers and two writers as fast as they can: every call is recorded, or counted as lost."""
    path = directory / "sustained.trace"
    command = [sys.executable, "-m", "iotwin.main", "trace", "--quiet", "-o", str(path), "--"]
    tracer = subprocess.Popen([*command, directory / "load", "busy", directory / "busy", str(_SUSTAINED_S)])
    memory = 0.0
    while tracer.poll() is None:
        memory = peak_megabytes(tracer.pid) or memory
        time.sleep(0.05)
    trace = Trace(path)
    made = int((path / "logs" / "stdout").read_text())
    recorded = trace.manifest.counts["pread64"] + trace.manifest.counts["pwrite64"]
    lost = trace.manifest.lost_events
    # The loader preads a few headers of its own.
    unaccounted = max(made - recorded - lost, 0)
    rate = made / _SUSTAINED_S
    detail = f"{made} calls in {_SUSTAINED_S} s, {rate / 1e3:.0f} thousand a second, {lost} counted as lost"
    yield Figure("two readers, two writers: calls neither recorded nor counted as lost", unaccounted, 0, detail=detail)
    size = sum(part.stat().st_size for part in (path / "events.parquet").iterdir())
    yield Figure("stored bytes per event", size / trace.manifest.events, 12, detail=f"{trace.manifest.events} events of that run")
    yield Figure("tracer's memory: MB at most, recording and finishing that run", memory, 150)


def _finish(directory: Path) -> Iterator[Figure]:
    """Finish a made-up recording of data loaders in a process of its own, to see its memory."""
    code = f"from tests.perf.made_up import finish_made_up; finish_made_up({str(directory / 'made')!r}, {_FINISHED_EVENTS})"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    seconds, megabytes = map(float, result.stdout.split())
    detail = f"{_FINISHED_EVENTS} preads of two processes on {_FINISHED_EVENTS // 5000} files"
    yield Figure("finishing ten million events: seconds", seconds, 20, detail=detail)
    yield Figure("finishing them: MB of memory at most", megabytes, 150)


if __name__ == "__main__":
    for figure in measure():
        print(figure.line(), flush=True)
