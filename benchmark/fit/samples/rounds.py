"""When loaders that stay begin a pass anew, told by what they are handed.

A rank asks its loaders for batches ahead of the one that it takes, so that all it asked for has been taken only where a pass
ends. What is asked for after that begins another pass if it was read before: of a rank that asks for one batch at a time each
batch ends so.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.deliveries import LENGTH_BYTES
from iotwin.benchmark.fit.look import Job
from iotwin.trace_store import schema

_READ_BEFORE = 0.5  # a pass is read anew if this share of its samples was read in those before it


def begin_anew_ns(job: Job, pids: Sequence[int], accesses: pd.DataFrame) -> list[int]:
    """Return when passes after the first one of the loaders `pids` begin, ascending; none where hand-overs do not tell.

    `accesses` are the loaders' own, in order of start. Loaders of several ranks begin with the first rank that asks.
    """
    parents = job.processes[job.processes["pid"].isin(pids)].groupby("ppid")["pid"]
    moved = job.calls_on(job.file_ids("pipe"), [*schema.READ_OPS, *schema.WRITE_OPS])
    moved = moved[moved["result"] > 0]
    of_ranks = []
    for rank, own in parents:
        starts = accesses.loc[accesses["pid"].isin(own), "start_ns"].to_numpy(np.int64)
        of_ranks.append(_between_reads(_asked_anew(moved, rank, own), starts))
    if len({len(begins) for begins in of_ranks}) != 1:
        return []
    begins = np.min(of_ranks, axis=0)
    return begins.tolist() if _are_read_anew(accesses, begins) else []


def _asked_anew(moved: pd.DataFrame, rank: object, loaders: pd.Series) -> NDArray[np.int64]:
    """Return when the rank asked its loaders for a batch while it waited for none; nothing where the two do not balance."""
    by_loader, by_rank, reads = moved["pid"].isin(loaders), moved["pid"] == rank, moved["op"].isin(schema.READ_OPS)
    asked_on = moved.loc[by_loader & reads, "file_id"].unique()
    given_on = moved.loc[by_loader & ~reads, "file_id"].unique()
    message = moved["result"] != LENGTH_BYTES
    asked_ns = moved.loc[by_rank & ~reads & message & moved["file_id"].isin(asked_on), "start_ns"].to_numpy(np.int64)
    taken = moved[by_rank & reads & moved["file_id"].isin(given_on)]
    lengths = taken["result"] == LENGTH_BYTES  # one before each message, which may come in parts
    taken_ns = taken.loc[lengths if lengths.any() else ~lengths, "end_ns"].to_numpy(np.int64)
    asked_ns, taken_ns = np.sort(asked_ns), np.sort(taken_ns)
    if len(taken_ns) > len(asked_ns) or (asked_ns[: len(taken_ns)] > taken_ns).any():
        return np.zeros(0, np.int64)
    anew: NDArray[np.int64] = asked_ns[np.searchsorted(taken_ns, asked_ns) == np.arange(len(asked_ns))]
    return anew


def _between_reads(asked_ns: NDArray[np.int64], starts_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moments just before the first of these requests between two reads, but for those before any read."""
    reads_before = np.searchsorted(starts_ns, asked_ns)
    first = np.diff(reads_before, prepend=0) > 0
    begins: NDArray[np.int64] = asked_ns[first & (reads_before < len(starts_ns))] - 1
    return begins


def _are_read_anew(accesses: pd.DataFrame, begins: NDArray[np.int64]) -> bool:
    """Whether most samples of each pass after the first were read in those before it."""
    number = np.searchsorted(begins, accesses["start_ns"].to_numpy(np.int64))
    seen = accesses.assign(number=number).groupby(["number", "sample"]).size().reset_index()
    again = seen.duplicated("sample").groupby(seen["number"]).mean()
    return bool((again[1:] >= _READ_BEFORE).all())
