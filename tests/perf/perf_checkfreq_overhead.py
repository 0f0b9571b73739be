"""CheckFreq's library: all time that checkpoints take at the interval that the program chose and corrects itself.

One network takes two minutes: `python -m tests.perf.perf_checkfreq_overhead vgg16`.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path

import torch

from tests.perf.figures import Figure, interleaved, paired_ratio
from workloads.checkfreq.checkpoint import CFCheckpoint
from workloads.checkfreq.iterator import CFIterator
from workloads.checkfreq.manager import CFManager
from workloads.models import build_network

_STEPS = {"resnet18": 300, "vgg16": 480, "densenet121": 160}  # about as long
_PERCENT = (5.0, 3.5)
_ROUNDS, _PROFILED, _BATCH = 9, 100, 8


def measure(networks: Iterable[str] = _STEPS) -> Iterator[Figure]:
    """Yield the figures of `networks`, each when it is there."""
    torch.set_num_threads(1)  # two of them wait for one another where processors are shared, more than they work
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
        for network in networks:
            yield from _overhead(Path(name), network)


def _overhead(base: Path, name: str) -> list[Figure]:
    """Each bound's runs between runs without checkpoints: from the same weights, in the same memory."""
    job = Training(name)
    runs: dict[float, list[_Run]] = {percent: [] for percent in (0.0, *_PERCENT)}

    def timed(percent: float) -> float:
        run = job.run(base / name, percent) if percent else job.run_without()
        runs[percent].append(run)
        return run.seconds

    none, *others = interleaved(_ROUNDS, *(lambda percent=percent: timed(percent) for percent in runs))  # type: ignore[misc]
    used = [run.processor_s for run in runs[0.0]]
    noise = f"runs without any differ by {100 * (max(none) / min(none) - 1):.1f} %"
    return [
        Figure(
            f"CheckFreq: tiny {name}: all time that checkpoints take at their own interval, bound {percent:g} %",
            paired_ratio(seconds, none) - 1,
            percent / 100,
            detail=f"intervals at the end {', '.join(str(run.interval) for run in runs[percent])}; "
            f"waited {100 * statistics.median(run.waited_s / run.seconds for run in runs[percent]):.1f} %, processor time "
            f"{100 * (paired_ratio([run.processor_s for run in runs[percent]], used) - 1):.1f} %, both processes' together; "
            f"{noise}; {_STEPS[name]} steps after the profile, median of {_ROUNDS} in turns",
        )
        for percent, seconds in zip(_PERCENT, others, strict=True)
    ]


class _Run:
    """A stretch of training after its profile, from `begin` to `end`: seconds of wall and processor time, waits."""

    def __init__(self, manager: CFManager | None = None) -> None:
        self._manager = manager
        self.interval, self.waited_s = 0, 0.0
        if manager is not None:
            self._written, self._stalled_s = len(manager.persisted), manager.stalls.total_s
        self._used_s, self._begin_s = time.process_time(), time.perf_counter()

    def end(self) -> None:
        """Take the times; what is on its way is still to be written, and so was what was when it began."""
        self.seconds, self.processor_s = time.perf_counter() - self._begin_s, time.process_time() - self._used_s
        if self._manager is not None:
            self.waited_s = self._manager.stalls.total_s - self._stalled_s
            if self._manager.worker == "process":
                self.processor_s += sum(each.cpu_s for each in self._manager.persisted[self._written :])


class Training:
    """A network, an optimizer and batches, all from the same beginning in every run."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(1)
        self.network, self._steps = build_network(name, "tiny", 10), _STEPS[name]
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        self._data = [torch.randn(_BATCH, 3, 32, 32) for _ in range(4)]
        self.step(0)
        self._initial = deepcopy((self.network.state_dict(), self.optimizer.state_dict()))

    def step(self, number: int) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        self.network(self._data[number % 4]).pow(2).mean().backward()
        self.optimizer.step()

    def _begin(self) -> None:
        """Go back to where every run begins."""
        self.network.load_state_dict(self._initial[0])
        self.optimizer.load_state_dict(deepcopy(self._initial[1]))

    def run_without(self) -> _Run:
        """Train without checkpoints."""
        self._begin()
        for number in range(_PROFILED):
            self.step(number)
        run = _Run()
        for number in range(self._steps):
            self.step(number)
        run.end()
        return run

    def run(self, store: Path, percent: float) -> _Run:
        """Train with checkpoints for at most `percent`; the steps of the profile, and the last writing, do not count."""
        self._begin()
        shutil.rmtree(store, ignore_errors=True)
        with CFManager(store, CFCheckpoint(model=self.network, optimizer=self.optimizer)) as manager:
            total = _PROFILED + self._steps
            iterator = CFIterator(range(total), bs=_BATCH, cf_manager=manager, max_overhead=percent, dynamic=True)
            iterator.before_epoch_checkpoint = lambda: run.end()
            for number in iterator:
                if number == _PROFILED:
                    run = _Run(manager)
                self.step(number)
            run.interval = iterator.interval
        return run


if __name__ == "__main__":
    for figure in measure(sys.argv[1:]):
        print(figure.line(), flush=True)
