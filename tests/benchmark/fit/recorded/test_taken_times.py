"""When a rank took each batch, and when its computation ended."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.fit.recorded.taken_times import NEVER_NS, with_computation
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


@pytest.mark.parametrize(("takes_first", "taken", "computed"), [(True, 139, 1), (False, 100, 40)])
def test_a_request_just_before_a_wait_ends_a_step_unless_the_rank_is_known_to_take_first(takes_first, taken, computed):
    """Batches are read 40 ms apart, from 100 ms on; 1 ms before the rank begins to wait for one, it requests another one."""
    read = [100 + 40 * index for index in range(9)]
    part = pd.DataFrame({"requested_ns": [0, 1, *(each + 39 for each in read[:7])], "read_ns": read, "loader": 0})
    part = (part.assign(delivered_ns=[30, 60, *(each + 60 for each in read[:7])])) * MS
    waits = pd.DataFrame({"at": [3, *(each + 40 for each in read)], "op": Op.PIPE_READ, "thread": 0, "subject": 0})
    waits = waits.assign(at=waits["at"] * MS - 9, end=waits["at"] * MS)
    found = with_computation(part, waits, 0, 470 * MS, takes_first)
    assert found["taken_ns"].iloc[0] // MS == taken
    assert ((found["computed_ns"] - found["taken_ns"]).iloc[:6] / MS).round().unique().tolist() == [computed]


def test_a_wait_for_a_batch_is_none_for_the_next_one_that_was_delivered_before_it():
    """Two loaders: the second one delivers first, while the rank waits for the batch of the first one."""
    requested, delivered = [0, 1, 60, 110, 160], [50, 40, 100, 140, 200]
    part = pd.DataFrame({"requested_ns": requested, "delivered_ns": delivered, "read_ns": None, "loader": [0, 1, 0, 1, 0]}) * MS
    waits = pd.DataFrame({"at": [2], "end": [59], "op": Op.POLL, "thread": 0, "subject": 0})
    waits[["at", "end"]] *= MS
    found = with_computation(part, waits, 0, 300 * MS)
    assert (found["taken_ns"] // MS).tolist()[:3] == [60, 110, 160]
    assert (found["computed_ns"] // MS).tolist()[:2] == [110, 160]


@pytest.mark.parametrize(("before", "computed_ms"), [([], 600), ([0], 350)])
def test_loaders_that_are_stopped_end_the_last_step_unless_they_live_through_passes(before: list[int], computed_ms: int):
    requested = [100, 150, 240]
    part = pd.DataFrame({"requested_ns": requested, "delivered_ns": [149, 239, 329], "read_ns": [150, 240, 330]}) * MS
    waits = pd.DataFrame({"at": [101, 170, 260], "end": [150, 240, 330], "op": Op.POLL, "subject": 0})
    sent = pd.DataFrame({"at": [*before, *requested, 600], "op": Op.PIPE_WRITE, "subject": 1})
    saved = pd.DataFrame({"at": [350], "op": Op.OPEN, "subject": 0})
    rows = pd.concat([waits, sent.assign(end=sent["at"]), saved.assign(end=saved["at"])]).sort_values("at").assign(thread=0)
    rows[["at", "end"]] *= MS
    found = with_computation(part.assign(loader=0), rows, 0, NEVER_NS)
    assert found["computed_ns"].iloc[-1] == computed_ms * MS


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
