"""Bins against an oracle that looks at every nanosecond."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.trace_visuals.bins import Grid, LaneBins, Spread, occupied
from tests.trace_visuals.common import make_calls

_CALL = st.tuples(st.integers(0, 90), st.integers(0, 70), st.integers(0, 1000), st.integers(-1, 2))


def _accumulate(grid, rows, batch):
    bins = LaneBins(grid, 3)
    for begin in range(0, len(rows), batch):
        start, duration, size, lane = map(list, zip(*rows[begin : begin + batch], strict=True))
        bins.add(make_calls(start, duration, size=size), np.array(lane))
    return bins.result()


@given(st.lists(_CALL, min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 7), st.integers(0, 30))
@settings(max_examples=150)
def test_every_nanosecond_is_counted_once(rows, count, batch, origin):
    rows = sorted(rows)
    grid = Grid.covering(origin, 100, count)
    lanes = _accumulate(grid, rows, batch)
    flight = np.zeros((3, grid.width * count))
    starts = np.zeros((3, count), dtype=int)
    for start, duration, _, lane in rows:
        if lane >= 0:
            flight[lane, max(start - origin, 0) : max(start + duration - origin, 0)] += 1
            if 0 <= start - origin < grid.width * count:
                starts[lane, (start - origin) // grid.width] += 1
    per_bin = flight.reshape(3, count, grid.width)
    np.testing.assert_array_equal(lanes.calls, starts)
    np.testing.assert_allclose(lanes.in_flight, per_bin.mean(axis=2), atol=1e-9)
    np.testing.assert_allclose(lanes.busy, (per_bin > 0).mean(axis=2), atol=1e-9)
    assert ((lanes.busy >= 0) & (lanes.busy <= 1)).all()
    np.testing.assert_array_equal(occupied(lanes), (starts > 0) | (per_bin > 0).any(axis=2))


@given(st.lists(_CALL, min_size=1, max_size=40), st.integers(1, 300), st.integers(1, 7))
@settings(max_examples=100)
def test_bytes_in_bins_sum_to_bytes_of_calls(rows, count, batch):
    rows = sorted(rows)
    lanes = _accumulate(Grid.covering(0, 200, count), rows, batch)
    for lane in range(3):
        assert lanes.size_bytes[lane].sum() == sum(size for _, _, size, of in rows if of == lane)
    assert (lanes.size_bytes >= 0).all()


def test_bytes_are_spread_over_the_time_of_a_call():
    bins = LaneBins(Grid(0, 10, 4), 1)
    bins.add(make_calls([5], [20], size=200), np.array([0]))
    assert bins.result().size_bytes.tolist() == [[50, 100, 50, 0]]


def test_a_call_that_spans_the_window_is_busy_but_does_not_start_there():
    bins = LaneBins(Grid(100, 10, 2), 1)
    bins.add(make_calls([0], [1000], size=1000), np.array([0]))
    lanes = bins.result()
    assert lanes.busy.tolist() == [[1.0, 1.0]] and lanes.calls.tolist() == [[0, 0]] and lanes.size_bytes.tolist() == [[10, 10]]


def test_large_numbers_stay_exact():
    start, size = 2**52, 2**40 + 1
    bins = LaneBins(Grid.covering(start, start + 10**12, 1000), 1)
    bins.add(make_calls([start + 123], [10**11], size=size), np.array([0]))
    lanes = bins.result()
    assert lanes.size_bytes.sum() == size and abs(lanes.in_flight.sum() * lanes.grid.width - 10**11) < 1


def test_grid_covers_its_range():
    grid = Grid.covering(7, 107, 33)
    assert grid.end >= 107 and grid.width == 4 and len(grid.edges()) == 34 and grid.edges()[0] == 7
    assert Grid.covering(5, 5, 10).width == 1


def test_spread_leaves_out_what_is_outside():
    spread = Spread(Grid(10, 5, 2), 2)
    spread.add(np.array([1, 1, 0]), np.array([0, 18, 30]), np.array([12, 40, 50]), 2.0)
    assert spread.sums().tolist() == [[0, 0], [4, 4]]
