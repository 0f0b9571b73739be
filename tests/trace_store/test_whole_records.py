"""What a recorder can have written is kept up to its limits; a record with one field beyond is left out, and only that record."""

import pytest

from iotwin.trace_store.manifest import ClockPair
from iotwin.trace_store.raw.finish import _clock_bounds, finish_trace
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import LAST_NS
from iotwin.trace_store.reader import Trace
from tests.trace_store.test_finish import START_NS, gpu_calls, requests
from tests.trace_store.test_store import manifest, raw_events

MOST_PID = 1 << 22  # of Linux
FAR = LAST_NS + (1 << 61)
EVENT_LIMITS = [
    ("pid", MOST_PID, MOST_PID + 1), ("pid", 1, 0), ("tid", MOST_PID, MOST_PID + 1), ("start_ns", 1, 0), ("start_ns", 1, -1),
    ("duration_ns", 0, -1), ("inode", (1 << 63) - 1, 1 << 63), ("offset", LAST_NS, -(1 << 63)), ("offset", -LAST_NS, FAR),
    ("result", LAST_NS, FAR), ("result", -LAST_NS, -(1 << 63)), ("header", 0, 7),
]  # fmt: skip
GPU_LIMITS = [
    ("pid", 1, 0), ("pid", (1 << 31) - 1, 1 << 31), ("tid", (1 << 31) - 1, 1 << 31), ("start_ns", 1, 0), ("duration_ns", 0, -1),
    ("duration_ns", LAST_NS, FAR), ("start_ns", LAST_NS, FAR), ("size_bytes", LAST_NS, -(1 << 63)),
    ("function", 0, 60_000), ("direction", 3, 60_000),
]  # fmt: skip
BLOCK_LIMITS = [
    ("queued_ns", LAST_NS, -(1 << 63)),
    ("issue_ns", 1, 0),
    ("duration_ns", LAST_NS, FAR),
    ("from_kernel", 1, 2),
    ("pid", (1 << 31) - 1, 1 << 31),
    ("sector", LAST_NS, LAST_NS + 1),
    ("cgroup", (1 << 63) - 1, 1 << 63),
    ("inode", (1 << 63) - 1, 1 << 63),
]


def finished(path, events, blocks=None, gpu=None) -> Trace:
    with Recording(path, made := manifest()) as recording:
        recording.append_events(events)
        if blocks is not None:
            recording.append_blocks(blocks)
        if gpu is not None:
            recording.append_gpu_calls(gpu)
    finish_trace(path, made)
    return Trace(path)


@pytest.mark.parametrize(("field", "kept", "beyond"), EVENT_LIMITS)
def test_calls(tmp_path, field, kept, beyond):
    for value, lost in ((kept, {}), (beyond, {"recorder": 1})):
        events = raw_events(4)
        events["result"] = 8
        events[field][2] = value
        trace = finished(tmp_path / str(value), events)
        assert len(trace.events_frame()) == trace.manifest.events == 4 - bool(lost)
        assert trace.manifest.lost == lost
        assert sum(note.startswith("left out: 1 damaged record") for note in trace.manifest.notes) == len(lost)


def test_calls_up_to_an_hour_after_the_last_reading_of_the_clocks(tmp_path):
    pairs = [ClockPair(9, 1000, 1), ClockPair(5, 996, 1)]
    assert _clock_bounds(pairs) == (0, 9 + 3600 * 10**9) and _clock_bounds([]) == (0, LAST_NS)
    for start_ns, duration_ns, kept in ((LAST_NS, 0, 4), (LAST_NS, 1, 3), (LAST_NS + 1, 0, 3)):
        events = raw_events(4)
        events["start_ns"][2], events["duration_ns"][2] = start_ns, duration_ns
        assert len(finished(tmp_path / f"{start_ns}+{duration_ns}", events).events_frame()) == kept


@pytest.mark.parametrize(("field", "kept", "beyond"), GPU_LIMITS)
def test_calls_of_an_accelerator(tmp_path, field, kept, beyond):
    for value, rows in ((kept, 2), (beyond, 1)):
        calls = gpu_calls()[:2]
        calls[field][1] = value
        table = finished(tmp_path / str(value), raw_events(4), gpu=calls).gpu()
        assert table is not None and len(table) == rows
        assert START_NS + 9 in table["start_ns"].tolist()


@pytest.mark.parametrize(("field", "kept", "beyond"), BLOCK_LIMITS)
def test_block_requests(tmp_path, field, kept, beyond):
    for value, rows in ((kept, 2), (beyond, 1)):
        found = requests()
        found[field][1] = value
        table = finished(tmp_path / str(value), raw_events(4), blocks=found).block()
        assert table is not None and len(table) == rows
        assert START_NS + 9 in table["issue_ns"].tolist()
