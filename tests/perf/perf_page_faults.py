"""What recording page faults costs a job: faults a second on a mapped file and on memory, traced with and without them.

python -m tests.perf.perf_page_faults
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure, interleaved, median_ratio

_ROUNDS = 7
_BYTES = 400 << 20
_PROGRAM = """
import mmap, os, resource, sys, time
import numpy as np
if sys.argv[1] == "memory":
    mapped = mmap.mmap(-1, int(sys.argv[2]))
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
else:
    mapped = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), int(sys.argv[2]), flags=mmap.MAP_PRIVATE)
pages = np.frombuffer(mapped, np.uint8)[::4096]
faults, begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
if sys.argv[1] == "memory":
    pages += 1
else:
    pages.sum()
print((time.perf_counter() - begin) / (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) * 1e9)
"""


def measure() -> Iterator[Figure]:
    """Yield nanoseconds a fault, and the ratios to those untraced."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as scratch:
        data = Path(scratch) / "data.bin"
        np.zeros(_BYTES, np.uint8).tofile(data)
        subprocess.run(["cat", data], stdout=subprocess.DEVNULL, check=True)
        for what, argument in (("a mapped file", str(data)), ("memory without a file", "memory")):
            command = [sys.executable, "-c", _PROGRAM, argument, str(_BYTES)]

            def traced(detail: tuple[str, ...], command: list[str] = command) -> float:
                trace = Path(scratch) / "t.trace"
                trace_command(command, trace, TraceOptions(detail=detail, force=True, forward_output=False))
                assert Trace(trace).manifest.lost_events == 0 or "mmap" in detail
                return float((trace / "logs" / "stdout").read_text())

            bare, without, within = interleaved(
                _ROUNDS,
                lambda command=command: float(subprocess.run(command, capture_output=True, check=True).stdout),
                lambda: traced(("data",)),
                lambda: traced(("data", "mmap")),
            )
            yield Figure(f"a page fault on {what}, untraced, ns", float(np.median(bare)))
            for detail, times in (("data", without), ("data,mmap", within)):
                yield Figure(f"a page fault on {what}, --detail {detail} over untraced", median_ratio(times, bare))
