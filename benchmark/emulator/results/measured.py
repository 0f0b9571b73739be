"""What one rank measured, in a form that can be sent to the process that writes the results."""

import os
import platform
import resource
import socket
import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from benchmark.emulator.checkpoints.background import Written
from benchmark.emulator.checkpoints.frequency import Decided
from benchmark.emulator.data.dataset import DataSet
from benchmark.emulator.results.steplog import StepLog

_BLOCK_BYTES = 512  # of ru_inblock; Linux counts bytes fetched from storage and divides (include/linux/task_io_accounting_ops.h)


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


class Host(NamedTuple):
    """The machine that a rank ran on."""

    hostname: str
    kernel: str
    machine: str
    cpus: int
    memory_bytes: int

    @classmethod
    def here(cls) -> "Host":
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
    def of(cls, dataset: DataSet) -> "DataSetFacts":
        """Return the facts of `dataset`."""
        train, evaluation = dataset.train, dataset.evaluation
        files = len(train.files), len(evaluation.files)
        return cls(len(train), len(evaluation), *files, train.size_bytes + evaluation.size_bytes)


class Resumed(NamedTuple):
    """How a rank got to where it went on."""

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
    resumed: Resumed | None = None  # None: it began at the first step
    stopped_early: bool = False
    storage_read_bytes: int = 0  # fetched from storage by this rank and its loaders; the rest came from the page cache
    peak_memory_bytes: int = 0  # of the rank's own process
    cpu_s: float = 0.0  # of the rank and its loaders
    host: Host = field(default_factory=Host.here)
    # UNIX time less CLOCK_MONOTONIC of the rank's machine.
    wall_ahead_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())


class Used(Protocol):
    """What `Usage.note_end` fills in: when the run ended and what it used."""

    end_s: float
    storage_read_bytes: int
    peak_memory_bytes: int
    cpu_s: float


class Usage(NamedTuple):
    """What this process and the children it has waited for used so far."""

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
