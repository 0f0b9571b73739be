"""Events against a plain loop over the same rows; one pass over the union of columns; any division into stretches."""

import pickle

import numpy as np
import pytest

from iotwin.trace_store import fold as folding
from iotwin.trace_store import writer
from iotwin.trace_store.fold import (
    GROUPS,
    READ,
    WAIT,
    WRITE,
    CollectorSet,
    EventDecoder,
    Events,
    TraceStretch,
    fold,
    fold_all,
    stretches,
)
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import FILE_KINDS, GROUP_OF_OP
from tests.synthetic import Job, write_job


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_ROWS_PER_PART", 100)
        patch.setattr(writer, "_row_groups", lambda tables: (t.slice(at, 50) for t in tables for at in range(0, len(t), 50)))
        return Trace(write_job(tmp_path_factory.mktemp("fold") / "t", Job(files=20, epochs=2, log_waits=True)))


class _Starts:
    columns = ("start_ns",)

    def __init__(self, trace):
        self.starts = []

    def add(self, events):
        self.starts += events.column("start_ns").tolist()

    def later(self, other):
        self.starts += other.starts


class _Bytes(_Starts):
    columns = ("op", "result")

    def add(self, events):
        self.starts += events.moved_bytes.tolist()


class _Both(CollectorSet):
    def __init__(self, trace):
        self.starts, self.bytes = _Starts(trace), _Bytes(trace)


def test_columns_say_what_the_rows_say(trace):
    kinds = trace.files()["kind"].astype(str).tolist()
    decoder, got = EventDecoder.of(trace), []
    for batch in trace.events(batch_rows=50):
        events = Events(batch, decoder)
        columns = (events.op, events.group, events.kind, events.file_id, events.moved_bytes, events.duration_ns)
        got += [(decoder.ops[op], *row) for op, *row in zip(*(column.tolist() for column in columns), strict=True)]
    expected = []
    for row in trace.events_frame().to_dict("records"):
        group, file_id = GROUP_OF_OP.get(row["op"], "other"), -1 if np.isnan(row["file_id"]) else int(row["file_id"])
        kind = FILE_KINDS.index(kinds[file_id]) if file_id >= 0 else -1
        moved = max(int(row["result"]), 0) if group in ("read", "write") else 0
        expected.append((row["op"], GROUPS.index(group), kind, file_id, moved, row["duration_ns"]))
    assert got == expected and {READ, WRITE, WAIT} <= {row[1] for row in got} and {row[2] for row in got} >= {-1, 0, 1}


def test_a_pass_reads_the_union_of_columns_once_in_any_number_of_stretches(trace, monkeypatch):
    frame, read, usual = trace.events_frame(), [], Trace.events

    def noted(self, columns=None, *rest, **more):
        read.append((tuple(columns), tuple(more["parts"])))
        return usual(self, columns, *rest, **more)

    monkeypatch.setattr(Trace, "events", noted)
    for least, most in ((1, 1000), (1, 3), (250, 1000), (10**9, 16)):
        monkeypatch.setattr(folding, "_LEAST_EVENTS", least)
        monkeypatch.setattr(folding, "_MOST_STRETCHES", most)
        read.clear()
        found = fold(trace, _Both)
        assert found.starts.starts == frame["start_ns"].tolist() and len(found.bytes.starts) == len(frame)
        assert {columns for columns, _ in read} == {("start_ns", "op", "result")}
        assert [part for _, parts in read for part in parts] == list(range(len(trace.part_rows))) and len(read) <= most
        assert len(read) == 1 if least == 10**9 else len(read) > 1
    rows: list[int] = []
    one, two = fold_all([trace, trace], [_Starts, _Starts], advance=rows.append)
    assert one.starts == two.starts == found.starts.starts and rows == [len(frame)] * 2


def test_a_stretch_knows_the_earlier_calls_that_have_not_ended(trace, monkeypatch):
    frame, found = trace.events_frame(), 0
    monkeypatch.setattr(folding, "_LEAST_EVENTS", 1)
    monkeypatch.setattr(folding, "_MOST_STRETCHES", 1000)
    for parts in stretches(trace.part_rows):
        stretch, before = TraceStretch(pickle.loads(pickle.dumps(trace)), parts), frame[: sum(trace.part_rows[: parts[0]])]
        late = before[before["start_ns"] + before["duration_ns"] > stretch.begin_ns]
        got = stretch.in_flight(("start_ns", "op", "tid"))
        assert got.column("start_ns").tolist() == late["start_ns"].tolist() and stretch.begin_ns == frame["start_ns"][len(before)]
        assert [stretch.decoder.ops[op] for op in got.op] == late["op"].tolist()
        found += len(late)
    assert found
