"""Turns calls into rows of a recording: inserts the starts and ends of threads and processes, and hand-overs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.recorded.hand_overs import hand_overs
from iotwin.benchmark.fit.recorded.process_tree import Tree
from iotwin.benchmark.fit.traced_job import Job
from iotwin.workload_yaml.recording import CALLS, COLUMNS, Mark, Op

_LONGEST_WAKE_NS = 50_000_000  # longest time from a child's end to the next call of its parent, if the parent waited for it
_KEYS = {"init": "init", "epoch": "epoch", "block": "block", "evaluation": "eval", "checkpoint": "checkpoint", "step": "step"}
_ZERO_THINK = (Op.JOIN, Op.WAIT)  # these begin directly after the previous row: all time before their end was waiting
_ENDS_COUNT = (Op.PIPE_READ, Op.POLL)
ROW_COLUMNS = ["thread", "at", "end", "op", "subject", "fd", "offset", "size", "flags"]


def marks_of(job: Job) -> tuple[list[Mark], NDArray[np.int64]]:
    """Return the lines of the log of the first rank, and when each was written."""
    phases = job.phases
    phases = phases[(phases["rank"] == phases["rank"].min()) & phases["end_ns"].notna() & phases["phase"].isin(list(_KEYS))]
    marks, times = [], []
    manifest = job.trace.manifest  # a log on another clock gives no times
    phases = phases[(phases["start_ns"] >= manifest.start_ns) & (phases["end_ns"] <= manifest.end_ns)]
    for phase in phases.itertuples():
        epoch, step = (None if pd.isna(value) else int(value) for value in (phase.epoch, phase.step))
        for begins, time_ns in ((True, phase.start_ns), (False, phase.end_ns)):
            marks.append(Mark(_KEYS[str(phase.phase)], begins, epoch, step))
            times.append(int(time_ns))
    return marks, np.array(times, np.int64)


def assemble(tree: Tree, rows: pd.DataFrame, marks_ns: NDArray[np.int64], rank: int) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the columns of the recording's rows and the number of channels.

    rows: the traced calls, with the columns ROW_COLUMNS. The frame is emptied meanwhile, so that no column is in memory twice.
    """
    threads = _threads(tree, rows)
    begins = {thread: at for _, at, _, thread in threads}
    added, channels = hand_overs(tree, rows, begins)
    added += threads
    added += _starts(tree, rows)
    added += [(tree.main(rank), int(time_ns), Op.MARK, mark) for mark, time_ns in enumerate(marks_ns)]
    rows = _with(rows, added)
    rows = _with(rows, _joins(tree, rows))
    ends = rows.groupby("thread")["end"].max()
    last = [(tree.main(p), max(tree.end_ns[p], int(ends.get(tree.main(p), 0))), Op.END, 0) for p in range(len(tree.pids))]
    rows = _with(rows, last)
    return _columns(tree, rows), channels


def _with(rows: pd.DataFrame, added: Sequence[tuple[int, int, int, int]]) -> pd.DataFrame:
    """Add rows of (thread, time, op, subject) and sort: an added row comes before a call that began at the same time.

    `rows` loses each column as soon as the new frame has it, so that few columns are in memory twice.
    """
    thread, at, op, subject = np.array(added, np.int64).reshape(-1, 4).T
    more = {"thread": thread, "at": at, "end": at, "op": op, "subject": subject}
    missing = {"fd": -1, "offset": -1, "size": 0, "flags": 0}

    def joined(name: str, own: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([own, more.get(name, np.full(len(at), missing.get(name))).astype(own.dtype)])

    every, *keys = (joined(name, rows[name].to_numpy()) for name in ("op", "at", "thread"))
    order = np.lexsort((np.select([every == Op.END, every < CALLS], [2, 1], 0).astype(np.int8), *keys))
    del every, keys
    return pd.DataFrame({name: joined(name, rows.pop(name).to_numpy())[order] for name in ROW_COLUMNS}, copy=False)


def _threads(tree: Tree, rows: pd.DataFrame) -> list[tuple[int, int, int, int]]:
    """Return starts of threads: after the main thread's last call that ended before the thread's first one."""
    first = rows.groupby("thread")["at"].min()
    ends = {thread: np.sort(part["end"].to_numpy(np.int64)) for thread, part in rows.groupby("thread")}
    added = []
    for thread, process in enumerate(tree.process):
        main = tree.main(process)
        if thread != main:
            own = ends.get(main, np.zeros(0, np.int64))
            before = int(np.searchsorted(own, int(first[thread]), side="right"))
            at = max(int(own[before - 1]) if before else 0, tree.begin_ns[process])
            added.append((main, min(at, int(first[thread])), int(Op.THREAD), thread))
    return added


def _starts(tree: Tree, rows: pd.DataFrame) -> list[tuple[int, int, int, int]]:
    """Return the starts of processes by their parents' main threads.

    If a parent was waiting then, the start precedes the wait.
    """
    waits = rows[rows["op"].isin(_ENDS_COUNT)]
    times = {thread: (part["at"].to_numpy(np.int64), part["end"].to_numpy(np.int64)) for thread, part in waits.groupby("thread")}
    added = []
    for process in range(1, len(tree.pids)):
        main, begun = tree.main(tree.parents[process]), tree.begin_ns[process]
        at, end = times.get(main, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        last = int(np.searchsorted(at, begun, side="right")) - 1
        added.append((main, int(at[last]) if last >= 0 and end[last] > begun else begun, int(Op.START), process))
    return added


def _joins(tree: Tree, rows: pd.DataFrame) -> list[tuple[int, int, int, int]]:
    """Return waits for processes: a parent waited if it was idle when its child ended and acted soon after."""
    added = []
    times = {thread: (part["at"].to_numpy(np.int64), part["end"].to_numpy(np.int64)) for thread, part in rows.groupby("thread")}
    for process in range(1, len(tree.pids)):
        main, ended = tree.main(tree.parents[process]), tree.end_ns[process]
        at, end = times.get(main, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        following = int(np.searchsorted(at, ended, side="right"))
        if following and end[following - 1] > ended:  # within a call, which then was the wait
            ended = int(end[following - 1])
        if following == len(at) or at[following] - ended < _LONGEST_WAKE_NS:
            added.append((main, ended, int(Op.JOIN), process))
    return added


def _columns(tree: Tree, rows: pd.DataFrame) -> dict[str, NDArray[Any]]:
    thread, at, op = (rows[name].to_numpy() for name in ("thread", "at", "op"))
    begins = np.array([tree.begin_ns[process] for process in tree.process], np.int64)
    for number in np.flatnonzero(op == Op.THREAD):
        begins[rows["subject"].iloc[number]] = at[number]
    # Of calls that overlap (asynchronous ones) the latest end counts.
    ends = rows["end"].groupby(thread).cummax().to_numpy(np.int64)
    first = np.append(True, thread[1:] != thread[:-1])
    before = np.where(first, begins[thread], np.append(0, ends[:-1]))
    think = np.where(np.isin(op, _ZERO_THINK), 0, np.maximum(at - before, 0))
    at_ns = np.where(np.isin(op, _ENDS_COUNT), rows["end"], at) - tree.begin_ns[0]
    values = {"at_ns": at_ns, "think_ns": think} | {name: rows[name].to_numpy() for name in COLUMNS if name in rows}
    return {name: values[name].astype(kind, copy=False) for name, kind in COLUMNS.items()}
