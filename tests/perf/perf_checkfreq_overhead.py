"""CheckFreq's library: all time that checkpoints take at the interval that the program chose and corrects itself.

One network takes about two minutes: `python -m tests.perf.perf_checkfreq_overhead vgg16`.
"""

import os
import statistics
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
from iotwin.workloads.models import build
from iotwin.workloads.state.snapshot_writer import PROCESS
from tests.perf.figures import Figure, interleaved, paired_median
from tests.perf.records import record_figures

_STEPS = {"resnet18": 50, "vgg16": 80, "densenet121": 25}  # of a stretch: about as long
_PERCENT = (5.0, 3.5)
_ROUNDS, _SETTLING, _WARM_UP, _BATCH = 50, 5, 12, 8


def measure(networks: Iterable[str] = _STEPS) -> Iterator[Figure]:
    """Yield the figures of `networks`, each when it is there."""
    torch.set_num_threads(1)  # two of them wait for one another where processors are shared, more than they work
    for network in networks:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
            yield from _overhead(Path(name), network)


def _overhead(base: Path, name: str) -> list[Figure]:
    """One job whose steps are taken in short stretches in turns: without checkpoints, and under each bound."""
    job = Training(name)
    with ExitStack() as managers:
        bounded = [managers.enter_context(Bounded(job, base / f"{percent:g}", percent)) for percent in _PERCENT]
        for each in bounded:
            each.profile()
        none, *others = interleaved(_ROUNDS, job.stretch, *(each.stretch for each in bounded))
    return [each.figure(name, seconds, none) for each, seconds in zip(bounded, others, strict=True)]


class Training:
    """A network, and batches for it; a stretch of its steps, with one optimizer or another over the same state."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(1)
        self.network, self.steps = build(name, "tiny", 10).module, _STEPS[name]
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-5, momentum=0.9)
        self._data = [torch.randn(_BATCH, 3, 32, 32) for _ in range(4)]
        self.processor_s: list[float] = []  # of each stretch
        self.step(0)

    def another_optimizer(self) -> torch.optim.Optimizer:
        """Return another optimizer of the same state, so that what a manager adds to it is left out of stretches without."""
        other = torch.optim.SGD(self.network.parameters(), lr=1e-5, momentum=0.9)
        other.state, other.param_groups = self.optimizer.state, self.optimizer.param_groups
        return other

    def step(self, number: int, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Train one step."""
        optimizer = optimizer or self.optimizer
        optimizer.zero_grad()
        self.network(self._data[number % 4]).pow(2).mean().backward()
        optimizer.step()

    def warm_up(self) -> None:
        """Train some steps that do not count: those after a wait, as for the last checkpoint of a stretch, are slower."""
        for number in range(_WARM_UP):
            self.step(number)

    def stretch(self) -> float:
        """Return the seconds of a stretch without checkpoints."""
        self.warm_up()
        used_s, begin_s = time.process_time(), time.perf_counter()
        for number in range(self.steps):
            self.step(number)
        seconds = time.perf_counter() - begin_s
        self.processor_s.append(time.process_time() - used_s)
        return seconds


class Bounded(ExitStack):
    """The job with checkpoints that are to take at most `percent` of its time; a stretch of it is an epoch."""

    def __init__(self, job: Training, store: Path, percent: float) -> None:
        super().__init__()
        self._job, self._percent, self._optimizer = job, percent, job.another_optimizer()
        self._manager = self.enter_context(CFManager(store, CFCheckpoint(model=job.network, optimizer=self._optimizer)))
        self._iterator = CFIterator(
            range(job.steps), bs=_BATCH, cf_manager=self._manager, max_overhead=percent, dynamic=True, reprofile=True
        )
        self._iterator.before_epoch_checkpoint = self._end
        self._begun: tuple[float, ...] = ()  # clock, processor time and waits at the begin of a stretch
        self._spent: list[float] = []  # of them in it
        self._waits: list[float] = []  # of each stretch, as a share of it
        self._used_s: list[float] = []
        self._intervals: list[int] = []

    def profile(self) -> None:
        """Train until the interval is planned, and some stretches by it."""
        while not self._iterator.interval:
            self.stretch()
        for _ in range(_SETTLING):
            self.stretch()
        self._waits, self._used_s, self._intervals = [], [], []

    def stretch(self) -> float:
        """Return the seconds of a stretch; the checkpoint at its end, which every epoch has, is waited for and does not count."""
        self._job.warm_up()
        manager, written = self._manager, len(self._manager.persisted)
        self._begun = time.perf_counter(), time.process_time(), manager.stalls.total_s
        for number in self._iterator:
            self._job.step(number, self._optimizer)
        manager.wait()
        seconds, used_s, waited_s = self._spent
        written_s = sum(each.cpu_s for each in manager.persisted[written:-1]) if manager.worker == PROCESS else 0.0
        self._waits.append(waited_s / seconds)
        self._used_s.append(used_s + written_s)
        self._intervals.append(self._iterator.interval)
        return seconds

    def _end(self) -> None:
        now = time.perf_counter(), time.process_time(), self._manager.stalls.total_s
        self._spent = [after - before for after, before in zip(now, self._begun, strict=True)]

    def figure(self, name: str, seconds: list[float], none: list[float]) -> Figure:
        """Return the share of time beyond stretches without checkpoints, as the median of the rounds."""
        overhead, least, most = (value - 1 for value in paired_median(seconds, none))
        low, *_, high = statistics.quantiles(self._intervals, n=10)
        together = sum(seconds) / sum(none) - 1
        used = paired_median(self._used_s, self._job.processor_s)[0] - 1
        return Figure(
            f"CheckFreq: tiny {name}: all time that checkpoints take at their own interval, bound {self._percent:g} %",
            overhead,
            self._percent / 100,
            detail=f"95 % sure of {100 * least:.1f} to {100 * most:.1f} %; all stretches together {100 * together:.1f} %; "
            f"intervals {statistics.median(self._intervals):g} ({low:.0f} to {high:.0f}); waited "
            f"{100 * statistics.median(self._waits):.1f} %, processor time {100 * used:.1f} %, both processes' together; "
            f"median of {len(none)} stretches of {self._job.steps} steps, in turns with as many without",
        )


if __name__ == "__main__":
    record_figures("checkfreq_overhead", measure(sys.argv[1:] or _STEPS))
