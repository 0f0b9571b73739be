"""Passes over the data set (epochs, evaluations) and the batches in them.

A loader process gets its work through a pipe: between two batches it reads the next batch's indices. So the samples between
two such reads are one batch, whatever the framework's own log says. A rank that reads the data set itself shows batches as runs
of samples between computations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.bursts import batches_by_pauses
from iotwin.benchmark.fit.batches.deliveries import LENGTH_BYTES
from iotwin.benchmark.fit.checkpoint_files import SeenFile, find_files, saved_ns
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.samples import Samples
from iotwin.benchmark.fit.windows import Window, find_windows
from iotwin.trace_store import schema

_LEAST_SHARE = 0.1  # a process that reads less than this share of what the busiest rank reads is no rank


@dataclass
class Pass:
    """One pass: an epoch's training, or an evaluation."""

    phase: str  # epoch | block (training steps between evaluations, where the job counts no epochs) | evaluation
    epoch: int  # from 1; of an evaluation the epoch it came after
    start_ns: int
    end_ns: int
    rank: int  # pid of the process that consumes the batches
    samples: NDArray[np.int64]  # in the order their batches were taken
    batches: pd.DataFrame  # pid, start_ns, end_ns, first, count: one row per batch, in the order the rank takes them
    accesses: pd.DataFrame  # of fit_samples, this pass's only, with the column batch
    pids: tuple[int, ...]  # loader processes
    batches_ahead: int | None  # most batches asked for and not yet taken; None when that could not be seen
    logged: bool  # by the job itself; False: inferred from the events
    rank_pids: tuple[int, ...]  # of the processes that consume batches, the first one's first
    saved: list[SeenFile]  # checkpoint files of the job; what the rank writes is no computation
    every: NDArray[np.int64]  # samples that all ranks read, the first of each rank, then the second of each, and so on
    reads: NDArray[np.int64]  # of Samples.reads: of `samples`, or with several ranks of `every`; none where samples are files

    @property
    def batch_sizes(self) -> list[int]:
        """Samples of each batch, in the order the batches were taken."""
        return [int(count) for count in self.batches["count"]]

    @property
    def ranks(self) -> int:
        """How many processes consume batches."""
        return len(self.rank_pids)

    @property
    def workers(self) -> int:
        """Loader processes that read in this pass; 0 when the rank reads by itself."""
        return len(self.pids)


def find_passes(job: Job, samples: Samples) -> list[Pass]:
    """Return the passes over the data set in order of time; those of one rank (the first) when there are several."""
    unfed = _unfed(job)
    # An imported trace may not show who started a loader.
    is_rank = job.processes["pid"].isin(unfed) | job.processes["ppid"].isna()
    processes = job.processes.assign(role=job.processes["role"].astype(str).mask(is_rank, "rank"))
    handovers, saved = _handovers(job, processes), find_files(job)
    windows = find_windows(job, samples, not unfed)
    parts = [(window, accesses) for window, accesses in _parts(samples.accesses, windows) if len(accesses)]
    alone = _batches_alone(parts, processes, saved) if parts else pd.Series()
    parts = [(window, accesses.assign(batch=alone.reindex(accesses.index)).reset_index(drop=True)) for window, accesses in parts]
    return [_pass(window, accesses, processes, handovers, saved, samples.layout == "dlrm") for window, accesses in parts]


def _parts(accesses: pd.DataFrame, windows: Sequence[Window]) -> Iterator[tuple[Window, pd.DataFrame]]:
    """Yield each window in which something begins, and the accesses that begin in it, of its processes, in their order."""
    order = np.argsort(accesses["start_ns"].to_numpy(), kind="stable")
    starts = accesses["start_ns"].to_numpy()[order]
    firsts = np.searchsorted(starts, [window.start_ns for window in windows])
    ends = np.searchsorted(starts, [window.end_ns for window in windows], side="right")
    for index in np.flatnonzero(ends > firsts).tolist():
        inside = accesses.iloc[np.sort(order[firsts[index] : ends[index]])]
        pids = windows[index].pids
        yield windows[index], inside if pids is None else inside[inside["pid"].isin(pids)]


def _handovers(job: Job, processes: pd.DataFrame) -> pd.DataFrame:
    """Reads and writes of pipes by ranks and loaders: pid, start_ns, end_ns, file_id, result, is_read."""
    events = job.calls_on(job.file_ids("pipe"), [*schema.READ_OPS, *schema.WRITE_OPS])
    events = events[events["result"] > 0]
    roles = dict(zip(processes["pid"], processes["role"].astype(str), strict=True))
    events = events[events["pid"].map(roles).isin(["rank", "loader"])]
    events = events.assign(is_read=events["op"].isin(schema.READ_OPS))
    return events[["pid", "start_ns", "end_ns", "file_id", "result", "is_read"]]


def _unfed(job: Job) -> set[int]:
    """Forked readers that are no loaders: no process writes them work, though the trace would show that. Each is a rank."""
    forks = set(job.processes.loc[job.processes["role"] == "loader", "pid"].tolist())
    listeners = set(job.calls_on(job.file_ids("pipe", "socket"), schema.READ_OPS)["pid"].tolist())
    return forks if listeners and not listeners & forks else set()


def _pass(
    window: Window,
    accesses: pd.DataFrame,
    processes: pd.DataFrame,
    handovers: pd.DataFrame,
    saved: list[SeenFile],
    batches_read: bool,
) -> Pass:
    readers = [int(pid) for pid in pd.unique(accesses["pid"])]
    parents = dict(zip(processes["pid"], processes["ppid"], strict=True))
    roles = dict(zip(processes["pid"], processes["role"].astype(str), strict=True))
    begins = dict(zip(processes["pid"], processes["start_ns"], strict=True))
    loaders = sorted((pid for pid in readers if roles.get(pid) == "loader"), key=lambda pid: begins[pid])
    rank = int(parents[loaders[0]]) if loaders else readers[0]
    own = [pid for pid in loaders if parents[pid] == rank] or [rank]
    together = _of_all_ranks(accesses, {pid: parents[pid] if pid in loaders else pid for pid in readers})
    accesses = accesses[accesses["pid"].isin(own)].reset_index(drop=True)
    # A rank of DLRM reads a batch at a time.
    single = batches_read and not loaders
    if single or loaders:
        accesses["batch"] = np.arange(len(accesses)) if single else _number_batches(accesses, handovers)
    ahead = _batches_ahead(own, rank, handovers, window) if loaders else None
    batches = _batches(accesses)
    # The rank takes batch k from worker k mod n: the k-th batch of each worker, workers in the order they began.
    batches["turn"] = batches.groupby("pid").cumcount()
    batches["worker"] = batches["pid"].map({pid: i for i, pid in enumerate(own)})
    batches = batches.sort_values(["turn", "worker"], kind="stable").reset_index(drop=True)
    order = np.argsort(pd.Index(batches["batch"]).get_indexer(pd.Index(accesses["batch"])), kind="stable")
    ranks = (rank, *(int(pid) for pid in together["rank"].unique() if pid != rank))
    read = (together if len(ranks) > 1 else accesses.iloc[order]).get("read", pd.Series(dtype=np.int64))
    return Pass(
        window.phase, window.epoch, window.start_ns, window.end_ns, rank, accesses["sample"].to_numpy()[order], batches, accesses,
        tuple(own) if loaders else (), ahead, window.logged, ranks, saved, together["sample"].to_numpy(np.int64),
        read.to_numpy(np.int64),
    )  # fmt: skip


def _of_all_ranks(accesses: pd.DataFrame, rank_of: dict[int, int]) -> pd.DataFrame:
    """Return the accesses of the ranks (column `rank`) that read, in turn: the first of each rank, then the second of each."""
    rank = accesses["pid"].map(rank_of)
    counts = rank.value_counts()
    busy = rank.isin(counts[counts >= _LEAST_SHARE * counts.max()].index)
    accesses, rank = accesses[busy], rank[busy]
    return accesses.assign(rank=rank).iloc[np.lexsort((rank, accesses.groupby(rank).cumcount()))]


def _number_batches(accesses: pd.DataFrame, handovers: pd.DataFrame) -> NDArray[np.int64]:
    """Number the batch of each access of loaders, process by process; numbers are not shared between processes."""
    number = np.zeros(len(accesses), np.int64)
    pids, starts, ends = (accesses[name].to_numpy() for name in ("pid", "start_ns", "end_ns"))
    reads = handovers[handovers["is_read"]]
    taken = 0
    for pid in pd.unique(pids):
        rows = np.flatnonzero(pids == pid)
        times = np.sort(reads.loc[reads["pid"] == pid, "start_ns"].to_numpy())
        own = _batches_by_handover(starts[rows], times) if len(times) else batches_by_pauses(starts[rows], ends[rows])
        number[rows] = taken + own
        taken = int(number[rows].max()) + 1
    return number


def _batches_alone(parts: Sequence[tuple[Window, pd.DataFrame]], processes: pd.DataFrame, saved: list[SeenFile]) -> pd.Series:
    """Return by access the number of its batch, for accesses of processes that nobody hands work.

    One evaluation may have too few batches to show their size: all are looked at together.
    """
    own_parts = [(0 if window.phase == "evaluation" else part + 1, part, own) for part, (window, own) in enumerate(parts)]
    read = pd.concat([own.assign(part=part, alike=alike) for alike, part, own in own_parts])
    read = read[~read["pid"].isin(processes.loc[processes["role"] == "loader", "pid"])]
    numbers = pd.Series(0, read.index)
    taken = 0
    for _, own in read.groupby(["alike", "pid"]):
        begins, ends, part = (own[name].to_numpy(np.int64, copy=True) for name in ("start_ns", "end_ns", "part"))
        ends[:-1] += saved_ns(saved, int(own["pid"].iloc[0]), ends[:-1], begins[1:])
        begun = np.diff(part) > 0
        # What passed between two passes says nothing of batches but that one ended.
        gaps = (begins[1:] - ends[:-1])[~begun]
        if len(gaps):
            ends[:-1][begun] = begins[1:][begun] - gaps.max()
        number = batches_by_pauses(begins, ends)
        numbers[own.index] = taken + np.cumsum(np.append(False, begun | (np.diff(number) > 0)))
        taken += len(own)
    return numbers


def _batches_by_handover(starts: NDArray[np.int64], pipe_reads: NDArray[np.int64]) -> NDArray[np.int64]:
    """A batch begins where the process read from a pipe since its last access."""
    fresh = np.diff(np.searchsorted(pipe_reads, starts), prepend=-1) > 0
    number: NDArray[np.int64] = np.cumsum(fresh) - 1
    return number


def _batches(accesses: pd.DataFrame) -> pd.DataFrame:
    return accesses.groupby("batch", as_index=False).agg(
        pid=("pid", "first"), start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), count=("sample", "size")
    )


def _batches_ahead(loaders: Sequence[int], rank: int, handovers: pd.DataFrame, window: Window) -> int | None:
    """The most batches that were asked for and not yet taken: what the rank keeps in flight.

    The rank asks by one write per batch to the pipes its loaders read from, and takes results from the pipe they write to. On a
    busy machine the thread that writes may lag behind at first, so that not only the first result counts.
    """
    until = handovers[handovers["start_ns"] <= window.end_ns]
    inside = until[until["start_ns"] >= window.start_ns]
    asked_on = inside.loc[inside["pid"].isin(loaders) & inside["is_read"], "file_id"].unique()
    given_on = inside.loc[inside["pid"].isin(loaders) & ~inside["is_read"], "file_id"].unique()
    asked = until.loc[(until["pid"] == rank) & ~until["is_read"] & until["file_id"].isin(asked_on), "start_ns"]
    takes = (until["pid"] == rank) & until["is_read"] & until["file_id"].isin(given_on) & (until["result"] != LENGTH_BYTES)
    taken = np.sort(until.loc[takes, "start_ns"].to_numpy())
    # Of loaders that are kept, the first batches are asked for before the pass, which begins with a read.
    first = int(np.searchsorted(taken, window.start_ns))
    asked, taken = asked[asked > taken[first - 1]] if first else asked, taken[first:]
    if asked.empty or not len(taken):
        return None
    return max(int((np.searchsorted(np.sort(asked.to_numpy()), taken) - np.arange(len(taken))).max()), 1)
