"""Does similarity distinguish jobs? Which traces are nearest to their own job, by the scores of all pairs?"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.reader import Trace
from iotwin.tracesim import score_all


def all_scores(rows: Sequence[Trace], columns: Sequence[Trace]) -> NDArray[np.float64]:
    """Return the overall scores, shape (rows, columns); every trace has one."""
    return np.array(score_all(rows, columns), np.float64)


def repeats_apart(scores: NDArray[np.float64], job: Sequence[int]) -> NDArray[np.float64]:
    """Return for each run how much nearer the farthest repeat of its job is than the nearest run of any other job.

    `scores` are those of all runs against all, shape (runs, runs); run i is of job `job[i]`.
    """
    same = np.equal.outer(job, job)
    inside = np.where(same, scores, np.inf).min(axis=1)
    outside = np.where(same, -np.inf, scores).max(axis=1)
    apart: NDArray[np.float64] = inside - outside
    return apart


def twins_apart(scores: NDArray[np.float64], job: Sequence[int], own: Sequence[int]) -> NDArray[np.float64]:
    """Return for each twin how much nearer the nearest run of its own job is than the nearest run of any other.

    `scores` has shape (runs, twins); twin k is of job `own[k]`.
    """
    same = np.equal.outer(job, own)
    apart: NDArray[np.float64] = np.where(same, scores, -np.inf).max(axis=0) - np.where(same, -np.inf, scores).max(axis=0)
    return apart
