"""CheckFreq's controller in a real job, while another program takes processors or the disk from it.

One hog takes a minute: `python -m tests.perf.perf_checkfreq_hogs disk`.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager
from iotwin.workloads.policies.adaptive_interval import StepWindow
from tests.perf.figures import Figure
from tests.perf.perf_checkfreq_overhead import Training
from tests.perf.records import record_figures

_COMPUTES = "while True: pass"
_WRITES = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    for block in range(16):
        os.pwrite(file, bytes(4 << 20), block * (4 << 20))
    os.fsync(file)
"""
_HOGS = {"cpu": (_COMPUTES, _COMPUTES), "disk": (_WRITES,)}  # a program a process
_BEFORE_S, _BESIDE_S, _AFTER_S = 12.0, 15.0, 15.0
_PERCENT, _STEPS = 5.0, 10**6


def measure(hogs: Iterable[str] = _HOGS) -> Iterator[Figure]:
    """Yield the figures of `hogs`, each when it is there."""
    torch.set_num_threads(1)
    for hog in hogs:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
            yield from _figures(hog, *_run(Path(name), hog))


def _run(base: Path, hog: str) -> list[list[StepWindow]]:
    """Return the windows of the job before, during and after the hog."""
    job = Training("vgg16")
    with CFManager(base / "store", CFCheckpoint(model=job.network, optimizer=job.optimizer)) as manager, ExitStack() as running:
        iterator = CFIterator(range(_STEPS), bs=8, cf_manager=manager, max_overhead=_PERCENT, dynamic=True, reprofile=True)
        begins: list[int] = []  # of the phases, as numbers of windows
        until_s = 0.0
        for number in iterator:
            job.step(number)
            if not iterator.interval or time.monotonic() < until_s:
                continue
            begins.append(len(iterator.windows))
            if len(begins) == 2:
                running.callback(_end, [_start(program, base / "hog") for program in _HOGS[hog]])
            elif len(begins) == 3:
                running.close()
            elif len(begins) == 4:
                break
            until_s = time.monotonic() + (_BEFORE_S, _BESIDE_S, _AFTER_S)[len(begins) - 1]
        return [iterator.windows[begin:end] for begin, end in itertools.pairwise(begins)]


def _start(program: str, file: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", program, file])


def _end(processes: "list[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        process.kill()
        process.wait()


def _figures(hog: str, before: list[StepWindow], beside: list[StepWindow], after: list[StepWindow]) -> list[Figure]:
    usual = statistics.median(window.interval for window in before[len(before) // 2 :])
    told = "; ".join(
        f"{name}: intervals {_listed([window.interval for window in windows])}, {100 * _overhead(windows):.1f} % of a step of "
        f"{1e3 * statistics.median(window.base_s for window in windows):.3g} ms"
        for name, windows in (("before", before), ("beside", beside), ("after", after))
    )
    return [
        Figure(f"CheckFreq beside a {hog} hog: windows until the rest of its time is within the bound of {_PERCENT:g} %",
               _first(_overhead(beside[number:]) <= _PERCENT / 100 for number in range(len(beside))), 2, detail=told),
        Figure(f"CheckFreq after a {hog} hog: windows until the interval is at most 10 % longer than before it",
               _first(window.interval <= 1.1 * usual for window in after), 4, detail=f"{usual:g} steps before it"),
    ]  # fmt: skip


def _overhead(windows: list[StepWindow]) -> float:
    """Return the time beyond steps without checkpoints, as a share of theirs."""
    steps_s = [window.base_s * (window.last_step - window.first_step + 1) for window in windows]
    return sum(window.overhead * each for window, each in zip(windows, steps_s, strict=True)) / sum(steps_s)


def _first(held: Iterable[bool]) -> float:
    return next((number for number, holds in enumerate(held) if holds), float("inf"))


def _listed(intervals: list[int]) -> str:
    """Return intervals in their order, each once as long as it stays."""
    return " ".join(str(each) for number, each in enumerate(intervals) if number == 0 or each != intervals[number - 1])


if __name__ == "__main__":
    record_figures("checkfreq_hogs", measure(sys.argv[1:] or _HOGS))
