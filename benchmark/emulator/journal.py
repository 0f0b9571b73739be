"""The measurements of one rank of a run, and the journal that records them during the run."""

import os
import platform
import resource
import socket
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.checkpoints.frequency import Decided
from iotwin.benchmark.emulator.data.dataset import SampleSets
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.mllog import FOR_TRACERS, MlLog
from iotwin.common.progress import note

_BLOCK_BYTES = 512  # of ru_inblock; Linux counts bytes fetched from storage and divides (include/linux/task_io_accounting_ops.h)
COLUMNS = (
    "phase", "epoch", "block", "step", "start_ns", "data_wait_ns", "compute_ns", "barrier_ns", "overhead_ns", "step_ns",
    "samples", "bytes_read", "read_ns", "preprocess_ns", "fetch_start_ns",
)  # fmt: skip
PHASES = ("train", "evaluation")

Ints = NDArray[np.int64]


class StepParts(NamedTuple):
    """When a step began (CLOCK_MONOTONIC) and the nanoseconds of it and its parts.

    `compute_ns` is the configured computation time, not what the sleep took: oversleeping is no useful work. It and the harness's
    own bookkeeping are in `overhead_ns`; below zero where an overshoot was taken off this step's sleep.
    """

    start_ns: int
    data_wait_ns: int
    compute_ns: int
    barrier_ns: int  # waiting for other ranks
    overhead_ns: int
    step_ns: int


class StepLog:
    """Collects the steps of one rank."""

    def __init__(self) -> None:
        self._rows = array("q")

    def add(self, phase: str, epoch: int, block: int, step: int, times: StepParts, fetched: Fetched) -> None:
        """Append step `step` of `epoch`, which is in its block `block`."""
        batch = (fetched.samples, fetched.size_bytes, fetched.read_ns, fetched.preprocess_ns, fetched.start_ns)
        self._rows.extend((PHASES.index(phase), epoch, block, step, *times, *batch))

    def rows(self) -> Ints:
        """Return the steps as (steps, columns)."""
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, len(COLUMNS))


class Span(NamedTuple):
    """A stretch of a run: an epoch, a block of its steps, an evaluation, a checkpoint saved or loaded. Times are UNIX seconds."""

    kind: str  # epoch, block, eval, save_ckpt or load_ckpt
    epoch: int
    number: int  # within the epoch, counted from 1 for each kind of phase
    start_s: float
    end_s: float
    amount: float = 0.0  # steps of an epoch, block or evaluation; bytes of a checkpoint

    @property
    def duration_s(self) -> float:
        """Return how long it took."""
        return self.end_s - self.start_s


class RankHost(NamedTuple):
    """The machine that a rank ran on."""

    hostname: str
    kernel: str
    machine: str
    cpus: int
    memory_bytes: int

    @classmethod
    def here(cls) -> "RankHost":
        """Return this machine."""
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(socket.gethostname(), platform.release(), platform.machine(), os.cpu_count() or 1, memory_bytes)


class DataSetFacts(NamedTuple):
    """How much there was to read."""

    train_samples: int = 0
    evaluation_samples: int = 0
    train_files: int = 0
    evaluation_files: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, dataset: SampleSets) -> "DataSetFacts":
        """Return the facts of `dataset`."""
        train, evaluation = dataset.train, dataset.evaluation
        files = len(train.files), len(evaluation.files)
        return cls(len(train), len(evaluation), *files, train.size_bytes + evaluation.size_bytes)


class ResumedRun(NamedTuple):
    """How a rank reached the position at which it resumed."""

    mode: str
    epoch: int
    step: int
    samples_skipped: int
    samples_replayed: int
    checkpoint_bytes_read: int


@dataclass
class Measured:
    """What rank `rank` measured, and when: UNIX seconds."""

    rank: int
    node: int
    nodes: int
    start_s: float
    end_s: float = 0.0
    data: DataSetFacts = field(default_factory=DataSetFacts)
    steps: StepLog = field(default_factory=StepLog)
    # Of each training step, if instrumented: the batch's sample_ns and copy_ns, as loaders.base.Fetched has them.
    instrumented: list[tuple[tuple[tuple[int, int], ...], int | None]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    # Of a pipeline: backward or not, minibatch, and when each pass was due to start and end (ns), epoch after epoch.
    passes: list[tuple[bool, int, int, int]] = field(default_factory=list)
    saved: list[Written] = field(default_factory=list)  # checkpoint files
    loaded: list[Written] = field(default_factory=list)
    decided: Decided | None = None  # how often checkpoints were due, where a policy measures that
    pauses: list[tuple[int, int]] = field(default_factory=list)  # start_ns and duration_ns of computing between checkpoints alone
    resumed: ResumedRun | None = None  # None: it began at the first step
    stopped_early: bool = False
    storage_read_bytes: int = 0  # fetched from storage by this rank and its loaders; the rest came from the page cache
    peak_memory_bytes: int = 0  # of the rank's own process
    cpu_s: float = 0.0  # of the rank and its loaders
    host: RankHost = field(default_factory=RankHost.here)
    # UNIX time less CLOCK_MONOTONIC of the rank's machine.
    wall_ahead_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())


class Used(Protocol):
    """What `Usage.note_end` fills in: when the run ended and what it used."""

    end_s: float
    storage_read_bytes: int
    peak_memory_bytes: int
    cpu_s: float


class Usage(NamedTuple):
    """The resources that this process and its ended children have used so far."""

    storage_read_bytes: int
    peak_memory_bytes: int
    cpu_s: float

    @classmethod
    def so_far(cls) -> "Usage":
        """Return the usage up to now."""
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(
            (own.ru_inblock + children.ru_inblock) * _BLOCK_BYTES,
            own.ru_maxrss * 1024,
            own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        )

    def note_end(self, measured: Used) -> None:
        """Set the end of `measured` to now, and what was used since this usage was taken."""
        after = self.so_far()
        measured.end_s = time.time()
        measured.storage_read_bytes = after.storage_read_bytes - self.storage_read_bytes
        measured.peak_memory_bytes = after.peak_memory_bytes
        measured.cpu_s = after.cpu_s - self.cpu_s


class Journal:
    """Records one rank's run in `measured`: its steps, spans and totals. MLLOG lines go to `log_stream`, if there is one.

    `instrument`: also record the parts of each training step's batch.
    """

    def __init__(self, rank: Rank, log_stream: TextIO | None, instrument: bool = False) -> None:
        self.measured = Measured(rank.index, rank.node, rank.nodes, time.time())
        self.interrupted_ns = 0  # CLOCK_MONOTONIC at the end of the last evaluation or checkpoint
        self._log = MlLog(log_stream, FOR_TRACERS, **({"rank": rank.index} if rank.count > 1 else {}))
        self._instrument, self._ranks = instrument, rank.count
        self._spans = Counter[tuple[str, int]]()  # so far, by kind and epoch
        self._before = Usage.so_far()

    @contextmanager
    def interval(self, key: str, epoch: int | None = None) -> Iterator[None]:
        """Log the start and the end of the block of code as MLLOG's interval `key`."""
        with self._log.interval(key, **({} if epoch is None else {"epoch_num": epoch})):
            yield

    @contextmanager
    def span(self, kind: str, epoch: int, key: str | None = None) -> Iterator[list[float]]:
        """Record a span of `kind` (see `Span`) around the block of code; the block appends its amounts to the list.

        With `key` the log has the span as an interval, too.
        """
        amounts: list[float] = []
        with nullcontext() if key is None else self.interval(key, epoch):
            start_s, start_ns = time.time(), time.monotonic_ns()
            yield amounts
            self._spans[kind, epoch] += 1
            end_s = start_s + (time.monotonic_ns() - start_ns) / 1e9  # somebody may set the clock meanwhile
            self.measured.spans.append(Span(kind, epoch, self._spans[kind, epoch], start_s, end_s, sum(amounts)))
            if kind not in ("epoch", "block"):
                self.interrupted_ns = time.monotonic_ns()

    def parameters(self, values: Mapping[str, int]) -> None:
        """Log the run's parameters."""
        for key, value in values.items():
            self._log.point(key, value)

    def step(self, phase: str, epoch: int, step: int, times: StepParts, fetched: Fetched) -> None:
        """Record step `step` of `epoch`, which belongs to the block after those recorded so far."""
        self.measured.steps.add(phase, epoch, self._spans.get(("block", epoch), 0) + 1, step, times, fetched)
        if self._instrument and phase == "train":
            self.measured.instrumented.append((fetched.sample_ns, fetched.copy_ns))

    def pause(self, begin_ns: int) -> None:
        """Record that the rank computed between checkpoints from `begin_ns` until now."""
        self.measured.pauses.append((begin_ns, time.monotonic_ns() - begin_ns))

    def show(self, epochs: str, phase: str, steps: int, batch: int, elapsed_s: float) -> None:
        """Show a person how fast `steps` with `batch` samples each were."""
        rate = steps * batch * self._ranks / max(elapsed_s, 1e-9)
        note(f"epoch {epochs}, {phase}: {steps} steps in {elapsed_s:.2f} s, {rate:.2f} samples/s")

    def close(self) -> Measured:
        """Record the totals and return everything measured."""
        self._before.note_end(self.measured)
        return self.measured
