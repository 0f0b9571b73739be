"""How long the ranks wait for data."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa

from iotwin.trace_store.schema import WAIT_OPS
from iotwin.tracesim.phases import Occurrences
from iotwin.tracesim.steps_and_waits import StepTimes

TIMES = pa.schema([("tid", pa.int64()), ("start_ns", pa.int64()), ("duration_ns", pa.int64())])


def one_occurrence(end_ns):
    lowest = np.iinfo(np.int64).min
    zero = np.zeros(1, np.int64)
    return Occurrences(zero, zero, zero + end_ns, zero + end_ns, np.array([lowest]), zero)


def waits(*rows):
    """A trace whose ranks 10 and 20 wait: (thread, start, end)."""
    table = pa.table([pa.array(column) for column in zip(*((t, s, e - s) for t, s, e in rows), strict=True)], schema=TIMES)
    return SimpleNamespace(
        phases=lambda: pd.DataFrame({"phase": [], "start_ns": pd.Series(dtype="int64"), "end_ns": pd.Series(dtype="int64")}),
        processes=lambda: pd.DataFrame({"role": ["rank", "rank", "loader"], "pid": [10, 20, 30]}),
        manifest=SimpleNamespace(counts={min(WAIT_OPS): len(rows)}),
        events=lambda columns, where: iter(table.to_batches()),
    )


def test_waits_are_added_up_and_are_the_mean_of_the_ranks():
    times = StepTimes(waits((10, 0, 1), (20, 5, 6), (10, 11, 12), (20, 25, 27)), one_occurrence(30))
    assert times.wait_ns.tolist() == [(1 + 1 + 1 + 2) / 2], "of two ranks"
