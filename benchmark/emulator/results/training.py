"""The figures of training that all twins share: the time of a step and of an epoch, and the accelerator's utilisation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from iotwin.benchmark.emulator.journal import PHASES
from iotwin.benchmark.emulator.results.step_table import StepTable, where

_PARTS = ("compute_ns", "data_wait_ns", "barrier_ns")


class TrainedPass(NamedTuple):
    """One rank's training for one epoch, in ns. The parts leave out the first step, in which loaders start."""

    rank: int
    epoch: int  # counted from 1 for each rank
    steps: int
    duration_ns: int  # from the request for the first batch to the end of the last step
    compute_ns: int
    data_wait_ns: int
    rank_wait_ns: int  # waiting for other ranks
    storage_ns: int  # calls on files that are no wait for data, such as writing checkpoints


def training_document(passes: Sequence[TrainedPass]) -> dict[str, Any] | None:
    """Return the figures over all passes; None if there are no passes.

    `step_s` is the duration of the passes divided by their steps, so it includes the start of loaders and checkpoints. The parts
    (`compute_s` and so on) are sums over ranks, without the first step of each pass. `au` is the share (0 to 1) of computation in
    the time for which a rank computed, waited for data or waited for other ranks; None if every pass has one step.
    """
    steps = sum(each.steps for each in passes)
    if not steps:
        return None
    compute, waits, ranks, storage = (
        sum(each) for each in zip(*((p.compute_ns, p.data_wait_ns, p.rank_wait_ns, p.storage_ns) for p in passes), strict=True)
    )
    counted = compute + waits + ranks
    epochs = sorted({each.epoch for each in passes})
    return {
        "steps": steps,
        "step_s": sum(each.duration_ns for each in passes) / steps / 1e9,
        "epoch_s": [max(each.duration_ns for each in passes if each.epoch == epoch) / 1e9 for epoch in epochs],
        "au": compute / counted if counted and any(each.steps > 1 for each in passes) else None,
        "compute_s": compute / 1e9,
        "data_wait_s": waits / 1e9,
        "rank_wait_s": ranks / 1e9,
        "storage_s": storage / 1e9,
        "passes": [
            {"rank": each.rank, "epoch": each.epoch, "steps": each.steps, "duration_s": each.duration_ns / 1e9} for each in passes
        ],
    }


def passes_of(table: StepTable, saving_ns: Mapping[tuple[int, int], int]) -> Iterator[TrainedPass]:
    """Yield the training passes of a run without a recording. `saving_ns`: time of writing checkpoints, by (rank, epoch)."""
    for rank in range(table.ranks):
        columns = where(table.of_rank(rank), phase=PHASES.index("train"))
        for number, epoch in enumerate(np.unique(columns["epoch"]).tolist(), 1):
            rows = np.flatnonzero(columns["epoch"] == epoch)
            begin_ns, end_ns = columns["start_ns"][rows[0]], columns["start_ns"][rows[-1]] + columns["step_ns"][rows[-1]]
            compute_ns, data_ns, ranks_ns = (int(columns[name][rows[1:]].sum()) for name in _PARTS)
            saved_ns = saving_ns.get((rank, epoch), 0)
            yield TrainedPass(rank, number, len(rows), int(end_ns - begin_ns), compute_ns, data_ns, ranks_ns, saved_ns)
