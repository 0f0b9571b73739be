"""Kills and resumptions: where a timeline marks them, and what a report says of them."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.moments import KILLED, RESUMED, Moment, moments
from iotwin.trace_visuals.report.diagnosis import describe
from iotwin.trace_visuals.report.report_page import write_report
from iotwin.trace_visuals.style import Origin
from iotwin.trace_visuals.timeline.timeline_figure import Form, plot_timeline
from tests.synthetic import MILLISECOND, Job, write_job

PARTS = (("load", 100, 40), ("replay", 200, 300), ("restore", 500, 60))  # part, start and length in ms from the job's start
POINTS = (("resumed_by", "replay-data"), ("replayed_batches", 7))


def resumed_job(path, parts=PARTS, points=POINTS, killed=True):
    """Return the trace of a job that logs how it resumed. The exit of its first process is a kill."""
    job = Job()
    made = write_job(path, job)
    rows = [
        {"name": name, "start_ns": job.start_ns + start * MILLISECOND, "duration_ns": length * MILLISECOND, "rank": rank}
        for rank in (0, 1) for name, start, length in parts
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=schema.PARTS)
    pq.write_table(table.sort_by("start_ns"), made / "parts.parquet")
    (made / "logs").mkdir(exist_ok=True)
    with (made / "logs" / "stdout").open("a") as log:
        for key, value in points:
            event = {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": {"rank": 0}}
            log.write(f":::MLLOG {json.dumps(event)}\n")
    processes = pq.read_table(made / "processes.parquet").to_pylist()
    for process, status, role in zip(processes, (-9 if killed else 0, -15, -9), ("rank", "rank", "loader"), strict=False):
        process |= {"exit_status": status, "exit_ns": job.start_ns + 90 * MILLISECOND, "role": role}
    pq.write_table(pa.Table.from_pylist(processes, schema=schema.PROCESSES), made / "processes.parquet")
    return made, job


def test_only_kills_of_ranks_and_ends_of_restoring_are_marked(tmp_path):
    path, job = resumed_job(tmp_path / "t.trace")
    assert moments(Trace(path)) == [
        Moment(job.start_ns + 90 * MILLISECOND, KILLED), Moment(job.start_ns + 560 * MILLISECOND, RESUMED)
    ]  # fmt: skip
    assert moments(Trace(write_job(tmp_path / "plain.trace", Job()))) == []


def test_a_timeline_marks_them_in_its_picture_and_its_data(tmp_path):
    path, _ = resumed_job(tmp_path / "t.trace")
    [block] = plot_timeline([path], tmp_path / "t.svg", form=Form(origin=Origin("test", "test", "test")))
    picture = (tmp_path / "t.svg").read_text()
    assert ">killed<" in picture and ">resumed<" in picture and ">replay" in picture
    with (tmp_path / "t.csv").open() as table:
        marked = {row["series"]: float(row["begin_s"]) for row in csv.DictReader(table) if row["series"] in (KILLED, RESUMED)}
    seconds = [(each.time_ns - block.window.zero_ns) / 1e9 for each in block.moments]
    assert [marked[KILLED], marked[RESUMED]] == pytest.approx(seconds)
    plain = write_job(tmp_path / "plain.trace", Job())
    plot_timeline([plain], tmp_path / "plain.svg")
    assert ">killed<" not in (tmp_path / "plain.svg").read_text()


@pytest.mark.parametrize(
    ("parts", "points", "killed", "text"),
    [
        (
            PARTS, POINTS, True,
            "The run resumed from a checkpoint by replay-data: reading it took 40 ms, putting the state back 60 ms. "
            "7 earlier steps read their batches again, in 300 ms.",
        ),
        (
            (PARTS[0], PARTS[2]), (("resumed_by", "restore"), ("skipped_batches", 1)), False,
            "The run resumed from a checkpoint by restore: reading it took 40 ms, putting the state back 60 ms. "
            "It skipped 1 earlier step without reading their batches.",
        ),
        (PARTS[:1], (), False, None),
    ],
)  # fmt: skip
def test_a_report_says_how_the_run_resumed(tmp_path, parts, points, killed, text):
    path, job = resumed_job(tmp_path / "t.trace", parts, points, killed)
    [analysis] = write_report([path], tmp_path / "r.html")
    found = {finding.topic: finding.text for finding in describe(analysis)}.get("Resumption")
    at_s = (job.start_ns + 90 * MILLISECOND - analysis.zero_ns) / 1e9
    before = f"A process was killed (SIGKILL) at {at_s:.3g} s. " if killed else ""
    assert found == (None if text is None else before + text)
