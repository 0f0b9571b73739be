"""What each way to capture costs a call: cached preads in C, traced and untraced, interleaved."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from iotwin.tracing_tools.backends.choose_backend import unavailable_reason
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure, interleaved, median_ratio

_BOUNDS = {"bcc": 1.8, "preload": None, "bpftrace": None, "strace": None}
_PREADS = {"bcc": 100_000, "preload": 100_000, "bpftrace": 20_000, "strace": 5_000}
_WARM = 1024  # in preads.c
_SIZE = 4096


def measure(rounds: int = 9) -> Iterator[Figure]:
    """Yield the ratio of each backend that works here."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        directory = Path(name)
        program, data = directory / "preads", directory / "cached"
        subprocess.run(["cc", "-O2", "-o", program, Path(__file__).with_name("preads.c")], check=True)
        data.write_bytes(os.urandom(64 * _SIZE))
        for backend, bound in _BOUNDS.items():
            if unavailable_reason(backend) is None:
                command = [str(program), str(data), str(_SIZE), str(_PREADS[backend])]
                yield _ratio(backend, bound, command, directory, rounds)


def _ratio(backend: str, bound: float | None, command: list[str], directory: Path, rounds: int) -> Figure:
    kept: list[int] = []

    def untraced() -> float:
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def traced() -> float:
        trace = directory / "preads.trace"
        manifest = trace_command(command, trace, TraceOptions(backend=backend, forward_output=False, force=True))
        kept.append(manifest.counts.get("pread64", 0) if not manifest.lost_events else -manifest.lost_events)
        return float((trace / "logs" / "stdout").read_text())

    work: tuple[Callable[[], float], ...] = (untraced, traced)
    plain, under = interleaved(rounds, *work)
    count = _PREADS[backend]
    # The dynamic loader preads a few headers of its own before main.
    whole = all(0 <= calls - count - _WARM < 10 for calls in kept)
    detail = f"{count} preads, {rounds} pairs; {'none lost, each recorded once' if whole else f'recorded {kept}'}"
    return Figure(f"cached preads of 4 KiB by {backend}: traced / untraced", median_ratio(under, plain), bound, detail=detail)
