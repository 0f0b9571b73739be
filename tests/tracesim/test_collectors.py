"""Each collector against the plain loop that says what it means, on random calls split into random batches."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.tracesim import order
from iotwin.tracesim.call_sums import CallSums
from iotwin.tracesim.calls import CLOSE, OPEN, READ, WRITE, Calls
from iotwin.tracesim.concurrency import LEVEL_BINS, InFlight, Readers
from iotwin.tracesim.logbins import BINS, log_bin
from iotwin.tracesim.order import STEPS, OffsetSteps, Visits, order_of
from iotwin.tracesim.phases import Occurrences
from iotwin.tracesim.read_pauses import SHORTEST_PAUSE_NS, Arrivals, ReadRhythm

MS = 1_000_000
HALF = 40 * MS  # where the second occurrence begins

call = st.tuples(
    st.integers(0, 5 * MS),  # after the call before
    st.integers(0, 4 * MS),  # duration
    st.sampled_from([READ, READ, READ, WRITE, OPEN, CLOSE]),
    st.integers(0, 1),  # kind of file
    st.integers(0, 2),  # thread
    st.integers(0, 2),  # file within its kind
    st.integers(0, 3),  # offset
    st.integers(0, 2),  # bytes
)


def two_occurrences():
    lowest = np.iinfo(np.int64).min
    return Occurrences(
        phase=np.array([0, 1, 1]),
        start_ns=np.array([0, 0, HALF]),
        span_ns=np.array([0, HALF, HALF]),
        duration_ns=np.array([0, HALF, HALF]),
        segment_start_ns=np.array([lowest, 0, HALF]),
        segment_owner=np.array([0, 1, 2]),
    )


def build(drawn):
    columns = list(np.array(drawn, dtype=np.int64).reshape(-1, 8).T)
    gap, duration, group, kind, thread, file, offset, moved = columns
    moved = np.where(group <= WRITE, moved, 0)
    return Calls(np.cumsum(gap), duration, group, kind, thread, kind * 3 + file, offset, moved)


def feed(collector, calls, cut, with_occurrence=True):
    when = two_occurrences()
    for part in np.split(np.arange(len(calls.start_ns)), [min(cut, len(calls.start_ns))]):
        if len(part):
            batch = calls.where(part)
            collector.add(*((batch, when.at(batch.start_ns)) if with_occurrence else (batch,)))


def one_and_merged(make, calls, cut):
    """A collector of all the calls in two batches, and what three of a part each become, two of them sent by other processes."""
    whole = make()
    feed(whole, calls, cut)
    parts = []
    for part in np.array_split(np.arange(len(calls.start_ns)), [cut // 2, cut]):
        parts.append(make())
        feed(parts[-1], calls.where(part), len(part) // 2)
    parts[:2] = pickle.loads(pickle.dumps(parts[:2]))
    parts[1].later(parts[2])
    parts[0].later(parts[1])
    return whole, parts[0]


def rows(calls):
    return list(zip(*(column.tolist() for column in vars(calls).values()), strict=True))


@settings(max_examples=60)
@given(st.lists(call, min_size=1, max_size=40), st.integers(0, 40))
def test_steps(drawn, cut):
    calls = build(drawn)
    last, counted = {}, np.zeros((3, 2, len(STEPS)))
    for start, _, group, _, thread, file, offset, moved in rows(calls):
        if group == OPEN:
            last.pop((thread, file), None)
        elif group <= WRITE:
            begin, end = last.get((thread, file), (None, None))
            step = "first" if end is None else "sequential" if offset == end else "again" if offset == begin else None
            step = step or ("forward" if offset > end else "backward")
            counted[1 + (start >= HALF), group, STEPS.index(step)] += 1
            last[thread, file] = offset, offset + moved
    for steps in one_and_merged(lambda: OffsetSteps(3, 6), calls, cut):
        assert (steps.calls.reshape(counted.shape) == counted).all()
        assert steps.bytes.sum() == calls.moved_bytes[calls.offset >= 0].sum()


@settings(max_examples=60)
@given(st.lists(call, min_size=1, max_size=40), st.integers(0, 40))
def test_steps_are_equal_for_any_batches_where_threads_and_files_share_entries(drawn, cut):
    calls = build(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_SLOT_BITS", 1)
        one_by_one = OffsetSteps(3, 6)
        for at in range(len(calls.start_ns)):
            feed(one_by_one, calls.where(np.array([at])), 0)
        for steps in one_and_merged(lambda: OffsetSteps(3, 6), calls, cut):
            assert (steps.calls == one_by_one.calls).all() and (steps.bytes == one_by_one.bytes).all()


@settings(max_examples=60)
@given(st.lists(call, min_size=1, max_size=40), st.integers(0, 40), st.booleans())
def test_cadence(drawn, cut, one_phase):
    calls = build(drawn)
    phases = two_occurrences().phase if one_phase else np.array([0, 1, 2])
    pauses, bursts = np.zeros((3, BINS)), np.zeros((3, BINS))
    runs = {}
    lengths = {0: [], 1: [], 2: []}
    last = {}
    for start, duration, group, kind, thread, _, _, moved in rows(calls):
        if kind == 0 and group != WRITE:
            occurrence = 1 + (start >= HALF)
            end, before = last.get(thread, (0, None))
            pause = max(start - end, 0) if before == occurrence else None
            if pause is not None and pause >= SHORTEST_PAUSE_NS:
                pauses[occurrence, log_bin(np.array([pause]))] += pause
                lengths[phases[occurrence]].append(pause)
            runs.setdefault(thread, []).append((occurrence, pause, moved))
            last[thread] = start + duration, occurrence
    limits = {}
    for phase, of_phase in lengths.items():
        limits[phase] = SHORTEST_PAUSE_NS
        if of_phase:
            of_phase.sort(reverse=True)
            limits[phase] = max(SHORTEST_PAUSE_NS, of_phase[int(np.searchsorted(np.cumsum(of_phase), sum(of_phase) / 2))] // 4)
    for run in runs.values():
        groups = []
        for occurrence, pause, moved in run:
            if pause is None or pause >= limits[phases[occurrence]]:
                groups.append([occurrence, 0])
            groups[-1][1] += moved
        for occurrence, moved in groups:
            bursts[occurrence, log_bin(np.array([moved]))] += moved
    whole, merged = one_and_merged(lambda: ReadRhythm(phases), calls, cut)
    for rhythm in (whole, merged):
        found = rhythm.pauses_and_bursts()
        assert (found[0] == pauses).all()
        assert (found[1] == bursts).all()
    assert (whole.busy_ns == merged.busy_ns).all()


@settings(max_examples=40)
@given(st.lists(call, max_size=40), st.integers(0, 40))
def test_sums_are_the_same_of_parts(drawn, cut):
    calls, when = build(drawn), two_occurrences()
    for make in (lambda: Arrivals(3), lambda: CallSums(when, 6)):
        whole, merged = one_and_merged(make, calls, cut)
        for name in ("gap_ns", "calls", "bytes", "size_bytes", "activity", "latency", "file_read_bytes", "file_extent_bytes"):
            if hasattr(whole, name):
                assert (getattr(whole, name) == getattr(merged, name)).all(), name


@settings(max_examples=60)
@given(st.lists(call, min_size=1, max_size=25), st.integers(0, 25))
def test_time_with_calls_in_flight(drawn, cut):
    calls = build([(gap // MS * MS, duration // MS * MS, *rest) for gap, duration, *rest in drawn])
    in_flight = InFlight(two_occurrences())
    feed(in_flight, calls, cut, with_occurrence=False)
    in_flight.finish()
    end = int((calls.start_ns + calls.duration_ns).max())
    expected = np.zeros(LEVEL_BINS)
    for begin in range(0, end, MS):
        level = int(((calls.start_ns <= begin) & (calls.start_ns + calls.duration_ns > begin)).sum())
        if level:
            expected[min(int(log_bin(np.array([level]))[0]), LEVEL_BINS - 1)] += MS
    assert (in_flight.time_ns.sum(axis=0) == expected).all()
    assert (_in_parts(calls, min(cut, len(calls.start_ns))).time_ns.sum(axis=0) == expected).all()


def _in_parts(calls, cut):
    """Time with calls in flight from two collectors, the second of which is told what is in flight when it begins."""
    begin = int(calls.start_ns[cut]) if cut < len(calls.start_ns) else 10**12
    before, after = calls.where(np.arange(cut)), calls.where(np.arange(cut, len(calls.start_ns)))
    ends = before.start_ns + before.duration_ns
    first, second = InFlight(two_occurrences()), InFlight(two_occurrences(), begin, ends[ends > begin])
    for collector, batch in ((first, before), (second, after)):
        if len(batch.start_ns):
            collector.add(batch)
    first.later(second)
    first.finish()
    return first


@settings(max_examples=60)
@given(st.lists(call, min_size=1, max_size=40), st.integers(0, 40))
def test_visits_and_readers(drawn, cut):
    calls = build(drawn)
    order = {1: [], 2: []}
    threads = {1: set(), 2: set()}
    written = {1: set(), 2: set()}
    for start, _, group, kind, thread, file, _, moved in rows(calls):
        occurrence = 1 + (start >= HALF)
        if group == READ and kind == 0 and moved:
            threads[occurrence].add(thread)
            if file not in order[occurrence]:
                order[occurrence].append(file)
        if group == WRITE and kind == 1 and moved:
            written[occurrence].add(file)
    for visits in one_and_merged(lambda: Visits(6), calls, cut):
        assert [part.tolist() for part in visits.of_each(3)] == [[], order[1], order[2]]
        assert visits.written_files(3).tolist() == [0, len(written[1]), len(written[2])]
    for readers in one_and_merged(lambda: Readers(two_occurrences()), calls, cut):
        assert readers.counts()[0].tolist() == [0, len(threads[1]), len(threads[2])]


def test_a_file_is_visited_once_by_an_occurrence_that_goes_on_after_one_within_it():
    files, occurrence = np.array([1, 2, 3, 1, 4, 3]), np.array([1, 1, 2, 1, 1, 2])
    zeros = np.zeros(len(files), np.int64)
    calls = Calls(np.arange(len(files)), zeros, zeros + READ, zeros, zeros, files, zeros, zeros + 1)
    for cut in range(len(files)):
        visits, later = Visits(6), Visits(6)
        for each, part in ((visits, np.arange(cut)), (later, np.arange(cut, len(files)))):
            each.add(calls.where(part), occurrence[part])
        visits.later(later)
        for each in (visits, pickle.loads(pickle.dumps(visits))):
            assert [part.tolist() for part in each.of_each(3)] == [[], [1, 2, 4], [3]]


def test_order_statistics_of_a_perfect_and_of_random_orders():
    n, epochs = 60, 200
    generator = np.random.default_rng(3)
    phase = np.full(epochs, 1)
    perfect = order_of([np.arange(n)] * epochs, phase, np.arange(n))
    assert (perfect.scatter == 0).all() and np.nanmax(perfect.drift) == 0
    shuffled = order_of([generator.permutation(n) for _ in range(epochs)], phase, np.arange(n))
    # Values are cut at 1, the mean of a random order, so that about half of them lie there.
    assert 0.9 < shuffled.scatter.mean() <= 1 and 0.9 < np.nanmean(shuffled.drift) <= 1
    below = shuffled.scatter[shuffled.scatter < 1] - 1
    assert np.sqrt((below**2).mean()) < 1.3 * np.sqrt(shuffled.scatter_variance[0])
    below = shuffled.drift[shuffled.drift < 1] - 1
    assert np.sqrt((below**2).mean()) == pytest.approx(np.sqrt(shuffled.drift_variance[1]), rel=0.3)


def test_the_order_of_a_few_files_tells_nothing():
    order = order_of([np.arange(5)] * 2, np.array([1, 1]), np.arange(5))
    assert np.isnan(order.scatter).all() and np.isnan(order.drift).all()


def test_each_thread_has_bursts_of_its_own():
    """Two threads read a byte each time: twice with a short pause between, and once more after a long one."""
    times = [0, 1000, 1000 + 1000, 20_000]  # ms: the short pause is far below a quarter of the long one
    drawn = [(time * MS, thread) for time in times for thread in (0, 1)]
    starts, threads = (np.array(column, np.int64) for column in zip(*drawn, strict=True))
    zeros = np.zeros(len(drawn), np.int64)
    ones = zeros + 1
    calls = Calls(starts, zeros, zeros + READ, zeros, threads, zeros, zeros, ones)
    rhythm = ReadRhythm(np.array([0, 1]))
    rhythm.add(calls, ones)
    bursts = rhythm.pauses_and_bursts()[1]
    assert bursts[1, log_bin(np.array([3]))[0]] == 2 * 3 and bursts[1, log_bin(np.array([1]))[0]] == 2 * 1


def test_what_other_processes_send_grows_with_the_files_that_were_used():
    calls = build([[1, 1, READ, 0, 1, 0, 0, 8]] * 100)
    steps, visits = OffsetSteps(3, 6), Visits(100_000)
    feed(steps, calls, 50)
    feed(visits, calls, 50)
    assert len(pickle.dumps(steps)) < 10_000 and len(pickle.dumps(visits)) < 1000
