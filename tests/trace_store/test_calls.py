"""The decoder of calls against a plain loop over the same rows, and the fold over chunks."""

import numpy as np
import pytest

from iotwin.trace_store.calls import CallDecoder, Collectors, folded
from iotwin.trace_store.chunks import Chunk, _scan, chunks_of
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import GROUP_OF_OP
from iotwin.trace_store.workers import in_this_process
from tests.synthetic import Job, write_job

COLUMNS = ("start_ns", "duration_ns", "op", "tid", "file_id", "offset", "result")
GROUPS, KINDS = ("read", "open"), ("checkpoint", "dataset")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return Trace(write_job(tmp_path_factory.mktemp("calls") / "t", Job(files=5, epochs=2)))


def test_columns_say_what_the_rows_say(trace):
    kinds = trace.files()["kind"].astype(str).tolist()
    decoder, got = CallDecoder(trace, COLUMNS, GROUPS, KINDS, other=7), []
    for calls in decoder.read(batch_rows=50):
        reads = calls.group == 0
        columns = (
            calls.column("start_ns"),
            calls.group,
            calls.kind,
            calls.file_id,
            calls.moved_bytes(reads),
            calls.duration_ns(),
        )
        got += [(decoder.ops[op], *row) for op, *row in zip(calls.op.tolist(), *(c.tolist() for c in columns), strict=True)]
    expected = []
    for row in trace.events_frame().to_dict("records"):
        group, file_id = GROUP_OF_OP.get(row["op"]), -1 if np.isnan(row["file_id"]) else int(row["file_id"])
        kind = KINDS.index(kinds[file_id]) if file_id >= 0 and kinds[file_id] in KINDS else -1
        code = GROUPS.index(group) if group in GROUPS else 7
        moved = max(int(row["result"]), 0) if group == "read" else 0
        expected.append((row["op"], row["start_ns"], code, kind, file_id, moved, row["duration_ns"]))
    assert got == expected and {row[2] for row in got} == {0, 1, 7} and {row[3] for row in got} >= {0, 1}


def test_chosen_calls_keep_their_columns(trace):
    decoder = CallDecoder(trace, COLUMNS, GROUPS, KINDS)
    for calls in decoder.read():
        once, odd = calls.where(calls.kind == 1), np.arange(int((calls.kind == 1).sum())) % 2 == 1
        twice, rows = once.where(odd), np.flatnonzero(calls.kind == 1)[odd]
        assert 0 < len(rows) < len(once.op) < len(calls.op)
        assert (twice.column("offset") == calls.column("offset")[rows]).all() and (twice.file_id == calls.file_id[rows]).all()
        assert calls.where(calls.op >= 0) is calls


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

        def extend(self, later: "Numbers") -> None:
            self.numbers += later.numbers

    class Both(Collectors):
        def __init__(self, number: int) -> None:
            self.one, self.ten = Numbers(number), Numbers(10 * number)

    (chunk,) = chunks_of(trace, in_this_process)
    chunks = [Chunk(chunk.path, (), rows, 0, 0, chunk.threads, chunk.in_flight) for rows in (5, 6, 7)]
    told: list[int] = []
    found = iter([Both(1), Both(2), Both(3), Both(4)])
    whole = folded(found, chunks, told.append)
    assert (whole.one.numbers, whole.ten.numbers, told) == ([1, 2, 3], [10, 20, 30], [5, 6, 7])
    assert folded(found, chunks[:1], told.append).one.numbers == [4]
    assert len(CallDecoder(trace, COLUMNS, GROUPS, KINDS).in_flight(chunk).op) == 0
