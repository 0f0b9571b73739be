"""Block requests by phase, direction and size."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.tracesim.logbins import BINS, log_bin, table
from iotwin.tracesim.phases import Occurrences

BLOCK_OPS = ("read", "write")


def block_bytes(block: pd.DataFrame | None, occurrences: Occurrences) -> NDArray[np.float64]:
    """Return histograms of the bytes of block requests by size, for reads and writes: shape (occurrences, 2 * BINS).

    An occurrence is one run of a phase, such as an epoch. `block` is the trace's table of block requests; if None, the result
    is zeros.
    """
    n = occurrences.number
    if block is None:
        return np.zeros((n, len(BLOCK_OPS) * BINS))
    direction = block["op"].map({op: index for index, op in enumerate(BLOCK_OPS)}).to_numpy(np.float64)
    moving = ~np.isnan(direction)
    size = block["size_bytes"].to_numpy(np.int64)[moving]
    cell = direction[moving].astype(np.int64) * BINS + log_bin(size)
    return table(occurrences.at(block["issue_ns"].to_numpy(np.int64)[moving]), cell, size, n, len(BLOCK_OPS) * BINS)
