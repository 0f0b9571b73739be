"""How long a row of the timeline is busy in each of its stretches, against a mark on every nanosecond."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from iotwin.tracesim.busy_time import BUSY_BINS, BusyTime
from iotwin.tracesim.calls import OPEN, READ, WRITE, Calls
from iotwin.tracesim.phases import Occurrences

LENGTH = 3 * BUSY_BINS  # of each of two occurrences, in nanoseconds

call = st.tuples(st.integers(0, 2 * LENGTH), st.integers(0, LENGTH), st.sampled_from([READ, WRITE, OPEN]), st.integers(0, 2))
request = st.tuples(st.integers(0, 2 * LENGTH), st.integers(0, LENGTH), st.sampled_from(["read", "write"]))


def two_occurrences():
    lowest = np.iinfo(np.int64).min
    begin = np.array([0, LENGTH])
    length = np.array([LENGTH, LENGTH])
    return Occurrences(np.array([1, 1]), begin, length, length, np.array([lowest, LENGTH]), np.array([0, 1]))


def marked(rows):
    """Return the busy nanoseconds of rows of (start, duration), (occurrences, BUSY_BINS)."""
    busy = np.zeros(4 * LENGTH, bool)
    for start, duration in rows:
        busy[start : start + duration] = True
    return busy[: 2 * LENGTH].reshape(2, BUSY_BINS, -1).sum(axis=2)


@given(st.lists(call, max_size=20).map(sorted))
def test_busy_time_is_that_of_calls_that_move_bytes(drawn):
    start, duration, group, moved = np.array(drawn, np.int64).reshape(-1, 4).T
    found = BusyTime(two_occurrences())
    found.add(Calls(start, duration, group, *[np.zeros_like(start)] * 4, moved))
    for row, name in enumerate((READ, WRITE)):
        expected = marked([(s, d) for s, d, g, m in drawn if g == name and m])
        assert found.time_ns()[:, row].tolist() == expected.tolist()


@given(st.lists(request, max_size=20).map(sorted))
def test_busy_time_of_block_requests(drawn):
    found = BusyTime(two_occurrences())
    found.add_block(pd.DataFrame(drawn, columns=["issue_ns", "duration_ns", "op"]))
    for row, name in ((2, "read"), (3, "write")):
        assert found.time_ns()[:, row].tolist() == marked([(s, d) for s, d, op in drawn if op == name]).tolist()
