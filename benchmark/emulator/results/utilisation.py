"""Accelerator utilisation (AU), as in summary.json, N_output.json and dlio.log."""

from collections.abc import Mapping

import numpy as np

from iotwin.benchmark.emulator.journal import Ints
from iotwin.workload_yaml import OutputMetric


def counted_steps(columns: Mapping[str, Ints], excluded: OutputMetric) -> dict[str, Ints]:
    """Return the columns of the steps that figures count: without the first and last steps of every block of each rank.

    `excluded` has the numbers of steps to exclude. A block is the steps between two checkpoints or evaluations of an epoch.
    """
    order = np.lexsort((columns["step"], columns["block"], columns["epoch"], columns["rank"]))
    keys = np.stack([columns[name][order] for name in ("rank", "epoch", "block")])
    begins = np.ones(len(order), bool)
    begins[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(order)))
    position = np.arange(len(order)) - np.repeat(starts, lengths)
    keep = (position >= excluded.exclude_start_steps) & (position < np.repeat(lengths, lengths) - excluded.exclude_end_steps)
    kept = np.sort(order[keep])
    return {name: column[kept] for name, column in columns.items()}


def accelerator_utilisation(columns: Mapping[str, Ints], excluded: OutputMetric) -> float | None:
    """Return the mean over ranks of the accelerator utilisation in percent; None if no steps are counted.

    As in MLPerf Storage, it is computation time over elapsed time of the counted steps. It is limited to 100 % for each rank,
    since an excluded step's delay may have shortened the sleeps of counted steps.
    """
    counted = counted_steps(columns, excluded)
    if not len(counted["step"]):
        return None
    compute, elapsed = (np.bincount(counted["rank"], weights=counted[name]) for name in ("compute_ns", "step_ns"))
    ranks = elapsed > 0
    return 100.0 * float(np.minimum(1.0, compute[ranks] / elapsed[ranks]).mean())
