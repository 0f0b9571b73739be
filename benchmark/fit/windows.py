"""When a job went over its data: as it logged, or inferred from which process read what.

Loaders that are forked together are a generation: a framework asks for the first batch once all of them have begun, so one that
begins after another has read belongs to the next. A generation that is gone after one pass is an epoch or an evaluation; one that
stays makes several, and a pass of its own begins where it is asked anew for what it read before, or, where its requests do not
tell, where samples come again. Generations that read other samples than those of the training are evaluations; so are passes over
another set, where one process reads them in turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.rounds import begin_anew_ns
from iotwin.benchmark.fit.samples.samples import Samples
from iotwin.benchmark.fit.samples.sets import evaluation_samples
from iotwin.trace_store import schema

_OF_ALL = 0.5  # a job counts epochs if this share of all samples comes before any comes again: drawn at random, few do
_SHARED = 0.1  # two generations read one set if this share of the smaller one's samples is read by the other too


@dataclass
class Window:
    """When a pass was; the fields are those of Pass."""

    phase: str
    epoch: int
    start_ns: int
    end_ns: int
    logged: bool
    pids: tuple[int, ...] | None = None  # who reads in it; None: everybody


def find_windows(job: Job, samples: Samples, fed: bool) -> list[Window]:
    """Return the times of the passes in order of start; `fed`: forked readers are handed work, so that they are loaders."""
    if logged := logged_windows(job):
        return logged
    generations = _generations(job, samples.accesses) if fed else []
    samples_return = samples.buffer_bytes is None  # what a step uses up is no sample that comes again
    if len(generations) > 1 or (generations and begin_anew_ns(job, generations[0].pids, generations[0].accesses)):
        windows = _windows_of_generations(job, generations, samples_return)
    else:
        windows = _windows_of_sets(samples, samples_return)
    windows[-1].end_ns = max([windows[-1].end_ns, *_handed_ns(job, samples.accesses["pid"])])
    return windows


def _handed_ns(job: Job, readers: pd.Series) -> list[int]:
    """When others had the last of what the readers of samples gave them through pipes: batches are taken after they were read."""
    handed = job.calls_on(job.file_ids("pipe"), [*schema.READ_OPS, *schema.WRITE_OPS])
    by_reader, reads = handed["pid"].isin(readers), handed["op"].isin(schema.READ_OPS)
    given = handed.loc[by_reader & ~reads, "file_id"].unique()
    taken = handed[~by_reader & reads & handed["file_id"].isin(given)]
    ends_ns: list[int] = taken["end_ns"].tail(1).tolist()
    return ends_ns


def logged_windows(job: Job) -> list[Window]:
    """Return the times of the passes as the job (its first rank) logged them, in order; none if it did not.

    Blocks of steps that the job counts by epochs, between which it only wrote checkpoints, are one pass an epoch.
    """
    phases = job.phases
    training = "epoch" if (phases["phase"] == "epoch").any() else "block"
    logged = phases[phases["phase"].isin([training, "evaluation"]) & (phases["rank"].fillna(0) == phases["rank"].fillna(0).min())]
    logged = logged.sort_values("start_ns")
    numbers = logged.loc[logged["phase"] == training, "epoch"].fillna(0)
    if training == "block" and numbers.nunique() > 1 and numbers.is_monotonic_increasing:
        whole = (logged["phase"] != logged["phase"].shift()) | (logged["epoch"] != logged["epoch"].shift())
        if (logged["phase"] == training)[whole].sum() == numbers.nunique():
            merged = logged.assign(phase=logged["phase"].astype(str).replace("block", "epoch")).groupby(whole.cumsum())
            logged = merged.agg({"phase": "first", "start_ns": "min", "end_ns": "max", "epoch": "first"})
            training = "epoch"
    windows, epoch = [], 0
    spans = zip(logged["phase"].astype(str), logged["start_ns"].tolist(), logged["end_ns"].tolist(), strict=True)
    for phase, start_ns, end_ns in spans:
        epoch += phase == training
        windows.append(Window(phase, max(epoch, 1), start_ns, end_ns, True))
    return windows


def _windows_of_sets(samples: Samples, samples_return: bool) -> list[Window]:
    """Windows of turns: of each of two sets that lie in files of their own, from its first sample to the other's."""
    accesses = samples.accesses.sort_values("start_ns", kind="stable")
    read = accesses["sample"].to_numpy(np.int64)
    evaluated = evaluation_samples(read) if samples_return else read[:0]
    training = np.setdiff1d(read, evaluated)
    if not len(evaluated) or np.intersect1d(samples.file_of(training), samples.file_of(evaluated)).size:
        return _windows_of_turns(accesses, samples_return)
    evaluates = np.isin(read, evaluated)
    windows = []
    for _, own in accesses.groupby(np.cumsum(np.diff(evaluates, prepend=evaluates[0]))):
        phase = "evaluation" if own["sample"].iloc[0] in evaluated else "epoch"
        windows += [replace(window, phase=phase) for window in _windows_of_turns(own, samples_return=True)]
    return _numbered(windows)


def _windows_of_turns(accesses: pd.DataFrame, samples_return: bool) -> list[Window]:
    """Windows that end where a sample comes again: each access is numbered by how often its sample was read before."""
    turn = accesses.groupby("sample").cumcount().to_numpy(np.int64)
    starts = accesses["start_ns"].to_numpy()
    if not samples_return or _at_random(turn):
        return [Window("block", 1, int(starts.min()), int(starts.max()), False)]
    order = np.argsort(turn, kind="stable")
    bounds = np.flatnonzero(np.diff(turn[order], prepend=-1))
    firsts, lasts = (pick.reduceat(starts[order], bounds).tolist() for pick in (np.minimum, np.maximum))
    windows = [Window("epoch", number, *span, False) for number, span in enumerate(zip(firsts, lasts, strict=True), 1)]
    for window, following in pairwise(windows):
        window.end_ns = following.start_ns - 1
    return windows


def _at_random(turn: NDArray[Any]) -> bool:
    """Whether samples come again long before all have come."""
    return bool(turn.any()) and int((turn > 0).argmax()) < _OF_ALL * int((turn == 0).sum())


@dataclass
class _Generation:
    """Loaders that were forked together, of all ranks, and what they read."""

    pids: tuple[int, ...]
    start_ns: int  # of the first loader
    accesses: pd.DataFrame

    @property
    def samples(self) -> set[int]:
        return set(self.accesses["sample"].tolist())


def _generations(job: Job, accesses: pd.DataFrame) -> list[_Generation]:
    """Return the generations of loaders in order of start; those of several ranks that read at the same time are one."""
    processes = job.processes[(job.processes["role"] == "loader") & job.processes["pid"].isin(accesses["pid"])]
    first_read = accesses.groupby("pid")["start_ns"].min()
    found: list[_Generation] = []
    for _, own in processes.sort_values("start_ns", kind="stable").groupby("ppid", sort=False):
        begins, reads = own["start_ns"].to_numpy(np.int64), first_read.reindex(own["pid"]).to_numpy(np.int64)
        number, earliest = np.zeros(len(own), np.int64), int(reads[0])
        for i in range(1, len(own)):
            begun = begins[i] > earliest
            number[i] = number[i - 1] + begun
            earliest = int(reads[i]) if begun else min(earliest, int(reads[i]))
        of_rank = [_generation(own.iloc[number == each], accesses) for each in range(number[-1] + 1)]
        found = _together(found, of_rank) if found else of_rank
    return sorted(found, key=lambda each: each.start_ns)


def _generation(processes: pd.DataFrame, accesses: pd.DataFrame) -> _Generation:
    pids = tuple(int(pid) for pid in processes["pid"])
    return _Generation(pids, int(processes["start_ns"].min()), accesses[accesses["pid"].isin(pids)])


def _together(first: list[_Generation], others: Sequence[_Generation]) -> list[_Generation]:
    """Add the generations of another rank to those that they overlap most in time."""
    spans = np.array([[each.start_ns, each.accesses["end_ns"].max()] for each in first])
    joined = list(first)
    for other in others:
        end_ns = other.accesses["end_ns"].max()
        into = int((np.minimum(spans[:, 1], end_ns) - np.maximum(spans[:, 0], other.start_ns)).argmax())
        known = joined[into]
        both = pd.concat([known.accesses, other.accesses]).sort_values("start_ns", kind="stable")
        joined[into] = _Generation((*known.pids, *other.pids), min(known.start_ns, other.start_ns), both)
    return joined


def _windows_of_generations(job: Job, generations: Sequence[_Generation], samples_return: bool) -> list[Window]:
    training, evaluation = _sets(generations)
    windows = []
    for phase, own in (("epoch", training), ("evaluation", evaluation)):
        windows += [replace(window, phase=phase) for each in own for window in _windows_of(job, each, samples_return)]
    return _numbered(sorted(windows, key=lambda window: window.start_ns))


def _numbered(windows: list[Window]) -> list[Window]:
    """Number epochs, and have each window, in order of start, end where the next one starts."""
    epoch = 0
    for window in windows:
        epoch += window.phase == "epoch"
        window.epoch = max(epoch, 1)
    for window, following in pairwise(windows):
        window.end_ns = following.start_ns - 1
    return windows


def _sets(generations: Sequence[_Generation]) -> tuple[list[_Generation], list[_Generation]]:
    """Return the generations that read the training set, which is read most, and those that read the set read next most."""
    sets: list[tuple[set[int], list[_Generation]]] = []
    for each in generations:
        own = each.samples
        known = next((entry for entry in sets if len(entry[0] & own) > _SHARED * min(len(entry[0]), len(own))), None)
        if known is None:
            sets.append((own, [each]))
        else:
            known[0].update(own)
            known[1].append(each)
    by_reads = sorted((own for _, own in sets), key=lambda own: -sum(len(each.accesses) for each in own))
    return by_reads[0], by_reads[1] if len(by_reads) > 1 else []


def _windows_of(job: Job, generation: _Generation, samples_return: bool) -> list[Window]:
    """The passes of one generation: one, or as many as its samples come again, each from the first batch asked for."""
    accesses = generation.accesses
    if begins := begin_anew_ns(job, generation.pids, accesses):
        starts_ns = [generation.start_ns, *begins]
        ends_ns = [*(begin - 1 for begin in begins), int(accesses["end_ns"].max())]
        spans = enumerate(zip(starts_ns, ends_ns, strict=True), 1)
        return [Window("epoch", index, *span, False, generation.pids) for index, span in spans]
    turn = accesses.groupby("sample").cumcount().to_numpy(np.int64)
    counts = np.bincount(turn)
    passes = int((counts >= _OF_ALL * counts[0]).sum())  # a few samples that come again make no pass
    turn = np.zeros_like(turn) if not samples_return or _at_random(turn) else np.minimum(turn, passes - 1)
    starts, ends = accesses["start_ns"].to_numpy(np.int64), accesses["end_ns"].to_numpy(np.int64)
    handed = job.calls_on(job.file_ids("pipe"), [*schema.READ_OPS, *schema.WRITE_OPS])
    by_loader, reads = handed["pid"].isin(generation.pids), handed["op"].isin(schema.READ_OPS)
    asked = handed[~by_loader & ~reads & handed["file_id"].isin(handed.loc[by_loader & reads, "file_id"].unique())]
    asked_ns = asked["start_ns"].to_numpy(np.int64)
    windows: list[Window] = []
    for index in range(int(turn.max()) + 1):
        own = turn == index
        start_ns = generation.start_ns
        if index:
            first = int(starts[own].min())
            done = int(ends[(turn < index) & (starts < first)].max())
            between = asked_ns[(asked_ns > done) & (asked_ns <= first)]
            start_ns = int(between[0]) - 1 if len(between) else first
        windows.append(Window("epoch", index + 1, start_ns, int(ends[own].max()), False, generation.pids))
    return windows
