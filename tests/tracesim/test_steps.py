"""What lies between two waits for data: of each thread by itself."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa

from tracesim.phases import Occurrences
from tracesim.steps import StepTimes
from tracing_tools.trace.schema import WAIT_OPS

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


def test_between_waits_is_of_one_thread_at_a_time():
    """Threads of 10 and of 19 between their waits, which alternate: more than half of all that time is in the longer one."""
    times = StepTimes(waits((10, 0, 1), (20, 5, 6), (10, 11, 12), (20, 25, 27)), one_occurrence(30))
    assert times.between_waits_ns.tolist() == [19]
    assert times.wait_ns.tolist() == [(1 + 1 + 1 + 2) / 2], "of two ranks"


def test_typical_is_what_half_of_the_time_is_in():
    times = StepTimes(waits((10, 0, 1), (10, 3, 4), (10, 6, 7), (10, 17, 18)), one_occurrence(20))
    assert times.between_waits_ns.tolist() == [10], "2, 2 and 10: two thirds of it in the last"
