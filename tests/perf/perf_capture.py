"""What tracing costs and keeps: cached preads in C, a real training run, and a killed tracer."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from iotwin.trace_store.raw.finish import recover_trace
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure, interleaved, median_ratio, paired_ratio
from tests.perf.floor import floor_attached
from tests.perf.perf_twin import JOB, generate_data

_PREADS = 100_000
_WARM = 1024  # in preads.c
_ROUNDS = 9
_TRAINING_PAIRS = 9
_QUIET = TraceOptions(forward_output=False)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        directory = Path(name)
        yield from _preads(directory)
        yield from _counts(directory)
        yield _killed(directory)
        yield from _training(directory)


def _preads(directory: Path) -> Iterator[Figure]:
    program, data = directory / "preads", directory / "cached"
    subprocess.run(["cc", "-O2", "-o", program, Path(__file__).with_name("preads.c")], check=True)
    data.write_bytes(os.urandom(64 << 20))
    for size, count, bound in ((4096, _PREADS, 1.55), (65536, 20_000, 1.03), (1 << 20, 2_000, 1.01)):
        command = [str(program), str(data), str(size), str(count)]
        kept: list[int] = []

        def untraced(command: list[str] = command) -> float:
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

        def traced(command: list[str] = command, kept: list[int] = kept) -> float:
            trace_directory = directory / "preads.trace"
            manifest = trace_command(command, trace_directory, TraceOptions(forward_output=False, force=True))
            kept.append(manifest.counts["pread64"] if not manifest.lost_events else -manifest.lost_events)
            return float((trace_directory / "logs" / "stdout").read_text())

        def least(command: list[str] = command) -> float:
            with floor_attached("clock", directory):
                return untraced(command)

        plain, floor_ns, under = interleaved(_ROUNDS, untraced, least, traced)
        # The dynamic loader preads a few headers of its own before main.
        whole = all(0 <= calls - count - _WARM < 10 for calls in kept)
        floor = f"programs that only read the clock {median_ratio(floor_ns, plain):.3f}"
        detail = f"{floor}; {count} preads, {_ROUNDS} rounds; {'none lost, each recorded once' if whole else f'recorded {kept}'}"
        yield Figure(f"cached preads of {size >> 10} KiB: traced / untraced", median_ratio(under, plain), bound, detail=detail)
        if not whole:
            yield Figure(f"cached preads of {size >> 10} KiB: runs not whole", 1, 0)


def _counts(directory: Path) -> Iterator[Figure]:
    """Calls that the trace counts otherwise than the program itself, or than strace -c; across fork, threads and exec."""
    program, data = directory / "calls", directory / "calls.data"
    source = Path(__file__).parents[1] / "tracing_tools" / "calls.c"
    subprocess.run(["cc", "-O1", "-pthread", "-o", program, source], check=True)
    data.write_bytes(bytes(16384))
    command = [str(program), str(data), "200", str(directory / "calls.counts")]
    manifest = trace_command(command, directory / "calls.trace", _QUIET)
    trace = Trace(directory / "calls.trace")
    own = dict(line.split() for line in (trace.path / "logs" / "stdout").read_text().splitlines())
    files, events = trace.files(), trace.events_frame()
    on_data = events[events["file_id"].isin(files.loc[files["path"] == str(data), "file_id"])]
    seen = on_data["op"].astype(str).replace({"openat": "open"}).value_counts().to_dict()
    differing = {op: (seen.get(op, 0), int(count)) for op, count in own.items() if seen.get(op, 0) != int(count)}
    detail = f"{sum(map(int, own.values()))} calls of {', '.join(own)}" if not differing else f"(traced, own): {differing}"
    yield Figure("operations counted otherwise than by the program itself", len(differing), 0, detail=detail)

    summary = directory / "calls.strace"
    subprocess.run(["strace", "-f", "-c", "-o", summary, *command], check=True, capture_output=True)
    fields = [line.split() for line in summary.read_text().splitlines()]
    oracle = {row[-1]: int(row[3]) for row in fields if len(row) >= 5 and row[3].isdecimal()}
    checked = ("read", "write", "openat", "close", "fsync")
    differing = {op: (manifest.counts[op], oracle[op]) for op in checked if manifest.counts[op] != oracle[op]}
    detail = ", ".join(f"{op} {oracle[op]}" for op in checked) if not differing else f"(traced, strace): {differing}"
    yield Figure("operations counted otherwise than by strace -c", len(differing), 0, detail=detail)


def _training(directory: Path) -> list[Figure]:
    data = generate_data(directory)
    command = [sys.executable, "-m", "iotwin.workloads.unet3d", "--data", str(data), "--output", str(directory / "out"), *JOB]

    def untraced() -> float:
        begin = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        return time.monotonic() - begin

    def traced() -> float:
        manifest = trace_command(command, directory / "training.trace", TraceOptions(forward_output=False, force=True))
        assert manifest.exit_status == 0 and not manifest.lost_events
        costs.append(manifest.cost.tracer_cpu_ns / manifest.cost.wall_ns)
        return manifest.cost.wall_ns / 1e9

    costs: list[float] = []
    plain, under = interleaved(_TRAINING_PAIRS, untraced, traced)
    ratio = paired_ratio(under, plain)
    seconds = f"{', '.join(f'{a:.1f}' for a in plain)} s untraced; {', '.join(f'{b:.1f}' for b in under)} s traced"
    return [
        Figure("unet3d training: traced / untraced", ratio, 1.02, detail=seconds),
        Figure("tracer's own processor time, share of one CPU", sorted(costs)[len(costs) // 2], detail="during that training"),
    ]


def _killed(directory: Path) -> Figure:
    """How long before the tracer's death the last recovered event lies; the job writes every 5 ms and must end whole."""
    data, trace = directory / "written", directory / "killed.trace"
    code = (
        "import os, sys, time\nfd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "for i in range(600):\n    os.write(fd, b'%16d' % i)\n    time.sleep(0.005)"
    )
    command = [
        sys.executable,
        "-m",
        "iotwin",
        "trace",
        "-o",
        str(trace),
        "--quiet",
        "--",
        sys.executable,
        "-c",
        code,
        str(data),
    ]
    tracer = subprocess.Popen(command)
    while not (data.exists() and data.stat().st_size > 16 * 300):
        time.sleep(0.01)
    root_pid = json.loads((trace / "manifest.json").read_text())["target"]["root_pid"]
    killed_ns = time.monotonic_ns()
    tracer.send_signal(signal.SIGKILL)
    tracer.wait()
    while Path(f"/proc/{root_pid}").exists():
        time.sleep(0.01)
    recover_trace(trace)
    recovered = Trace(trace)
    events = recovered.events_frame()
    writes = events[events["op"] == "write"]
    gap_s = (killed_ns - int(writes["start_ns"].max())) / 1e9
    whole = data.stat().st_size == 16 * 600
    return Figure(
        "kill -9 of the tracer: seconds lost", gap_s, 1.0, detail=f"the job went on {'unharmed' if whole else 'HARMED'}"
    )
