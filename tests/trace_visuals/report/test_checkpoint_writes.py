"""Checkpoints beside training in report and timeline: their rows, their cost, and the reads while one is written."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.call_columns import read_calls
from iotwin.trace_visuals.report.checkpoint_writes import APART, DURING, ReadsDuringCheckpoints
from iotwin.trace_visuals.report.diagnosis import describe
from iotwin.trace_visuals.report.page_data import trace_document
from iotwin.trace_visuals.report.report_page import write_report
from iotwin.trace_visuals.requests import CHECKPOINT_PARTS
from iotwin.trace_visuals.style import CHECKPOINT_COLOURS
from iotwin.trace_visuals.timeline.read_timeline import load_timeline
from iotwin.trace_visuals.windows import TimeWindow
from tests.synthetic import MILLISECOND, Job, write_job

# (part, start, length), ms from the job's start: two checkpoints, 1.5 s apart
SAVED = (("snapshot", 1000, 20), ("stall", 1000, 30), ("persist", 1020, 400), ("stall", 2490, 10), ("persist", 2520, 800))


@pytest.fixture
def path(tmp_path):
    """The trace of a job that logs two checkpoints beside its training, and steps of more parts than are shown."""
    job = Job(parts=True)
    made = write_job(tmp_path / "t.trace", job)
    rows = [(name, job.start_ns + start * MILLISECOND, length * MILLISECOND, 0, 1, None) for name, start, length in SAVED]
    rows += [(f"other{number}", job.start_ns, (number + 1) * 1000 * MILLISECOND, 0, 1, None) for number in range(9)]
    saved = pa.Table.from_pylist([dict(zip(schema.PARTS.names, (*row, None, None), strict=True)) for row in rows])
    table = pa.concat_tables([pq.read_table(made / "parts.parquet").cast(schema.PARTS), saved.cast(schema.PARTS)])
    pq.write_table(table.sort_by("start_ns"), made / "parts.parquet")
    (made / "logs").mkdir(exist_ok=True)
    with (made / "logs" / "stdout").open("a") as log:
        for name, start, length in SAVED:
            span = {"start": job.start_ns + start * MILLISECOND, "duration": length * MILLISECOND}
            event = {"time_ms": 1, "event_type": "INTERVAL_END", "key": name, "value": span, "metadata": {"rank": 0}}
            log.write(f":::MLLOG {json.dumps(event)}\n")
    return made


def test_a_report_says_what_checkpoints_beside_training_cost(path, tmp_path):
    analysis = write_report([path], tmp_path / "r.html")[0]
    text = {finding.topic: finding.text for finding in describe(analysis)}["Concurrent checkpoints"]
    run_ms = (analysis.survey.end_ns - analysis.survey.begin_ns) / MILLISECOND
    assert text.startswith("2 checkpoints written concurrently with training, every 1.5 s in the median (1.5 s to 1.5 s). "), text
    assert f"Writing them took {1200 / run_ms:.1%} of the run; training waited for them {40 / run_ms:.1%} of it" in text
    assert f"{20 / run_ms:.1%} went into copying the state" in text
    latency = analysis.reads_during_checkpoints.latency_ns
    assert latency.count(DURING) + latency.count(APART) == sum(analysis.operations.reads_ns.count(row) for row in (0, 1))
    assert "at the 99th percentile while one was written, and " in text


def test_reads_are_told_apart_by_whether_a_checkpoint_was_being_written(path):
    trace = Trace(path)
    spans = np.array([[6_000, 6_400], [6_100, 6_150], [7_000, 7_100]], np.int64) * MILLISECOND  # the second within the first
    found, expected = ReadsDuringCheckpoints(spans), {DURING: [], APART: []}
    for calls in read_calls(trace, [], pc.scalar(True)):
        found.add(calls)
        for start, duration, group, storage in zip(calls.start_ns, calls.duration_ns, calls.group, calls.storage, strict=True):
            if group == 0 and storage:
                beside = any(begin <= start < end for begin, end in spans)
                expected[DURING if beside else APART].append(int(duration))
    for row, durations in expected.items():
        assert durations and (found.latency_ns.count(row), found.latency_ns.total([row])) == (len(durations), sum(durations))


def test_a_timeline_always_has_the_parts_of_checkpoints(path):
    window = TimeWindow(5_000 * MILLISECOND, 15_000 * MILLISECOND, 5_000 * MILLISECOND)
    block = load_timeline(Trace(path), "a", window, 200, "all", lambda events: None)
    assert block.part_names[-3:] == CHECKPOINT_PARTS and CHECKPOINT_COLOURS.keys() == set(CHECKPOINT_PARTS)
    assert block.part_names[:-3] == ("other3", "other4", "other5", "other6", "other7", "other8")
    assert block.parts.calls[-3:].sum(axis=1).tolist() == [2, 1, 2]


def test_without_such_parts_nothing_is_said(tmp_path):
    analysis = write_report([write_job(tmp_path / "t.trace", Job())], tmp_path / "r.html")[0]
    assert "Concurrent checkpoints" not in {finding.topic for finding in describe(analysis)}
    assert not analysis.reads_during_checkpoints.latency_ns.count(DURING)  # all reads lie outside of the phases


def test_a_report_shows_how_far_checkpoints_are_apart_and_reads_while_one_is_written(path, tmp_path):
    analysis = write_report([path], tmp_path / "r.html")[0]
    bursts = trace_document(analysis)["bursts"]
    assert bursts["interval_ns"] == [1500 * MILLISECOND]
    assert bursts["time_s"] == pytest.approx([(analysis.survey.begin_ns - analysis.zero_ns) / 1e9 + 2.52])
    assert {one["group"]: sum(one["counts"]) for one in bursts["reads"]} == {
        name: analysis.reads_during_checkpoints.latency_ns.count(row)
        for row, name in ((DURING, "while a checkpoint is written"), (APART, "otherwise"))
    }
    assert [name.title for name in analysis.lane_names if name.group.startswith("checkpoint")] == [
        "checkpoint persist", "checkpoint snapshot", "checkpoint stall"
    ]  # fmt: skip


def test_checkpoints_that_training_waits_for_are_told_by_their_phases(tmp_path):
    made = write_job(tmp_path / "t.trace", Job(epochs=3))
    phases = Trace(made).phases()
    begin = np.sort(phases.loc[phases["phase"] == "checkpoint", "start_ns"].to_numpy())
    bursts = trace_document(write_report([made], tmp_path / "r.html")[0])["bursts"]
    assert bursts["interval_ns"] == np.diff(begin).tolist() and len(begin) == 3
    none = write_job(tmp_path / "none.trace", Job(checkpoint_every=0))
    bursts = trace_document(write_report([none], tmp_path / "n.html")[0])["bursts"]
    assert (bursts["time_s"], bursts["interval_ns"]) == ([], [])
