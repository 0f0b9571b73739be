"""Each wrong twin differs from its job in what its name says, by how much its name says, and in nothing else."""

import numpy as np
import pytest

from iotwin.trace_store.reader import Trace
from iotwin.tracesim.busy_time import BUSY_BINS, ROWS
from iotwin.tracesim.calls import FILE_KINDS, WRITE
from iotwin.tracesim.logbins import BINS, LOWER_EDGES, log_bin
from iotwin.tracesim.order import STEPS
from iotwin.tracesim.phases import STARTUP
from iotwin.tracesim.profile import profiles_of, summarise
from iotwin.tracesim.verdict import wrong_twins
from tests.synthetic import Job, write_job

GROUPS = frozenset(("read", "write", "open", "close", "sync", "map"))


def profile(path, **job):
    trace = Trace(write_job(path, Job(**{"files": 12, "epochs": 2, "log_waits": True, **job})))
    return profiles_of([trace], True, GROUPS, map, lambda _: None)[0]


def changed_fields(one, other) -> set[str]:
    """Names of the arrays of `each` that differ."""
    return {
        name for name, value in vars(one.each).items() if not np.array_equal(value, getattr(other.each, name), equal_nan=True)
    }


def histogram(*lengths_ns: int) -> np.ndarray:
    """Time by length of pauses of these lengths."""
    made = np.zeros((1, BINS))
    for length in lengths_ns:
        made[0, log_bin(np.array([length]))[0]] += length
    return made


def test_sizes_by_marginals_keep_the_calls_of_every_cell(tmp_path):
    job = profile(tmp_path / "t")
    twin = wrong_twins.sizes_by_marginals(job)
    assert twin is not None and changed_fields(job, twin) == {"size_calls", "size_bytes", "bytes"}
    shape = (job.occurrences.number, len(FILE_KINDS), WRITE + 1, BINS)
    before, after = (each.size_calls.reshape(shape) for each in (job.each, twin.each))
    assert after.sum(axis=3) == pytest.approx(before.sum(axis=3))
    assert after.sum(axis=(0, 1, 2)) == pytest.approx(before.sum(axis=(0, 1, 2)))
    shares = after[before.sum(axis=3) > 0] / before.sum(axis=3)[before.sum(axis=3) > 0][:, None]
    assert shares == pytest.approx(np.tile(shares[0], (len(shares), 1)))
    assert twin.each.size_bytes.sum() == pytest.approx(job.each.size_bytes.sum())
    assert twin.each.bytes.sum() == pytest.approx(job.each.bytes.sum())


def test_requests_of_one_size_have_no_marginals(tmp_path):
    assert wrong_twins.sizes_by_marginals(profile(tmp_path / "t", checkpoint_every=0)) is None


def test_times_shuffled_keep_the_time_of_every_row(tmp_path):
    job = profile(tmp_path / "t")
    twin = wrong_twins.times_shuffled(job)
    assert twin is not None and changed_fields(job, twin) <= {"activity", "row_ns", "gap_ns", "pause_ns"}
    rows = twin.each.row_ns.reshape(job.occurrences.number, len(ROWS), BUSY_BINS)
    assert np.ptp(rows, axis=2).max() == pytest.approx(0, abs=1e-6)
    assert rows.sum(axis=2) == pytest.approx(job.each.row_ns.reshape(rows.shape).sum(axis=2))
    assert twin.each.activity.sum(axis=1) == pytest.approx(job.each.activity.sum(axis=1))
    for name in ("gap_ns", "pause_ns"):
        assert getattr(twin.each, name).sum(axis=1) == pytest.approx(getattr(job.each, name).sum(axis=1))


def test_memoryless_pauses_are_as_long_on_average():
    """Of pauses of 2**20 ns each: as much time, and a mean length, time by pauses, of about as much."""
    length = 1 << 20
    made = wrong_twins._memoryless(histogram(*[length] * 100))
    assert made.sum() == pytest.approx(100 * length)
    number = (made / LOWER_EDGES).sum()
    assert made.sum() / number == pytest.approx(length, rel=0.15)
    below = made[0, : log_bin(np.array([length]))[0]].sum() / made.sum()
    assert below == pytest.approx(1 - 2 / np.e, abs=1e-6)  # gamma of shape 2 up to its scale
    assert not wrong_twins._memoryless(np.zeros((2, BINS))).any()


def test_computation_halved_takes_half_of_what_is_not_waited(tmp_path):
    job = profile(tmp_path / "t")
    twin = wrong_twins.computation_halved(job)
    assert twin is not None
    trained = job.occurrences.phase != STARTUP
    computing = np.clip(job.each.duration_ns - job.each.wait_ns, 0, None)
    assert twin.each.duration_ns[trained] == pytest.approx((job.each.duration_ns - computing / 2)[trained])
    assert twin.each.duration_ns[~trained] == pytest.approx(job.each.duration_ns[~trained])
    without_waits, halved = (summarise(run).least_without_waits_ns for run in (job, twin))
    assert without_waits.any() and halved == pytest.approx(without_waits / 2)
    left = 1 - computing / 2 / np.maximum(job.each.duration_ns, 1) * trained
    assert twin.each.typical_step_ns == pytest.approx(job.each.typical_step_ns * left, nan_ok=True)
    assert twin.occurrences.span_ns == pytest.approx(job.occurrences.span_ns * left, abs=1)
    assert twin.occurrences.duration_ns == pytest.approx(job.occurrences.duration_ns * left, abs=1)
    assert (twin.each.row_ns <= (twin.occurrences.span_ns[:, None] + 1) / BUSY_BINS).all()


def test_without_waits_what_moves_no_bytes_is_computation(tmp_path):
    job = profile(tmp_path / "t", log_waits=False)
    assert not job.each.wait_ns.any()
    twin = wrong_twins.computation_halved(job)
    moving = job.each.row_ns.reshape(job.occurrences.number, len(ROWS), BUSY_BINS)[:, : WRITE + 1].sum(axis=(1, 2))
    trained = job.occurrences.phase != STARTUP
    expected = job.each.duration_ns - np.clip(job.each.duration_ns - moving, 0, None) / 2
    assert twin is not None and twin.each.duration_ns[trained] == pytest.approx(expected[trained])


def test_shortened_pauses_lie_lower_by_as_many_bins():
    half = wrong_twins._shortened(histogram(1 << 20, 1 << 10), np.array([0.5]))
    assert half == pytest.approx(histogram(1 << 19, 1 << 9))
    # An eighth of an octave lies between two bins and is shared by them.
    less = wrong_twins._shortened(histogram(1 << 20), np.array([2**-0.125]))
    bins = np.flatnonzero(less[0])
    at = log_bin(np.array([1 << 20]))[0]
    assert bins.tolist() == [at - 1, at] and less[0, bins] == pytest.approx([2**19.875 / 2] * 2)
    assert wrong_twins._shortened(histogram(1 << 20), np.array([1.0])) == pytest.approx(histogram(1 << 20))


def test_order_controls_are_each_for_the_order_that_is_not_there(tmp_path):
    shuffled, in_order = profile(tmp_path / "a", files=32), profile(tmp_path / "b", files=32, shuffle=False)
    assert wrong_twins.order_shuffled(shuffled) is None and wrong_twins.order_sorted(in_order) is None
    made, put = wrong_twins.order_shuffled(in_order), wrong_twins.order_sorted(shuffled)
    assert made is not None and put is not None
    for profile_, value in ((made, 1.0), (put, 0.0)):
        for order in (profile_.order.scatter, profile_.order.drift):
            assert set(order[~np.isnan(order)].tolist()) <= {value}
    known = ~np.isnan(in_order.order.scatter)
    assert known.any() and np.array_equal(~np.isnan(made.order.scatter), known)
    steps = made.each.step_calls.reshape(-1, len(STEPS))
    before = in_order.each.step_calls.reshape(-1, len(STEPS))
    sequential, forward, backward = (STEPS.index(name) for name in ("sequential", "forward", "backward"))
    assert not steps[:, sequential].any() and before[:, sequential].any()
    for way in (forward, backward):
        assert steps[:, way] == pytest.approx(before[:, way] + before[:, sequential] / 2)
