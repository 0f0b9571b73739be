"""Chunks of a trace: calls in flight at their borders, and the order in which summaries combine."""

import pytest

from iotwin.trace_store.chunks import Chunk, _scan, chunks_of, folded
from iotwin.trace_store.fold import Combined
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.workers import in_this_process
from tests.synthetic import Job, write_job


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return Trace(write_job(tmp_path_factory.mktemp("calls") / "t", Job(files=5, epochs=2)))


def test_a_scan_finds_the_calls_that_end_after_the_chunk(trace):
    events = trace.events_frame()
    end_ns = events["start_ns"] + events["duration_ns"]
    for until_ns in events["start_ns"].iloc[10:-10:7].to_numpy() + 1:
        threads, late = _scan((trace.path, range(len(trace.part_rows)), int(until_ns)))
        assert threads.tolist() == sorted(events["tid"].unique())
        assert late["start_ns"].to_pylist() == events.loc[end_ns > until_ns, "start_ns"].tolist()


def test_what_chunks_hold_is_put_together_in_their_order(trace):
    class Numbers:
        def __init__(self, number: int) -> None:
            self.numbers = [number]

        def later(self, other: "Numbers") -> None:
            self.numbers += other.numbers

    class Both(Combined):
        def __init__(self, number: int) -> None:
            self.one, self.ten = Numbers(number), Numbers(10 * number)

    (chunk,) = chunks_of(trace, in_this_process)
    chunks = [Chunk(chunk.path, (), rows, 0, 0, chunk.threads, chunk.in_flight) for rows in (5, 6, 7)]
    told: list[int] = []
    found = iter([Both(1), Both(2), Both(3), Both(4)])
    whole = folded(found, chunks, told.append)
    assert (whole.one.numbers, whole.ten.numbers, told) == ([1, 2, 3], [10, 20, 30], [5, 6, 7])
    assert folded(found, chunks[:1], told.append).one.numbers == [4]
    assert not chunk.in_flight.num_rows
