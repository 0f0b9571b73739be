"""Drift, uncertainty and steps from clock readings that are made up."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.units import format_duration
from iotwin.trace_store.clocks import monotonic_to_realtime, one_by_one, realtime_to_monotonic, step_notes, summarise_clock
from iotwin.trace_store.logs.dlio_log import parse_edge
from iotwin.trace_store.manifest import ClockPair, Host, Manifest, Target, read_manifest
from iotwin.trace_store.raw.finish import finish_trace
from iotwin.trace_store.raw.record_files import Recording

SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND


def readings(drift_ppm: float, count: int, step_at: int | None = None, step_ns: int = 0) -> list[ClockPair]:
    pairs = []
    for number in range(count):
        elapsed = number * 10 * SECOND
        moved = step_ns if step_at is not None and number >= step_at else 0
        pairs.append(ClockPair(5 * SECOND + elapsed, EPOCH + elapsed + round(elapsed * drift_ppm / 1e6) + moved, 90))
    return pairs


@given(st.floats(-400, 400), st.integers(2, 50))
def test_drift_is_found_and_is_no_step(drift_ppm, count):
    summary = summarise_clock(readings(drift_ppm, count))
    assert abs((summary.drift_ppm or 0) - drift_ppm) < 0.01
    assert summary.steps == [] and summary.uncertainty_ns == 90


@given(st.integers(10_000_000, 3600 * SECOND), st.booleans(), st.integers(1, 9), st.floats(-100, 100))
def test_a_step_is_found_where_it_is_and_does_not_spoil_the_drift(size, back, at, drift_ppm):
    step = -size if back else size
    clock = readings(drift_ppm, 10, at, step)
    summary = summarise_clock(clock)
    assert [time_ns for time_ns, _ in summary.steps] == [clock[at].monotonic_ns]
    assert abs(summary.steps[0][1] - step) <= 10 * SECOND * 1e-4 + 1
    assert abs((summary.drift_ppm or 0) - drift_ppm) < 0.01
    assert summary.uncertainty_ns is not None and summary.uncertainty_ns >= size - 10 * SECOND * 1e-4
    assert ("back" if back else "forward") in step_notes(clock)[0]


def test_one_reading_has_no_drift():
    assert summarise_clock(readings(0, 1)).drift_ppm is None
    assert summarise_clock([]).uncertainty_ns is None


def test_readings_place_wall_times():
    pairs = [ClockPair(1000, 10**18, 1), ClockPair(11_000, 10**18 + 10_100, 1)]  # the wall clock gains 1 %
    wall_ns, monotonic_ns = 10**18 + np.array([-10_100, 0, 5_050, 10_100, 10_110]), np.array([-9_100, 1000, 6000, 11_000, 11_010])
    assert realtime_to_monotonic(pairs)(wall_ns).tolist() == monotonic_ns.tolist()
    assert monotonic_to_realtime(pairs)(monotonic_ns).tolist() == wall_ns.tolist()
    assert one_by_one(realtime_to_monotonic(pairs))(10**18 + 5_050) == 6000
    assert one_by_one(realtime_to_monotonic(pairs[:1]))(5) == 5 - 10**18 + 1000


@given(st.floats(-400, 400), st.lists(st.integers(0, 200 * SECOND), min_size=1, max_size=20))
def test_there_and_back_is_the_same_time(drift_ppm, elapsed):
    clock, times = readings(drift_ppm, 20), 5 * SECOND + np.array(elapsed)
    back = realtime_to_monotonic(clock)(monotonic_to_realtime(clock)(times))
    assert np.abs(back - times).max() <= 1


def test_what_is_no_dlio_line():
    assert parse_edge("[OUTPUT] 2026-13-41T00:00:00 Starting epoch 1") is None
    assert parse_edge("Starting epoch 1") is None
    assert parse_edge("[INFO] 2026-01-01T00:00:00 Starting everything") is None


def test_a_clock_set_while_recording_is_said_in_the_trace(tmp_path):
    """Stand-in for a stepped machine clock: the journal of a recorder that saw one go back by an hour."""
    manifest = Manifest("recording", "test", Host("h", "k", 1, 1, "x86_64"), Target(["x"]))
    with Recording(tmp_path / "t", manifest) as recording:
        for pair in readings(0, 4, step_at=2, step_ns=-3600 * SECOND):
            recording.append_journal("clock", msgspec.to_builtins(pair))
    finish_trace(tmp_path / "t", manifest)
    said = f"the wall clock was set back by {format_duration(3600 * SECOND)}"
    assert any(said in note for note in read_manifest(tmp_path / "t").notes)
