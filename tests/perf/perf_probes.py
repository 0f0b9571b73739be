"""The cost of the kernel side, compared with rivals, and of the recorder: start-up, sustained rate, memory, finishing."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends.libbpf import LibbpfBackend
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.tracing_tools.targets.cgroup import JobCgroup
from tests.perf.figures import Figure, interleaved
from tests.perf.floor import floor_attached
from tests.perf.made_up import peak_megabytes
from tests.perf.rivals import (
    NotMeasuredError,
    Traced,
    nanoseconds_a_call,
    own_ns,
    under_bpftrace,
    under_dftracer,
    under_perf,
    under_strace,
)

_HERE = Path(__file__).parent
_ROUNDS = 9
_PREADS = 100_000
_GETPPIDS = 1_000_000
_SUSTAINED_S = int(os.environ.get("IOTWIN_PERF_SUSTAINED_S", "20"))
_RING_S = int(os.environ.get("IOTWIN_PERF_RING_S", "60"))
_METRIC_ROUNDS = 3
_BLOCK_BYTES, _BLOCKS = 4096, 4096  # of load.c
_FINISHED_EVENTS = int(os.environ.get("IOTWIN_PERF_FINISHED_EVENTS", "10000000"))


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
        yield from _ring(directory)
        yield from _metrics(directory)
        yield from _finish(directory)


def _rivals(directory: Path) -> Iterator[Figure]:
    """Time that each rival adds to cached preads of 4 KiB, over the time that we add."""
    data = directory / "cached"
    data.write_bytes(os.urandom(1 << 20))
    command = [str(directory / "preads"), str(data), "4096", str(_PREADS)]
    few = [*command[:-1], str(_PREADS // 50)]  # for the rivals that take a tenth of a millisecond a call

    def plain() -> float:
        return own_ns(command) / _PREADS

    def ours() -> float:
        trace_command(command, directory / "rivals.trace", TraceOptions(forward_output=False, force=True))
        return float((directory / "rivals.trace" / "logs" / "stdout").read_text()) / _PREADS

    untraced, traced = interleaved(_ROUNDS, plain, ours)
    base = float(np.median(untraced))
    added = float(np.median(traced)) - base
    rivals: dict[str, tuple[float, Callable[[list[str], Path], Callable[[], Traced]], list[str]]] = {
        "bpftrace scripts in the artifact's style": (15, under_bpftrace, command),
        "strace -f": (200, under_strace, few),
        "perf trace": (100, under_perf, few),
        "DFTracer with metadata": (8, under_dftracer, command),
    }
    for name, (bound, under, rival_command) in rivals.items():
        try:
            value = nanoseconds_a_call(under(rival_command, directory), int(rival_command[-1])) - base
        except NotMeasuredError as reason:
            yield Figure(f"added time of {name} / ours", float("nan"), detail=f"not measured: {reason}")
            continue
        detail = f"{value:.0f} ns against {added:.0f} ns a call, untraced {base:.0f} ns"
        yield Figure(f"added time of {name} / ours", value / added, bound, at_most=False, detail=detail)


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
            return own_ns(command) / _GETPPIDS
        finally:
            for backend in backends:
                backend.stop(None)

    def beside_nothing() -> float:
        with floor_attached("nothing", directory):
            return own_ns(command) / _GETPPIDS

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
    command = [sys.executable, "-m", "iotwin", "trace", "--quiet", "--force", "-o", str(directory / "start.trace"), "--"]
    taken = []
    for _ in range(_ROUNDS):
        begin_ns = time.monotonic_ns()
        subprocess.run([*command, directory / "load", "now"], check=True, capture_output=True)
        taken.append((int((directory / "start.trace" / "logs" / "stdout").read_text()) - begin_ns) / 1e9)
    return Figure("start-up: seconds until the command runs", float(np.median(taken)), 0.5, detail=f"of {_ROUNDS} runs")


def _sustained(directory: Path) -> Iterator[Figure]:
    """Two readers and two writers as fast as they can: every call is recorded, or counted as lost."""
    path = directory / "sustained.trace"
    command = [sys.executable, "-m", "iotwin", "trace", "--quiet", "-o", str(path), "--"]
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


def _ring(directory: Path) -> Iterator[Figure]:
    """Two readers and two writers as fast as they can, of which a ring of 1 GiB keeps the newest calls."""
    path = directory / "ring.trace"
    command = [sys.executable, "-m", "iotwin", "trace", "--quiet", "--ring", "1GiB", "-o", str(path), "--"]
    tracer = subprocess.Popen([*command, directory / "load", "busy", directory / "busy", str(_RING_S)])
    memory = disk = 0.0
    while tracer.poll() is None:
        memory = peak_megabytes(tracer.pid) or memory
        sizes = [_size_of(file) for file in path.glob("raw/segment-*/*")]
        disk = max(disk, sum(sizes) / (1 << 30))
        time.sleep(0.05)
    trace = Trace(path)
    made, manifest = int((path / "logs" / "stdout").read_text()), trace.manifest
    kept = manifest.ring
    assert kept is not None and manifest.seen is not None
    detail = (
        f"{made} calls in {_RING_S} s, {made / _RING_S / 1e3:.0f} thousand a second: {manifest.events} kept, "
        f"{kept.overwritten_events} overwritten, {manifest.lost_events} lost; those of the last "
        f"{(manifest.end_ns - kept.kept_from_ns) / 1e9:.1f} s are kept"
    )
    accounted = manifest.events + kept.overwritten_events + manifest.lost_events
    others = manifest.seen - made  # calls of the loader and of the program's start
    yield Figure(
        "ring under full load: calls not accounted for", abs(manifest.seen - accounted) + max(-others, 0), 0, detail=detail
    )
    yield Figure("ring under full load: calls lost between the kept ones, or kept twice", _gaps(trace), 0, detail=detail)
    yield Figure("ring under full load: share of calls lost", manifest.lost_events / made, detail=detail)
    yield Figure(
        "ring under full load: GiB on disk at most, of 1 GiB", disk, 1 + 1 / 16, detail=f"tracer's memory {memory:.0f} MB"
    )


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # overwritten meanwhile


def _gaps(trace: Trace) -> int:
    """Return how many times a process's next kept call is not on the next block. Each of its calls is on the next one."""
    events = trace.events_frame(("start_ns", "op", "pid", "offset"))
    calls = events[events["op"].isin(["pread64", "pwrite64"])].sort_values(["pid", "start_ns"], kind="stable")
    block, pid = calls["offset"].to_numpy() // _BLOCK_BYTES, calls["pid"].to_numpy()
    return int(((np.diff(block) % _BLOCKS != 1) & (np.diff(pid) == 0)).sum())


def _metrics(directory: Path) -> Iterator[Figure]:
    """CPU of the tracer, its display process included, with and without --metrics, for each call of the same load."""
    rates: list[list[float]] = [[], []]

    def cost(metrics: str | None) -> float:
        command = [str(directory / "load"), "busy", str(directory / "busy"), "5"]
        options = TraceOptions(forward_output=False, force=True, metrics=metrics)
        manifest = trace_command(command, directory / "metrics.trace", options)
        rates[metrics is not None].append(int((directory / "metrics.trace" / "logs" / "stdout").read_text()) / 5e3)
        return manifest.cost.tracer_cpu_ns / manifest.events

    without, under = interleaved(_METRIC_ROUNDS, lambda: cost(None), lambda: cost(str(directory / "load.prom")))
    detail = (
        f"{np.median(without):.0f} and {np.median(under):.0f} ns a call; {np.median(rates[0]):.0f} and {np.median(rates[1]):.0f} "
        f"thousand calls a second, which fill all CPUs; {_METRIC_ROUNDS} rounds"
    )
    yield Figure(
        "tracer's CPU time for a call: with --metrics / without", float(np.median(under) / np.median(without)), detail=detail
    )
    yield Figure(
        "calls a second of a job that fills all CPUs: with --metrics / without", float(np.median(rates[1]) / np.median(rates[0]))
    )


def _finish(directory: Path) -> Iterator[Figure]:
    """Finish a synthetic recording of data loaders in a separate process, to measure its memory."""
    code = f"from tests.perf.made_up import finish_made_up; finish_made_up({str(directory / 'made')!r}, {_FINISHED_EVENTS})"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    seconds, megabytes = map(float, result.stdout.split())
    detail = f"{_FINISHED_EVENTS} preads of two processes on {_FINISHED_EVENTS // 5000} files"
    yield Figure("finishing ten million events: seconds", seconds, 20, detail=detail)
    yield Figure("finishing them: MB of memory at most", megabytes, 150)
