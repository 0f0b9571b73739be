"""Cutting a process at moments: every row is in one stretch, and all times of thinking together remain."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder
from iotwin.benchmark.emulator.recorded.edits.think_clock import ProcessRows
from iotwin.workload_yaml.recording import Op, RecordedFile, TwinRecording
from tests.benchmark.recordings import recording, row

FILES = [RecordedFile("a", size_bytes=1)]


def thread(thinks: list[int], durations: list[int]) -> TwinRecording:
    """A thread of reads that think and take so long, in ns."""
    rows, now = [], 0
    for think, duration in zip(thinks, durations, strict=True):
        now += think
        rows.append(row(0, Op.READ, think_ns=think, at_ns=now))
        now += duration
    return recording(rows, FILES)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12), st.lists(st.integers(0, 1300)))
def test_stretches_hold_all_rows_and_all_thinking(pairs, cuts):
    made = thread([think for think, _ in pairs], [duration for _, duration in pairs])
    rows = ProcessRows(made, 0, np.ones(made.rows, np.bool_))
    moments = np.array(sorted([0, *cuts, 1301]))
    stretches = rows.cut(moments)
    assert np.concatenate([each.rows for each in stretches]).tolist() == list(range(made.rows))
    assert sum(each.think_ns for each in stretches) == sum(think for think, _ in pairs)
    builder = RowBuilder(made)
    _, played = builder.thread(0)
    for each in stretches:
        each.put(played)
    kept, thinks, _ = played.whole()
    assert kept.tolist() == list(range(made.rows)) and thinks.tolist() == [think for think, _ in pairs]


def test_the_clock_stands_still_during_calls_and_runs_between_them():
    rows = ProcessRows(thread([10, 10, 5], [100, 20, 1]), 0, np.ones(3, np.bool_))
    assert rows.readings(np.array([0, 4, 10, 60, 110, 113, 120, 141, 144, 145])).tolist() == [
        0,
        4,
        10,
        10,
        10,
        13,
        20,
        21,
        24,
        25,
    ]


def test_a_wait_is_no_thinking():
    made = recording(
        [
            row(0, Op.READ, think_ns=5, at_ns=5),
            row(0, Op.PIPE_READ, think_ns=7, at_ns=500),
            row(0, Op.READ, think_ns=3, at_ns=503),
        ],
        FILES,
    )
    rows = ProcessRows(made, 0, np.ones(3, np.bool_))
    assert rows.readings(np.array([5, 12, 300, 500, 502, 503])).tolist() == [5, 12, 12, 12, 14, 15]


def test_thinking_is_scaled():
    made = thread([10, 10], [1, 1])
    builder = RowBuilder(made)
    _, played = builder.thread(0)
    stretch = ProcessRows(made, 0, np.ones(2, np.bool_)).cut(np.array([0, 40]))[0]
    stretch.put(played, 0.5)
    assert played.whole()[1].tolist() == [5, 5]
