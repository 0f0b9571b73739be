"""Matches the reads of each pipe with the writes for which they waited, by the order of the bytes."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.workload_yaml.recording import Op, Pipe

POLL = -1  # an operation to be resolved later: a wait for several descriptors
_LONGEST_TURN_NS = 10_000_000  # longest time between a wait and the read that it was for


def match_pipes(calls: pd.DataFrame) -> tuple[pd.DataFrame, list[Pipe]]:
    """Return the calls and the pipes. For calls on pipes, `file` is the index of the pipe.

    A pipe is left out if earlier writes do not explain all its reads, because other programs wrote or calls were lost. A replay
    of it would wait forever. If a pipe has several readers or writers, messages are counted instead of bytes.
    """
    on_pipe = calls["op"].isin([Op.PIPE_READ, Op.PIPE_WRITE])
    kept, parts = ~on_pipe.to_numpy(np.bool_), []
    pipes: list[Pipe] = []
    for _, rows in calls[on_pipe].groupby("file", sort=True):
        writes = rows[rows["op"] == Op.PIPE_WRITE].sort_values("at", kind="stable")
        reads = rows[rows["op"] == Op.PIPE_READ].sort_values("end", kind="stable")
        written, taken = writes["moved"].to_numpy().cumsum(), reads["moved"].to_numpy().cumsum()
        before = np.searchsorted(writes["at"].to_numpy(), reads["end"].to_numpy(), side="right")
        if reads.empty or writes.empty or (np.append(0, written)[before] < taken).any():
            continue
        in_messages = writes["tid"].nunique() > 1 or reads["tid"].nunique() > 1
        sizes = rows["moved"].copy()
        if in_messages:
            needed = np.searchsorted(written, taken) + 1
            sizes.loc[reads.index] = np.diff(needed, prepend=0)
            sizes.loc[writes.index] = 1
        parts.append(rows.assign(file=len(pipes), size=sizes)[sizes > 0])
        pipes.append(Pipe(messages=bool(in_messages)))
    found = pd.concat([calls[kept], *parts]).sort_index(kind="stable").astype(calls.dtypes) if parts else calls[kept]
    return _with_polls(found), pipes


def _with_polls(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls, with only those waits for descriptors that precede a read of a pipe. Successive waits become one."""
    calls = calls.iloc[np.lexsort((calls["at"], calls["tid"]))]
    calls.index = pd.RangeIndex(len(calls))
    is_poll, tid = (calls["op"] == POLL).to_numpy(np.bool_), calls["tid"].to_numpy()
    if not is_poll.any():
        return calls
    rows = np.arange(len(calls))
    following = np.where(is_poll, len(calls), rows)
    following = np.minimum.accumulate(following[::-1])[::-1]
    following = np.minimum(following, len(calls) - 1)
    in_turn = (tid[following] == tid) & (calls["op"].to_numpy()[following] == Op.PIPE_READ)
    last_end = calls["end"].to_numpy()[np.maximum(following - 1, 0)]
    in_turn &= calls["at"].to_numpy()[following] - last_end < _LONGEST_TURN_NS
    # A wait that timed out is repeated at once; other waits are for something else.
    again = np.append(False, is_poll[:-1]) & (np.append(-1, tid[:-1]) == tid)
    again &= calls["at"].to_numpy() - np.append(0, calls["end"].to_numpy()[:-1]) < _LONGEST_TURN_NS
    kept = _first_of_last_run(is_poll & ~again, is_poll) & in_turn
    calls.loc[kept, "op"] = Op.POLL
    calls.loc[kept, "end"] = last_end[kept]
    calls.loc[kept, "file"] = calls["file"].to_numpy()[following[kept]]
    calls.loc[kept, "size"] = 0
    found: pd.DataFrame = calls[~is_poll | kept].reset_index(drop=True)
    return found


def _first_of_last_run(begins: NDArray[np.bool_], is_poll: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask of the starts of runs of waits, for each call only the last run before it. `begins`: mask of all starts."""
    rows = np.arange(len(begins))
    latest = np.maximum.accumulate(np.where(begins, rows, -1))
    last_poll = np.flatnonzero(is_poll & ~np.append(is_poll[1:], False))
    found = np.zeros(len(begins), np.bool_)
    found[latest[last_poll]] = True
    return found
