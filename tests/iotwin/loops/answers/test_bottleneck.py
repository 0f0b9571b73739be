"""The verdict on a job, against traces in which each second is known."""

import dataclasses
import random

import numpy as np
import pandas as pd
import pytest

from iotwin.loops.answers import bottleneck as verdict_module
from iotwin.loops.answers.bottleneck import _first_rank, _length, _union, _within, quick_verdict, verdict_of
from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made
from tests.synthetic import MILLISECOND, Job, write_job

_JOB = Job(log_waits=True, epochs=2)


def _verdict(folder, **changes):
    return verdict_of(Trace(write_job(folder / "job.trace", dataclasses.replace(_JOB, **changes))))


def test_a_job_whose_loaders_are_fast_is_not_limited_by_storage(tmp_path):
    found = _verdict(tmp_path)
    assert found.limited_by == "compute" and found.waiting_share < 0.1
    assert found.sentence.startswith("Not limited by storage") and "epochs" in found.sentence


def test_slow_reads_limit_a_job_by_its_storage(tmp_path):
    found = _verdict(tmp_path, read_ns=100 * MILLISECOND)
    assert found.limited_by == "storage" and found.waiting_share > 0.5 and "storage is busy for 100% of that" in found.sentence


def test_slow_work_after_the_reads_limits_a_job_by_its_loaders(tmp_path):
    found = _verdict(tmp_path, preprocess_ns=400 * MILLISECOND)
    assert found.limited_by == "loaders" and found.waiting_share > 0.5 and "storage is idle" in found.sentence


def test_without_calls_that_wait_the_limit_is_unknown(tmp_path):
    found = _verdict(tmp_path, log_waits=False)
    assert found.limited_by == "unknown" and found.waiting_share is None


def test_the_window_is_that_of_the_epochs(tmp_path):
    trace = Trace(write_job(tmp_path / "job.trace", _JOB))
    phases = trace.phases()
    epochs = phases[phases["phase"] == "epoch"]
    window = verdict_of(trace).window
    zero = trace.manifest.start_ns
    assert window.begin_s == pytest.approx((epochs["start_ns"].min() - zero) / 1e9)
    assert window.end_s == pytest.approx((epochs["end_ns"].max() - zero) / 1e9)


def test_a_large_trace_gets_no_verdict_in_passing(tmp_path, monkeypatch):
    trace = Trace(write_job(tmp_path / "job.trace", _JOB))
    assert quick_verdict(trace)["sentence"] == verdict_of(trace).sentence
    monkeypatch.setattr(verdict_module, "_MOST_EVENTS", 10)
    assert quick_verdict(trace) is None


def test_unions_and_intersections_are_those_of_single_moments():
    draw = random.Random(3)
    for _ in range(200):
        spans = [
            np.array([sorted(draw.sample(range(60), 2)) for _ in range(draw.randrange(5))], dtype=np.int64).reshape(-1, 2)
            for _ in "ab"
        ]
        moments = [{moment for begin, end in each.tolist() for moment in range(begin, end)} for each in spans]
        unions = [_union(each) for each in spans]
        assert [_length(each) for each in unions] == [len(each) for each in moments]
        assert _length(_within(*unions)) == len(moments[0] & moments[1])


def test_the_first_rank_is_one_that_trains():
    """Neither the process that starts ranks is, nor one without loaders if others have some."""
    processes = pd.DataFrame({
        "pid": [1, 2, 3, 4, 5, 6], "ppid": [0, 1, 1, 2, 3, 2], "role": ["rank", "rank", "rank", "loader", "loader", "loader"],
    })  # fmt: skip
    assert _first_rank(processes) == [2, 4, 6]
    assert _first_rank(processes[processes["role"] == "rank"]) == [2]
    assert _first_rank(processes[:1]) == [1] and _first_rank(processes[:0]) == []


def test_reads_before_those_of_loaders_are_no_training_and_those_of_other_ranks_serve_none(tmp_path):
    made = Made()
    made.process(10, 1, "rank")
    made.process(11, 10, "loader", 5000, 9000)
    made.process(12, 1, "rank")
    made.process(13, 12, "loader", 4500, 9000)
    file = made.file("/d/a", size=100)
    made.call(0, 10, "read", file, 0, 100, took_ms=4000)
    made.call(4500, 13, "read", file, 0, 100, took_ms=4400)
    made.call(5000, 10, "poll", -1, took_ms=2000)
    made.call(5000, 11, "read", file, 0, 100, took_ms=800)
    made.call(8900, 11, "read", file, 0, 100, took_ms=100)
    found = verdict_of(made.trace(tmp_path / "t"))
    assert found.window.begin_s == pytest.approx(5) and found.waiting_share == pytest.approx(0.5)
    assert found.limited_by == "loaders" and "storage is idle for 60% of that" in found.sentence
