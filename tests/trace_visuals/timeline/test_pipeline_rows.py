"""Rows of a pipeline's ranks: their passes, minibatches and shares of time, in the picture, its data and the report."""

import csv

import numpy as np
import pytest
from matplotlib.figure import Figure

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.bins import Grid
from iotwin.trace_visuals.report.page_data import trace_document
from iotwin.trace_visuals.report.report_page import write_report
from iotwin.trace_visuals.requests import pass_lanes, pipeline_passes
from iotwin.trace_visuals.style import Origin
from iotwin.trace_visuals.timeline.pipeline_rows import draw_passes, pass_rows
from iotwin.trace_visuals.timeline.read_timeline import load_timeline
from iotwin.trace_visuals.timeline.timeline_figure import Form, draw, plot_timeline
from iotwin.trace_visuals.windows import choose_view
from iotwin.workloads.pipedream.plan.timeline_file import write_timeline
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage
from iotwin.workloads.policies.pipeline_simulator import simulate
from tests.synthetic import Job, write_job

MINIBATCHES = 4


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Two replicas, then one rank: a pass of stage 0 takes 1 s forward and 2 s backward, of stage 1 half as long."""
    plan = PipelinePlan((Stage(0, (0, 1), 1.0, 2.0), Stage(1, (2,), 0.5, 1.0)))
    path = tmp_path_factory.mktemp("passes") / "plan.trace"
    timeline = simulate(plan, MINIBATCHES)
    write_timeline(plan, timeline, MINIBATCHES, "1f1b", path)
    return Trace(path), timeline


def rows_of(trace):
    return pass_rows(trace, choose_view([trace], None).windows[0])


def test_each_rank_has_its_passes_and_shares_of_time(simulated):
    trace, timeline = simulated
    rows = rows_of(trace)
    assert (rows.ranks, rows.stages) == ((0, 1, 2), (0, 0, 1))
    assert [len(own) for own in rows.passes] == [4, 4, 8]
    whole = (0.0, timeline.seconds)
    assert rows.shares(0, whole) == pytest.approx({"F": 2 / timeline.seconds, "B": 4 / timeline.seconds}, rel=1e-3)
    assert rows.shares(2, whole) == pytest.approx({"F": 2 / timeline.seconds, "B": 4 / timeline.seconds}, rel=1e-3)
    first_half = rows.shares(0, (0.0, 1.0))  # rank 0 computes F of minibatch 0
    assert first_half == pytest.approx({"F": 1.0, "B": 0.0}, abs=1e-3)


def test_minibatches_are_written_where_they_fit_and_what_is_left_is_idle(simulated):
    trace, timeline = simulated
    axes = Figure(figsize=(6, 1)).add_axes((0, 0, 1, 1))
    axes.set_xlim(0, timeline.seconds)
    text = draw_passes(axes, rows_of(trace), 1, 5.0)
    assert sorted(label.get_text() for label in axes.texts) == ["1", "1", "3", "3"]
    assert timeline.seconds == 9 and text == "stage 0\nF 22%, B 44%, idle 33%"
    narrow = Figure(figsize=(6, 1)).add_axes((0, 0, 1, 1))
    narrow.set_xlim(0, 1000)
    draw_passes(narrow, rows_of(trace), 1, 5.0)
    assert not narrow.texts


def test_the_picture_has_a_row_for_each_rank(simulated):
    trace, _ = simulated
    view = choose_view([trace], None)
    block = load_timeline(trace, "plan", view.windows[0], 100, "all", lambda events: None)
    texts = [label.get_text() for axes in draw([block], view, Form()).axes for label in axes.texts]
    assert {"rank 0", "rank 1", "rank 2"} <= set(texts) and sum(text.startswith("stage ") for text in texts) == 3


def test_a_picture_s_data_has_each_pass(simulated, tmp_path):
    trace, timeline = simulated
    plot_timeline([trace.path], tmp_path / "p.svg", form=Form(origin=Origin("plan", "test")))
    with (tmp_path / "p.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["row"].startswith("rank ")]
    assert len(rows) == len(timeline.rank)
    last = [row for row in rows if row["row"] == "rank 2" and row["series"] == "B"]
    assert [float(row["value"]) for row in last] == [1, 2, 3, 4]


def test_the_report_s_lanes_are_as_busy_as_the_ranks(simulated):
    trace, timeline = simulated
    passes = pipeline_passes(trace)
    begin, end = int(passes["start_ns"].min()), int((passes["start_ns"] + passes["duration_ns"]).max())
    names, lanes = pass_lanes(trace, Grid.covering(begin, end, 50))
    assert names[:2] == ("rank 0, stage 0: F", "rank 0, stage 0: B") and len(names) == 6
    busy_s = lanes.busy.sum(axis=1) * lanes.grid.width / 1e9
    assert busy_s == pytest.approx([2, 4, 2, 4, 2, 4], rel=1e-3)
    assert lanes.calls.sum(axis=1).tolist() == [2, 2, 2, 2, 4, 4]
    assert np.isclose(timeline.seconds, (end - begin) / 1e9)


def test_a_report_s_passes_have_minibatch_and_weight_version(simulated, tmp_path):
    """Replica 1 of stage 0 warms up with one minibatch, so both of its minibatches use version 0."""
    analysis = write_report([simulated[0].path], tmp_path / "r.html")[0]
    found = trace_document(analysis)["passes"]
    assert set(found) < {name.title for name in analysis.lane_names} and len(found) == 6
    assert [row[2:] for row in found["rank 1, stage 0: F"]] == [[1, 0], [3, 0]]
    assert [row[2:] for row in found["rank 2, stage 1: B"]] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert [end - begin for begin, end, *_ in found["rank 1, stage 0: B"]] == pytest.approx([2, 2])


def test_a_trace_without_passes_has_no_such_rows(tmp_path):
    trace = Trace(write_job(tmp_path / "t", Job(epochs=1)))
    assert rows_of(trace) is None and pass_lanes(trace, Grid.covering(0, 10, 5))[0] == ()
