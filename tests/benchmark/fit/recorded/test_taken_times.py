"""When a rank took each batch, and when its computation ended."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.fit.recorded.taken_times import with_computation
from iotwin.workload_yaml.recording import Op

MS = 1_000_000


def test_a_computation_ends_where_the_rank_begins_to_wait_for_the_next_batch():
    part = pd.DataFrame({"requested_ns": [0, 50, 140], "delivered_ns": [49, 139, 229], "read_ns": [50, 140, 230]}) * MS
    part = part.assign(loader=0)
    waits = pd.DataFrame({"at": [1, 70, 160], "end": [50, 140, 230]}) * MS
    rows = waits.assign(op=Op.POLL, thread=0, subject=0)
    found = with_computation(part, rows, 0, 250 * MS)
    assert (found["taken_ns"] // MS).tolist() == [50, 140, 230]
    assert (found["computed_ns"] // MS).tolist() == [70, 160, 250]


@given(delivered=st.lists(st.integers(1, 10_000), min_size=20, max_size=40), step=st.integers(1, 5000))
def test_steps_of_a_pass_that_is_requested_at_once_take_equally_long(delivered: list[int], step: int):
    """A naive rank takes each batch when it and all before it are there, computes, and then writes a checkpoint."""
    now, taken = 0, []
    for each in range(len(delivered)):
        now = max(now, *delivered[: each + 1])
        taken.append(now)
        now += step
    part = pd.DataFrame({"requested_ns": 0, "delivered_ns": delivered, "read_ns": None, "loader": 0})
    later = pd.DataFrame({"at": [now], "end": [now + 9], "op": Op.OPEN, "thread": 0, "subject": 0})
    found = with_computation(part, later, 0, 1 << 62)
    assert found["taken_ns"].tolist() == taken
    assert (found["computed_ns"] - found["taken_ns"]).unique().tolist() == [step]
