"""Enlarges reads of ranks that read each batch by one call: an edited batch of twice the size is one read of twice the size."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.workload_yaml.recording import Op, TwinRecording


def join_reads(
    columns: dict[str, NDArray[Any]], batch: NDArray[np.int64], recorded: TwinRecording, most: int
) -> dict[str, NDArray[Any]]:
    """Return the columns of an edited recording's rows, with up to `most` consecutive reads joined into one.

    Reads are joined if no computation lies between them, each starts at the offset at which the previous one ended, and each was
    the only read for its recorded batch. `batch`: the recorded batch of each row, -1 for none.
    """
    alone = np.append(_read_by_one_call(recorded), False)[batch]  # the last element: rows without a batch
    goes_on = alone[1:] & alone[:-1] & (batch[1:] != batch[:-1]) & (columns["think_ns"][1:] == 0)
    for name in ("thread", "op", "subject", "fd", "flags"):
        goes_on &= columns[name][1:] == columns[name][:-1]
    goes_on &= columns["offset"][1:] == columns["offset"][:-1] + columns["size"][:-1]
    row = np.arange(len(batch))
    first = np.maximum.accumulate(np.where(np.append(False, goes_on), 0, row))  # of those that follow one another
    begins = np.flatnonzero((row - first) % most == 0)  # without computation, batches follow one another without a pause, too
    return {name: np.add.reduceat(values, begins) if name == "size" else values[begins] for name, values in columns.items()}


def _read_by_one_call(recorded: TwinRecording) -> NDArray[np.bool_]:
    """Return, by recorded batch, whether a rank read it without loaders and by one call."""
    columns, batches = recorded.columns, recorded.batches
    of_batch = (columns["batch"] >= 0) & (columns["op"] < Op.PIPE_WRITE)
    calls, reads = (
        np.bincount(columns["batch"][of_batch & chosen], minlength=len(batches.loader))
        for chosen in (np.ones(len(of_batch), np.bool_), (columns["op"] == Op.READ) & (columns["offset"] >= 0))
    )
    found: NDArray[np.bool_] = (calls == 1) & (reads == 1) & np.isin(batches.loader, [each.process for each in batches.passes])
    return found
