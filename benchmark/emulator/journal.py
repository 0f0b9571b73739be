"""The measurements of one rank, and the journal that records them during a run."""

import os
import platform
import resource
import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.data.dataset import DataSetFacts
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.mllog import FOR_TRACERS, MlLog
from iotwin.common.processes.process_settings import shared_memory_bytes
from iotwin.workloads.policies.checkpoint_frequency import Decided

_STEPS_SENT = 256  # steps that a rank holds at most before it sends them; 30 KiB, less than a pipe holds
_BLOCK_BYTES = 512  # unit of ru_inblock, bytes fetched from storage (include/linux/task_io_accounting_ops.h)
COLUMNS = (
    "phase", "epoch", "block", "step", "start_ns", "data_wait_ns", "compute_ns", "barrier_ns", "overhead_ns", "step_ns",
    "samples", "bytes_read", "read_ns", "preprocess_ns", "fetch_start_ns",
)  # fmt: skip
PHASES = ("train", "evaluation")

Ints = NDArray[np.int64]


class StepParts(NamedTuple):
    """The start of a step, and its duration and parts in nanoseconds."""

    start_ns: int  # CLOCK_MONOTONIC
    data_wait_ns: int
    compute_ns: int  # the configured computation time, even if the sleep was longer
    barrier_ns: int  # waiting for other ranks
    overhead_ns: int  # late ends of sleeps, and bookkeeping; negative if this step's sleep was shortened by an earlier delay
    step_ns: int  # the whole step, which is the sum of the parts


class StepLog:
    """Holds the steps of one rank until they are taken."""

    def __init__(self) -> None:
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._rows) // len(COLUMNS)

    def add(self, phase: str, epoch: int, block: int, step: int, times: StepParts, fetched: Fetched) -> None:
        """Append step `step` of `epoch`, in the epoch's block `block`."""
        batch = (fetched.samples, fetched.size_bytes, fetched.read_ns, fetched.preprocess_ns, fetched.start_ns)
        self._rows.extend((PHASES.index(phase), epoch, block, step, *times, *batch))

    def rows(self) -> Ints:
        """Return the steps, shape (steps, columns), with the columns COLUMNS."""
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, len(COLUMNS))

    def take(self) -> bytes:
        """Return the bytes of the array that `rows` returns, and remove these steps from the log."""
        rows, self._rows = self._rows.tobytes(), array("q")
        return rows


class Span(NamedTuple):
    """A phase of a run: an epoch, a block of steps, an evaluation, the save or load of a checkpoint. Times are UNIX seconds."""

    kind: str  # epoch, block, eval, save_ckpt or load_ckpt
    epoch: int
    number: int  # within the epoch, counted from 1 for each kind of phase
    start_s: float
    end_s: float
    amount: float = 0.0  # steps of an epoch, block or evaluation; bytes of a checkpoint

    @property
    def duration_s(self) -> float:
        """Return the duration in seconds."""
        return self.end_s - self.start_s


class RankHost(NamedTuple):
    """The machine of a rank."""

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


class ResumedRun(NamedTuple):
    """The step at which a run resumed, and what a rank read before it (see TwinResume)."""

    mode: str
    epoch: int
    step: int
    samples_skipped: int
    samples_replayed: int
    checkpoint_bytes_read: int


@dataclass
class RankTotals:
    """The times and resources of one rank's run. `start_s` and `end_s` are UNIX seconds on the run's clock.

    `skipped_before_s`, `skipped_s`: seconds that the clock had skipped at the start and at the end.
    """

    rank: int
    start_s: float = 0.0
    end_s: float = 0.0
    skipped_before_s: float = 0.0
    skipped_s: float = 0.0
    stopped_early: bool = False
    storage_read_bytes: int = 0  # fetched from storage, not from the page cache, by this rank and its child processes
    peak_memory_bytes: int = 0  # most memory of the rank's process, without its children
    memory_bytes: int = 0  # the rank's share of memory at its end: memory that N processes share counts 1/N; 0: unknown
    cpu_before_s: float = 0.0  # CPU time of the process at the start
    run_cpu_s: float = 0.0  # CPU time of the rank and its child processes since the start
    compensated_s: float = 0.0  # by how much sleeps were shortened to make up for time that the emulator took itself
    cpu_s: float = 0.0  # CPU time of the rank and its child processes
    resumed: ResumedRun | None = None  # None: the run began at the first step
    host: RankHost = field(default_factory=RankHost.here)

    def note_start(self) -> None:
        """Set the start of the run to now. Time that the clock skipped earlier does not count."""
        self.start_s, self.skipped_before_s = waits.wall_s(), waits.skipped_s()
        self.cpu_before_s = Usage.so_far().cpu_s


class RunSpan(NamedTuple):
    """UNIX seconds of a run's start and end on its clock, and the seconds that its clock skipped in between."""

    start_s: float
    end_s: float
    skipped_s: float


def run_span(ranks: Sequence[RankTotals]) -> RunSpan:
    """Return the time from the first rank's start to the last rank's end."""
    return RunSpan(
        min(one.start_s for one in ranks),
        max(one.end_s for one in ranks),
        max(one.skipped_s for one in ranks) - min(one.skipped_before_s for one in ranks),
    )


@dataclass
class Measured(RankTotals):
    """The measurements of one rank."""

    node: int = 0
    nodes: int = 1
    data: DataSetFacts = field(default_factory=DataSetFacts)
    steps: StepLog = field(default_factory=StepLog)  # those that the rank has not sent
    # (sample_ns, copy_ns) of each training step's batch (see loaders.base.Fetched), if instrumented.
    instrumented: list[tuple[tuple[tuple[int, int], ...], int | None]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    # (is backward, minibatch, due start in ns, due end in ns) of each pass of a pipeline, epoch after epoch.
    passes: list[tuple[bool, int, int, int]] = field(default_factory=list)
    saved: list[Written] = field(default_factory=list)  # checkpoint files
    loaded: list[Written] = field(default_factory=list)
    decided: Decided | None = None  # decisions of a checkpoint policy, if there is one
    pauses: list[tuple[int, int]] = field(default_factory=list)  # (start_ns, duration_ns) between checkpoints without training
    # UNIX time minus CLOCK_MONOTONIC on the rank's machine.
    wall_ahead_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())


class Usage(NamedTuple):
    """The resources that this process and its ended children have used so far."""

    storage_read_bytes: int
    peak_memory_bytes: int
    cpu_s: float

    @classmethod
    def so_far(cls) -> "Usage":
        """Return the resources that this process and its ended children have used until now."""
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(
            (own.ru_inblock + children.ru_inblock) * _BLOCK_BYTES,
            own.ru_maxrss * 1024,
            own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        )

    def note_end(self, measured: RankTotals) -> None:
        """Set the end time of `measured` to now, and its resources to those used since `so_far` returned this object."""
        after = self.so_far()
        measured.end_s, measured.skipped_s = waits.wall_s(), waits.skipped_s()
        measured.storage_read_bytes = after.storage_read_bytes - self.storage_read_bytes
        measured.peak_memory_bytes = after.peak_memory_bytes
        measured.cpu_s = after.cpu_s - self.cpu_s
        measured.run_cpu_s = after.cpu_s - measured.cpu_before_s
        measured.memory_bytes = shared_memory_bytes()


class Journal:
    """Records the steps and spans of one rank in `measured`, and writes MLLOG lines to `log`.

    `instrument`: also record the parts of each training step's batch. `send`: where the steps go before the rank ends; None: all
    remain in `measured`.
    """

    def __init__(self, measured: Measured, log: MlLog, instrument: bool, send: Callable[[bytes], None] | None = None) -> None:
        self.measured, self.log, self.instrument, self._send = measured, log, instrument, send
        self.interrupted_ns = 0  # CLOCK_MONOTONIC at the end of the last evaluation or checkpoint
        self._spans = Counter[tuple[str, int]]()  # number of spans so far, by (kind, epoch)

    @contextmanager
    def interval(self, key: str | None, epoch: int | None = None, kind: str | None = None) -> Iterator[list[float]]:
        """Log the start and the end of the `with` block as MLLOG's interval `key`, unless `key` is None.

        With `kind`, also record the block as a span of `epoch`. The block appends the amounts of the span to the yielded list.
        """
        amounts: list[float] = []
        with nullcontext() if key is None else self.log.interval(key, **({} if epoch is None else {"epoch_num": epoch})):
            start_s, start_ns = waits.wall_s(), waits.now_ns()
            yield amounts
            if kind is None or epoch is None:
                return
            self._spans[kind, epoch] += 1
            end_s = start_s + (waits.now_ns() - start_ns) / 1e9  # time.time() may jump if the clock is set
            self.measured.spans.append(Span(kind, epoch, self._spans[kind, epoch], start_s, end_s, sum(amounts)))
            if kind not in ("epoch", "block"):
                self.interrupted_ns = waits.now_ns()

    def step(self, phase: str, epoch: int, step: int, times: StepParts, fetched: Fetched) -> None:
        """Record step `step` of `epoch`. It belongs to the block after the blocks recorded so far."""
        steps = self.measured.steps
        steps.add(phase, epoch, self._spans.get(("block", epoch), 0) + 1, step, times, fetched)
        if self._send is not None and len(steps) == _STEPS_SENT:
            self._send(steps.take())
        if self.instrument and phase == "train":
            self.measured.instrumented.append((fetched.sample_ns, fetched.copy_ns))


@contextmanager
def open_journal(rank: Rank, log_stream: TextIO | None, instrument: bool = False) -> Iterator[Journal]:
    """Yield the journal of `rank`, and record the totals at the end of the block. MLLOG lines go to `log_stream`, if any."""
    measured, before = Measured(rank.index, node=rank.node, nodes=rank.nodes), Usage.so_far()
    log = MlLog(log_stream, FOR_TRACERS, **({"rank": rank.index} if rank.count > 1 else {}))
    yield Journal(measured, log, instrument, rank.send)
    before.note_end(measured)
