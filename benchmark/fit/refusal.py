"""Traces that show no training: refused with the reason, before a useless twin is made."""

from collections.abc import Sequence

import numpy as np

from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.passes import Pass
from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema

_NOT_WRITTEN_BY_COPIES = ("dataset", "log", "pipe", "socket", "device", "system")
_COPIED = 0.8  # a job copies if it writes this share of the bytes it reads, in this share of the stretches between reads
_STRETCHES = 20
_IN_SEQUENCE = 0.9  # share of reads that begin where their file's last read ended
_MADE = 0.5  # a job makes files of its data if its loaders write this share of what it keeps
_FEWEST_PROGRAMS = 3  # so many processes that read a file or two each are programs, not ranks


def check_is_training(job: Job, training: Sequence[Pass]) -> None:
    """Raise IotwinError, saying why, when unlogged passes are a copy of the files or the inputs of many programs.

    A job that logs its epochs is believed.
    """
    if training[0].logged:
        return
    first = training[0]
    if not first.workers and first.ranks >= _FEWEST_PROGRAMS and len(first.every) <= 2 * first.ranks:
        raise IotwinError(
            f"{job.path}: this is no training job: {first.ranks} programs read {len(first.every)} files, once each and no "
            "more, as a build does; trace a job that goes through a data set"
        )
    if _are_programs(job, training):
        raise IotwinError(
            f"{job.path}: this is no training job: what looks like {len(training)} epochs are as many programs that "
            "read the same files, as a build does; trace a job that goes through a data set"
        )
    if made := _made_by_loaders(training):
        raise IotwinError(
            f"{job.path}: this is no training job: the processes that read its data wrote {made} files themselves, as data are "
            "prepared; trace a job that goes through a data set"
        )
    # Epochs of one process may each end with a checkpoint as large as the data: only passes of a process each are copies.
    if len({part.rank for part in training}) == len(training) and all(_copies(job, part) for part in training):
        raise IotwinError(
            f"{job.path}: this is no training job: what it reads it writes again at once, as a copy does; trace a job that "
            "goes through a data set"
        )


def _made_by_loaders(training: Sequence[Pass]) -> int:
    """How many files the loaders wrote that look like checkpoints; 0 where most are others', which save what was trained."""
    loaders, saved = {pid for part in training for pid in part.pids}, training[0].saved
    made = sum(file.pid in loaders for file in saved)
    return made if made > _MADE * len(saved) else 0


def _are_programs(job: Job, training: Sequence[Pass]) -> bool:
    """Whether each pass was made by another program: the inputs that they share are read again by each."""
    loaders = set(job.processes.loc[job.processes["role"] == "loader", "pid"].tolist())
    ranks = {part.rank for part in training if not part.workers} - loaders
    return _FEWEST_PROGRAMS <= len(training) == len(ranks)


def _copies(job: Job, part: Pass) -> bool:
    """Whether one process goes through its files from front to back and writes as much all along the way."""
    chosen = job.calls["pid"].isin([part.rank]) & job.calls["op"].isin([*schema.READ_OPS, *schema.WRITE_OPS])
    calls = job.calls[chosen & (job.calls["result"] > 0) & (job.calls["file_id"] >= 0)]
    kind = calls["file_id"].map(job.files.set_index("file_id")["kind"].astype(str))
    reads = calls[calls["op"].isin(schema.READ_OPS) & (kind == "dataset")]
    if part.workers or not len(reads):
        return False
    ends = (reads["offset"] + reads["result"]).groupby(reads["file_id"]).shift(fill_value=0)
    if (reads["offset"].fillna(ends) == ends).mean() < _IN_SEQUENCE:
        return False
    # The first stretch of reads may only fill a buffer, and the last file is written after its last read.
    edges = reads["start_ns"].to_numpy()[np.linspace(0, len(reads) - 1, min(_STRETCHES, len(reads))).astype(np.int64)]
    last = reads["file_id"] == reads["file_id"].iloc[-1]
    read_bytes = int(reads["result"].sum())
    needed = int(reads.loc[~last, "result"].sum()) or read_bytes
    writes = calls[calls["op"].isin(schema.WRITE_OPS) & ~kind.isin(_NOT_WRITTEN_BY_COPIES)]
    if len(edges) > 1:
        written_in = np.unique(np.searchsorted(edges, writes["start_ns"], side="right"))
        if np.isin(np.arange(1, len(edges)), written_in).mean() < _COPIED:
            return False
    written = int(writes["result"].sum())
    return _COPIED * needed <= written <= read_bytes / _COPIED
