"""Finds evaluations after epochs that come at an interval in steps, and makes them part of the last step of these epochs."""

from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.recorded.process_tree import Tree

_SHORTEST = 3  # least interval in steps: when a step ended is known only to a step if loaders deliver batches out of order


def with_step_evaluations(passes: list[pd.DataFrame], interrupting: pd.DataFrame, tree: Tree) -> list[pd.DataFrame]:
    """Return the passes of a rank. If it evaluates after every N steps, evaluations at the ends of epochs are no passes.

    `passes`: the batches of each pass with their times, in order. `interrupting`: batches of evaluations within epochs.

    A job that evaluates after every 100 steps also does so at the end of an epoch, if the epoch ends after such a step. A pass
    counts as such an evaluation if three conditions hold:

    * It has as many batches as each evaluation within the epochs, none of which interrupts it.
    * Together, all evaluations come after every N steps, up to the end of the run.
    * An epoch exists that no evaluation follows. Otherwise, the job may evaluate after each share of its epochs.

    The evaluation then belongs to the last step of the epoch before it, as others belong to the steps after which they come.
    """
    asked_ns = interrupting["requested_ns"].to_numpy(np.int64)
    taken_ns = np.sort(np.concatenate([each["taken_ns"].to_numpy(np.int64) for each in passes]))
    _, sizes = np.unique(np.searchsorted(taken_ns, asked_ns), return_counts=True)
    if len(np.unique(sizes)) != 1:
        return passes
    within = [each["taken_ns"].iloc[[0, -1]].searchsorted(asked_ns) for each in passes]
    evaluates = [len(each) == sizes[0] and not (at == 1).any() for each, at in zip(passes, within, strict=True)]
    follows = [not before and after for before, after in pairwise([True, *evaluates])]
    epochs = [each for each, evaluation in zip(passes, evaluates, strict=True) if not evaluation]
    if follows != evaluates or sum(evaluates) in (0, len(epochs)):
        return passes
    taken_ns = np.sort(np.concatenate([each["taken_ns"].to_numpy(np.int64) for each in epochs]))
    begun_ns = [int(each["requested_ns"].iloc[0]) for each, evaluation in zip(passes, evaluates, strict=True) if evaluation]
    if not _come_evenly(np.unique(np.searchsorted(taken_ns, np.append(asked_ns, begun_ns))), len(taken_ns)):
        return passes
    found: list[pd.DataFrame] = []
    for each, evaluation, after in zip(passes, evaluates, [*passes[1:], None], strict=True):
        found = [*found[:-1], _prolonged(found[-1], each, after, tree)] if evaluation else [*found, each]
    return found


def _come_evenly(after: NDArray[np.int64], steps: int) -> bool:
    """Return True if something comes after every N of the `steps` of a run. `after`: the numbers of steps after which it came."""
    every = int(after[-1]) // len(after)
    regular = np.abs(after - every * np.arange(1, len(after) + 1)).max() <= 1
    return bool(regular) and every >= _SHORTEST and steps - int(after[-1]) < every


def _prolonged(epoch: pd.DataFrame, evaluation: pd.DataFrame, after: pd.DataFrame | None, tree: Tree) -> pd.DataFrame:
    """Return the batches of an epoch whose last step lasts until the evaluation, and its loaders, have ended.

    `after`: the next pass, before which loaders end that serve this evaluation alone; None for none.
    """
    ended = [tree.end_ns[loader] for loader in evaluation["loader"].unique().tolist()]
    next_ns = int(after["requested_ns"].iloc[0]) if after is not None else tree.end_ns[int(epoch["process"].iloc[0])]
    computed = epoch["computed_ns"].to_numpy(np.int64).copy()
    computed[-1] = max(int(computed[-1]), int(evaluation["computed_ns"].iloc[-1]), *(at for at in ended if at < next_ns))
    return epoch.assign(computed_ns=computed)
