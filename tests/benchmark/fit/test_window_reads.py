"""Windows of passes get the reads that begin in them, however many windows and reads there are at one instant."""

import json

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.fit.passes import _parts
from iotwin.benchmark.fit.windows import Window, _windows_of_turns
from iotwin.loops.inferred_phases import open_with_phases
from iotwin.trace_store.importers import import_trace

TIMES = st.integers(0, 9)
READS = st.lists(st.tuples(TIMES, st.integers(1, 3), st.integers(0, 2)), max_size=30)
WINDOWS = st.lists(st.tuples(TIMES, TIMES, st.none() | st.sets(st.integers(1, 3)).map(tuple)), max_size=6)


def frame(reads):
    return pd.DataFrame(reads, columns=["start_ns", "pid", "sample"]).astype(np.int64)


@given(READS, WINDOWS)
def test_a_window_has_the_reads_of_its_processes_that_begin_in_it_in_their_order(reads, spans):
    windows = [Window("epoch", 1, first, last, False, pids) for first, last, pids in spans]
    found = [(window, part.index.tolist()) for window, part in _parts(frame(reads), windows) if len(part)]
    expected = [
        [
            row
            for row, (start, pid, _) in enumerate(reads)
            if window.start_ns <= start <= window.end_ns and pid in (window.pids or [pid])
        ]
        if window.pids != ()
        else []
        for window in windows
    ]
    assert found == [(window, rows) for window, rows in zip(windows, expected, strict=True) if rows]


@given(st.lists(st.tuples(TIMES, st.just(1), st.integers(0, 2)), min_size=1, max_size=30))
def test_a_turn_begins_with_the_first_sample_that_comes_again(reads):
    windows = _windows_of_turns(frame(sorted(reads)), samples_return=True)
    if windows[0].phase == "block":
        return
    accesses = frame(sorted(reads))
    turns = accesses.groupby("sample").cumcount()
    assert [window.start_ns for window in windows] == accesses["start_ns"].groupby(turns).min().tolist()
    assert [window.epoch for window in windows] == list(range(1, len(windows) + 1))
    assert windows[-1].end_ns == accesses["start_ns"][turns == turns.max()].max()


def test_readers_whose_starter_is_unknown_count_as_ranks(tmp_path):
    """Chrome's trace events name no parents."""
    event = {"name": "read", "cat": "POSIX", "ph": "X", "ts": 1_700_000_000_000_000, "dur": 0, "tid": 1}
    args = {"fname": "/data/f", "offset": 0, "size": 4096, "ret": 4096}
    source = tmp_path / "events.json"
    source.write_text(json.dumps({"traceEvents": [{**event, "pid": index, "args": args} for index in range(300)]}))
    import_trace(source, tmp_path / "trace")
    assert open_with_phases(tmp_path / "trace").manifest.events == 300
