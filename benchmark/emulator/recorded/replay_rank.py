"""Replay a recording as one rank, and measure the replay."""

import gc
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.journal import RankTotals, Usage
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits, copies_folder, edits_of, replays, waits_for_batches
from iotwin.benchmark.emulator.recorded.edits.resumed_checkpoint import resumed_record
from iotwin.benchmark.emulator.recorded.files import JobFiles
from iotwin.benchmark.emulator.recorded.player import own_costs_ns
from iotwin.benchmark.emulator.recorded.process import ReplayedProcess, ReplayWatch
from iotwin.benchmark.emulator.recorded.shared_state import (
    BUCKETS,
    COUNTS,
    FAILED,
    READ_BYTES,
    READ_NS,
    STOPPED,
    WAITED_NS,
    WRITTEN_BYTES,
    Board,
    Pipes,
    Shared,
)
from iotwin.benchmark.emulator.recorded.step_points import StepPoints, numbered, with_points
from iotwin.benchmark.emulator.recorded.thread_slots import VirtualReplay
from iotwin.benchmark.emulator.recorded.tracing_cost import without_tracing
from iotwin.benchmark.emulator.results.training import TrainedPass
from iotwin.common.errors import IotwinError
from iotwin.common.mllog import FOR_TRACERS, MlLog
from iotwin.common.processes.process_settings import age_s, sharpen_timers
from iotwin.workload_yaml import Config, TwinRecorded
from iotwin.workload_yaml.recording import CALLS, Op, RecordedBatches, TwinRecording, read_recording

_NOISE_BYTES = 1 << 22
_NEVER_NS = 1 << 62


@dataclass
class Replayed(RankTotals):
    """The measurements of one rank's replay. `late` counts calls by their delay, in the buckets of `Board`."""

    counts: dict[str, int] = field(default_factory=dict)
    read_bytes: int = 0
    written_bytes: int = 0
    late: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    freed_waits: int = 0
    passes: list[TrainedPass] = field(default_factory=list)
    knows_samples: bool = False  # True if the recording has the samples of batches
    data_wait_s: float | None = None  # time that training processes waited for batches, or read them; None: unknown


def replay(
    config: Config,
    log_stream: TextIO | None,
    rank: Rank | None = None,
    limit_s: float | None = None,
    starts_anew: bool = False,
    job_ranks: int | None = None,
) -> Replayed:
    """Replay the workload's recording as `rank` (None: the only rank) for at most `limit_s` seconds, and measure it.

    `job_ranks`: number of ranks of the edited job if one replay has all of them; None: each rank is a replay.

    The job's start-up begins with this process. If the replay `starts_anew`, or if there are several ranks, it begins with this
    call.

    Each rank has separate pipes. Ranks of an edited job share one output folder; other ranks have one each. All ranks read the
    same data set. No process outlives the call. Raises IotwinError if the recording is damaged, a file of the data set is
    missing, or a call fails. The message names the file.
    """
    rank, settings = rank or Rank(), config.twin.recorded
    if settings is None:
        raise IotwinError("twin.recorded is missing: this workload replays nothing")
    sharpen_timers()
    started_ns = waits.now_ns() - int(age_s() * 1e9)
    recording = without_tracing(read_recording(Path(settings.file)))
    batches, recorded = recording.header.batches, len(recording.header.files)
    edits = edits_of(config, recording.header, job_ranks or rank.count)
    if edits is None and not waits_for_batches(recording):
        edits = Edits()
    recording = with_points(recording) if edits is None else edit(recording, edits, rank.index)
    recording = numbered(recording)
    output = Path(config.checkpoint.checkpoint_folder)
    shared = edits is not None and edits.ranks > 1  # ranks of one job: they read one checkpoint, and the first one writes all
    files = JobFiles(
        recording.header.files, Path(config.dataset.data_folder),
        output / f"rank-{0 if shared else rank.index}" if rank.count > 1 else output, recorded,
        copies_folder(config, edits or Edits()),
    )  # fmt: skip
    log = MlLog(log_stream, FOR_TRACERS, **({"rank": rank.index} if rank.count > 1 else {}))
    measured, before = Replayed(rank.index), Usage.so_far()
    measured.note_start()
    measured.knows_samples = batches is not None and any(batches.samples)
    if edits is not None and batches is not None:
        measured.resumed = resumed_record(recording, edits, batches)
    if rank.index == 0 or not shared:  # the first rank creates shared files before the others begin
        files.claim()
        files.prepare()
    rank.meet()
    clock = waits.virtual_clock()
    begin_ns = waits.now_ns() if starts_anew or rank.count > 1 else started_ns
    deadline_ns = _NEVER_NS if limit_s is None else waits.now_ns() + int(limit_s * 1e9)
    gc.freeze()  # so that garbage collection in forked processes does not copy the shared pages
    try:
        for turn in range(config.train.epochs if batches is None else 1):
            if turn:
                files.prepare()
                begin_ns = waits.now_ns()
            virtual = None if clock is None else VirtualReplay(clock, recording.header)
            board = _once(recording, files, log, settings, deadline_ns, begin_ns, measured, rank, virtual)
            if virtual is not None:
                virtual.end_all()
            if batches is not None:
                waited_s = _data_wait_s(board, recording, batches, edits or Edits())
                measured.data_wait_s = (measured.data_wait_s or 0.0) + waited_s
            if measured.stopped_early:
                break
    finally:
        gc.unfreeze()
        files.close()
    before.note_end(measured)
    return measured


def replays_of(config: Config, ranks: int) -> int:
    """Return how many ranks replay the workload's recording for a job of `ranks` ranks."""
    settings = config.twin.recorded
    return ranks if settings is None else replays(read_recording(Path(settings.file)).header, ranks, settings.balanced_ranks)


def _data_wait_s(board: Board, recording: TwinRecording, batches: RecordedBatches, edits: Edits) -> float:
    """Return how long the main threads of the ranks waited for batches, or read them by themselves, on average.

    `batches`: the recording's batches before the edit.
    """
    has_loaders = any(each.depth for each in batches.passes) if edits.loaders is None else edits.loaders > 0
    ranks = list(dict.fromkeys(each.process for each in batches.passes if each.training))[: 1 if edits.regrouped else None]
    threads = [int(np.searchsorted(recording.header.threads, process)) for process in ranks]
    return board.column(WAITED_NS if has_loaders else READ_NS, threads) / 1e9 / len(threads)


def _once(
    recording: TwinRecording,
    files: JobFiles,
    log: MlLog,
    settings: TwinRecorded,
    deadline_ns: int,
    begin_ns: int,
    measured: Replayed,
    rank: Rank,
    virtual: VirtualReplay | None,
) -> Board:
    """Replay the recording once, add the measurements to `measured`, and return the numbers of all threads."""
    board, failures = Board(len(recording.header.threads)), os.pipe()
    pipes = Pipes(recording.header, virtual is not None)
    points = StepPoints(int((recording.columns["op"] == Op.STEP).sum()))
    os.set_blocking(failures[0], False)
    shared = Shared(
        recording, recording.starts(), board, points, pipes, files, log, _noise(), settings.think_scale, settings.read_latency,
        deadline_ns, failures, virtual, own_costs_ns(waits.now_ns), rank.arrive,
    )  # fmt: skip
    root, watch = ReplayedProcess(shared, 0), ReplayWatch(shared)
    watch.start()
    try:
        _run(root, begin_ns, virtual, rank.index)
        if board.word[0] == FAILED:
            raise IotwinError(f"{_why(failures[0])}; the replay is ended")
    finally:
        watch.end()
        root.end_children()
        pipes.close()
        for end in failures:
            os.close(end)
    totals = board.totals()
    for op in list(Op)[:CALLS]:
        measured.counts[op.name.lower()] = measured.counts.get(op.name.lower(), 0) + int(totals[COUNTS + op])
    measured.read_bytes += int(totals[READ_BYTES])
    measured.written_bytes += int(totals[WRITTEN_BYTES])
    measured.late += Board.histogram(totals)
    measured.freed_waits += watch.freed
    measured.passes += points.passes(recording, rank.index, settings.think_scale)
    measured.stopped_early = measured.stopped_early or board.word[0] == STOPPED
    return board


def _run(root: ReplayedProcess, begin_ns: int, virtual: VirtualReplay | None, rank: int) -> None:
    """Run the replay's first process.

    On a virtual clock, its main thread uses the rank's place among running threads meanwhile.
    """
    if virtual is not None:
        virtual.begin(0)
        virtual.clock.end(rank)
        # The emulator may need longer to start than the job did until its first call.
        first_ns = int(root.shared.recording.columns["think_ns"][:1].sum() * root.shared.think_scale)
        begin_ns = max(begin_ns, virtual.clock.now_ns() - first_ns)
    root.run(begin_ns)
    if virtual is not None:
        virtual.clock.begin(rank)


def _noise() -> mmap.mmap:
    """Return random bytes to write, in page-aligned memory as O_DIRECT requires."""
    pages = mmap.mmap(-1, _NOISE_BYTES)
    pages.write(os.urandom(_NOISE_BYTES))
    return pages


def _why(descriptor: int) -> str:
    try:
        return os.read(descriptor, 4096).decode("utf-8", "replace").splitlines()[0]
    except (BlockingIOError, IndexError):
        return "a process of the replay failed"


def lateness(late: NDArray[np.int64]) -> dict[str, Any]:
    """Return {"calls", "median_s", "p99_s", "buckets"} of the delays (begin minus due) in seconds, by the counts `late`.

    Quantiles are the upper edges of buckets, which are octaves of nanoseconds.
    """
    total, sums = int(late.sum()), np.cumsum(late)

    def quantile(share: float) -> float | None:
        return None if not total else float(1 << int(np.searchsorted(sums, share * total))) / 1e9

    buckets = [{"below_s": float(1 << bucket) / 1e9, "calls": int(count)} for bucket, count in enumerate(late) if count]
    return {"calls": total, "median_s": quantile(0.5), "p99_s": quantile(0.99), "buckets": buckets}
