"""When passes begin and end where nothing is logged, to the nanosecond, from accesses made by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit.windows import _Generation, _windows_of, _windows_of_turns, logged_windows


def accesses(*rows: tuple[int, int, int]) -> pd.DataFrame:
    """Accesses of (sample, start_ns, end_ns), by loader 7."""
    return pd.DataFrame(rows, columns=["sample", "start_ns", "end_ns"]).assign(pid=7)


LOADER = pd.DataFrame({"pid": [7], "ppid": [1], "role": ["loader"]})
TWICE = accesses((0, 10, 12), (1, 20, 22), (2, 30, 32), (1, 50, 52), (0, 60, 62), (2, 70, 75))


def spans(windows) -> list[tuple[int, int, int]]:
    return [(window.epoch, window.start_ns, window.end_ns) for window in windows]


def test_an_epoch_ends_just_before_its_samples_come_again():
    assert spans(_windows_of_turns(TWICE, True)) == [(1, 10, 49), (2, 50, 70)]
    assert {window.phase for window in _windows_of_turns(TWICE, True)} == {"epoch"}


def test_samples_that_are_used_up_make_one_block():
    (window,) = _windows_of_turns(TWICE, False)
    assert (window.phase, window.start_ns, window.end_ns) == ("block", 10, 70)


def test_samples_drawn_at_random_make_one_block():
    """A sample that comes again long before all have come."""
    again = accesses((0, 10, 12), (0, 20, 22), *((sample, 30 + sample, 31 + sample) for sample in range(1, 9)))
    assert [window.phase for window in _windows_of_turns(again, True)] == ["block"]


@pytest.mark.parametrize(
    ("asked", "begins"),
    [
        ([5, 45, 47], 44),  # just before the first request after all had been read, at 32
        ([5, 32, 50], 49),  # one at the end of the last read is of the old epoch, one at the first read of the new
        ([5, 51], 50),  # none in between: from the first read
        ([], 50),
    ],
)
def test_a_generation_s_later_epochs_begin_with_the_first_batch_asked_for(asked, begins):
    handed = [{"pid": 1, "op": "write", "file_id": 3, "start_ns": time_ns} for time_ns in asked]
    handed += [{"pid": 7, "op": "read", "file_id": 3, "start_ns": 6}, {"pid": 1, "op": "write", "file_id": 4, "start_ns": 46}]
    handed = [{**call, "result": 30, "end_ns": call["start_ns"]} for call in handed]
    job: Any = SimpleNamespace(calls_on=lambda files, ops: pd.DataFrame(handed), file_ids=lambda kind: [3, 4], processes=LOADER)
    windows = _windows_of(job, _Generation((7,), 2, TWICE), True)
    assert spans(windows) == [(1, 2, 32), (2, begins, 75)]
    assert {window.pids for window in windows} == {(7,)}


def test_a_few_samples_that_come_again_are_no_epoch():
    """Of ten samples one is read twice, after all others."""
    once = [(sample, 10 * sample, 10 * sample + 5) for sample in range(10)]
    calls = pd.DataFrame({"pid": [1], "op": ["write"], "file_id": [3], "start_ns": [0], "end_ns": [0], "result": [30]})
    job: Any = SimpleNamespace(calls_on=lambda files, ops: calls, file_ids=lambda kind: [3], processes=LOADER)
    assert spans(_windows_of(job, _Generation((7,), 0, accesses(*once, (9, 200, 205))), True)) == [(1, 0, 205)]


def test_logged_passes_are_those_of_the_first_rank_in_order():
    rows = [
        ("epoch", 50, 90, 1.0),
        ("evaluation", 40, 45, 0.0),
        ("epoch", 10, 39, 0.0),
        ("init", 0, 9, 0.0),
        ("epoch", 50, 80, 0.0),
    ]
    frame = pd.DataFrame(rows, columns=["phase", "start_ns", "end_ns", "rank"]).assign(epoch=np.nan)
    job: Any = SimpleNamespace(phases=frame)
    found = [(window.phase, window.epoch, window.start_ns, window.end_ns, window.logged) for window in logged_windows(job)]
    assert found == [("epoch", 1, 10, 39, True), ("evaluation", 1, 40, 45, True), ("epoch", 2, 50, 80, True)]
    none: Any = SimpleNamespace(phases=job.phases.assign(rank=np.nan, phase=["block", "evaluation", "block", "init", "block"]))
    assert [window.phase for window in logged_windows(none)] == ["block", "evaluation", "block", "block"]


def test_an_evaluation_before_the_first_epoch_is_no_epoch():
    rows = [("evaluation", 5, 9), ("epoch", 10, 39), ("evaluation", 40, 45), ("epoch", 50, 90)]
    frame = pd.DataFrame(rows, columns=["phase", "start_ns", "end_ns"]).assign(epoch=np.nan, rank=0)
    found = [(window.phase, window.epoch) for window in logged_windows(job_of(frame))]
    assert found == [("evaluation", 1), ("epoch", 1), ("evaluation", 1), ("epoch", 2)]


def test_blocks_of_an_epoch_between_checkpoints_are_one_pass():
    rows = [("block", 10, 19, 2), ("block", 20, 29, 3), ("checkpoint", 30, 34, 3), ("block", 35, 39, 3), ("block", 40, 49, 4)]
    frame = pd.DataFrame(rows, columns=["phase", "start_ns", "end_ns", "epoch"]).assign(rank=0)
    found = [(window.phase, window.epoch, window.start_ns, window.end_ns) for window in logged_windows(job_of(frame))]
    assert found == [("epoch", 1, 10, 19), ("epoch", 2, 20, 39), ("epoch", 3, 40, 49)]
    evaluated = frame.assign(phase=frame["phase"].replace("checkpoint", "evaluation"))  # in the middle of an epoch
    assert [window.phase for window in logged_windows(job_of(evaluated))] == ["block", "block", "evaluation", "block", "block"]
    uncounted = frame.assign(epoch=1)
    assert {window.phase for window in logged_windows(job_of(uncounted))} == {"block"}


def job_of(phases: pd.DataFrame) -> Any:
    return SimpleNamespace(phases=phases)
