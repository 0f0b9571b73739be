"""What is read from one checkpoint to the next and while one is written, against a plain loop and made-up jobs."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.tracesim.calls import OPEN, READ, SYNC, WRITE, Calls
from iotwin.tracesim.checkpoint_writing import CheckpointWriting
from iotwin.tracesim.dimensions import HALF_WIDTH
from iotwin.tracesim.measures import overlap
from iotwin.tracesim.phases import whole_run
from tests.tracesim.test_collectors import build, call, one_and_merged, rows, two_occurrences

MS = 1_000_000
READ_BYTES = 1 << 20


@settings(max_examples=60)
@given(st.lists(call, min_size=1, max_size=40), st.integers(0, 40))
def test_files_are_written_from_their_open_to_their_last_write(drawn, cut):
    calls, seen, current = build(drawn), [], {}
    for start, duration, group, kind, _, file, _, moved in rows(calls):
        if kind == 1 and group in (OPEN, WRITE):
            if group == OPEN or file not in current:
                current[file] = [start, start, False]
                seen.append(current[file])
            if group == WRITE:
                current[file][1] = max(current[file][1], start + duration)
                current[file][2] |= moved > 0
    expected = sorted((begin, end) for begin, end, written in seen if written)
    for saving in one_and_merged(lambda: CheckpointWriting(two_occurrences()), calls, cut):
        assert sorted(map(tuple, saving.spans_ns().tolist())) == expected


def job(every: int, pauses: float = 0.0, reads: int = 120) -> CheckpointWriting:
    """A job that reads each 10 ms and writes a checkpoint of 40 ms after `every` reads, for a share of which it stops reading."""
    made, now = [], 0
    for number in range(1, reads + 1):
        made.append((now, MS, READ, 0, 0, READ_BYTES))
        now += 10 * MS
        if number % every == 0:
            file = 10 + number
            made.append((now, 0, OPEN, 1, file, 0))
            made += [(now + write * 4 * MS, MS, WRITE, 1, file, 4096) for write in range(9)]
            made.append((now + 38 * MS, MS, SYNC, 1, file, 0))
            now += round(40 * MS * pauses)
    start, duration, group, kind, file, moved = np.array(sorted(made), np.int64).T
    saving = CheckpointWriting(whole_run(0, now))
    none = np.zeros(len(start), np.int64)
    saving.add(Calls(start, duration, group, kind, none, file, none, moved), none)
    return saving


def test_the_reading_beside_checkpoints_is_told_by_its_share():
    beside = [job(20, pauses).rate_during() for pauses in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert beside[0] > 0.85
    assert beside[-1] < 0.05
    assert all(less < more - 0.1 for more, less in pairwise(beside))


def test_the_reading_from_one_checkpoint_to_the_next():
    found = job(20).between_reads()
    assert found.sum() == pytest.approx(100 / 120, rel=0.01)
    likeness = [overlap(found, job(every).between_reads(), HALF_WIDTH) for every in (20, 24, 40, 60)]
    assert likeness[0] == 1.0 and likeness == sorted(likeness, reverse=True) and likeness[2] < 0.7
    # As much later, however long the run and whatever the size of its files.
    assert overlap(found, job(40, reads=240).between_reads(), HALF_WIDTH) == pytest.approx(1.0, abs=0.01)


def written(*spans_ms: tuple[int, int]) -> CheckpointWriting:
    """A file for each of the spans in which one is written."""
    saving = CheckpointWriting(whole_run(0, 1000 * MS))
    rows = sorted((begin * MS, (end - begin) * MS, file) for file, (begin, end) in enumerate(spans_ms))
    for begin, duration, file in rows:
        one, none = np.array([begin]), np.zeros(1, np.int64)
        call = Calls(one, np.array([duration]), none + WRITE, none + 1, none, none + file, none, none + 8)
        saving.add(call, none)
    return saving


def test_files_that_are_written_at_once():
    assert written((0, 10), (20, 30)).at_once() == 1.0
    assert written((0, 10), (0, 10), (2, 8)).at_once() == pytest.approx(2.6)
    three = [written((0, 10 + late), (10, 20 + late), (20, 30 + late)).at_once() for late in (0, 3, 10)]
    assert three == pytest.approx([1.0, 39 / 33, 60 / 40])
    assert CheckpointWriting(whole_run(0, MS)).at_once() == 0.0


@pytest.mark.parametrize("into_ns", [0, -MS])
def test_a_read_that_falls_into_a_short_checkpoint_is_chance(into_ns):
    """A read each 10 ms, a checkpoint of 0.1 ms each 100 ms: whether its start lies within one says nothing of the job."""
    reads = [(now, MS, READ, 0, 0, READ_BYTES) for now in range(0, 1000 * MS, 10 * MS)]
    saves = [(now + into_ns, MS // 10, WRITE, 1, 10 + now, 4096) for now in range(100 * MS, 1000 * MS, 100 * MS)]
    start, duration, group, kind, file, moved = np.array(sorted(reads + saves), np.int64).T
    (saving := CheckpointWriting(whole_run(0, 1000 * MS))).add(
        Calls(start, duration, group, kind, 0 * file, file, 0 * file, moved), 0 * file
    )
    assert saving.rate_during() < 0.1


def test_without_checkpoints_or_reads_nothing_is_beside():
    assert job(1000).rate_during() == 0.0
    assert not job(1000).between_reads().any()
    saving = CheckpointWriting(whole_run(0, MS))
    assert saving.rate_during() == 0.0 and not saving.between_reads().any()
