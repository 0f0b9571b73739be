"""Pipelines found in logged passes: passes made by the simulator, and a traced training with its twin."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.parameters.pipeline_stages import find_pipeline, logs_passes, ranks_by_start
from iotwin.command_lines import own_command
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.loops.traced_run import run_traced
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage, versions
from iotwin.workloads.policies.pipeline_simulator import simulate
from tests.workloads.pipedream.runtime.ranks import write_conf

FORWARD_S, BACKWARD_S, EPOCHS = 0.010, 0.020, 2


def made_parts(plan, minibatches):
    """Return the parts of two epochs of a plan: passes at simulated times, sends of 1 ms and updates of 2 ms within them."""
    timeline, rows = simulate(plan, minibatches), []
    used = {
        (stage.stage, minibatch): version
        for stage in plan.stages
        for replica in range(stage.replicas)
        for minibatch, version in zip(
            range(replica, minibatches, stage.replicas), versions(plan, stage.stage, replica, minibatches), strict=True
        )
    }
    for epoch in range(EPOCHS):
        begin_ns = 10**9 + epoch * int((timeline.seconds + 1) * 1e9)
        columns = (timeline.rank, timeline.stage, timeline.minibatch, timeline.backward, timeline.start_s, timeline.end_s)
        for rank, stage, minibatch, backward, start_s, end_s in zip(*columns, strict=True):
            start_ns, end_ns = begin_ns + round(start_s * 1e9), begin_ns + round(end_s * 1e9)
            label = (int(rank), epoch * minibatches + int(minibatch), int(stage), used[int(stage), int(minibatch)])
            after = ("opt_step", 2_000_000) if backward else ("send_act", 1_000_000)
            rows.append(("b" if backward else "f", start_ns, end_ns - start_ns - after[1], *label))
            rows.append((after[0], end_ns - after[1], after[1], *label[:-1], None))
    order = ["name", "start_ns", "duration_ns", "rank", "step", "stage", "version"]
    frame = pd.DataFrame(rows, columns=order).sort_values("start_ns", kind="stable").reset_index(drop=True)
    # A rank waits whenever it computes nothing.
    waits = []
    for rank, own in frame[frame["name"].isin(("f", "b"))].groupby("rank"):
        own = own.sort_values("start_ns")
        ends = own["start_ns"] + own["duration_ns"] + np.where(own["name"] == "b", 2_000_000, 1_000_000)
        for end, start, stage, step in zip(ends[:-1], own["start_ns"][1:], own["stage"], own["step"], strict=False):
            if start > end and start - end < 9e8:
                waits.append(("recv_act", end, start - end, rank, step, stage, None))
    return pd.concat([frame, pd.DataFrame(waits, columns=order)]).astype({"version": float})


def job_of(parts):
    return SimpleNamespace(trace=SimpleNamespace(step_parts=lambda: parts))


def planned(replicas, schedule="1f1b", depth=None):
    found, first = [], 0
    for number, count in enumerate(replicas):
        found.append(Stage(number, tuple(range(first, first + count)), FORWARD_S * (number + 1), BACKWARD_S * (number + 1)))
        first += count
    return PipelinePlan(tuple(found), schedule, depth or {})


@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (2, 1, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "flush", "none", "2bw"])
def test_stages_schedule_and_times_are_those_that_were_logged(schedule, replicas):
    plan, assumptions = planned(replicas, schedule), []
    seen = find_pipeline(job_of(made_parts(plan, 12)), EPOCHS, assumptions)
    assert not assumptions and seen.ranks == plan.ranks
    section = seen.section
    assert (section.schedule, section.minibatches, section.depth) == (schedule, 12, {})
    for found, stage in zip(section.stages, plan.stages, strict=True):
        assert found.ranks == list(stage.ranks)
        # The times between waits: passes with their sends and updates, wherever a wait was not logged as one.
        assert np.mean(getattr(found.forward_s, "values", found.forward_s)) == pytest.approx(stage.forward_s, abs=2e-5)
        assert np.mean(getattr(found.backward_s, "values", found.backward_s)) == pytest.approx(stage.backward_s, abs=2e-5)


def test_another_warm_up_than_the_formula_s_is_kept():
    seen = find_pipeline(job_of(made_parts(planned((1, 1), depth={0: 3, 1: 0}), 12)), EPOCHS, [])
    assert (seen.section.schedule, seen.section.depth) == ("1f1b", {"0": 3, "1": 0})


def test_replicas_are_in_the_order_in_which_they_take_minibatches():
    plan = PipelinePlan((Stage(0, (2, 0), 0.01, 0.02), Stage(1, (1,), 0.01, 0.02)))
    assert [stage.ranks for stage in find_pipeline(job_of(made_parts(plan, 8)), EPOCHS, []).section.stages] == [[2, 0], [1]]


def test_an_all_reduce_takes_what_its_last_rank_needs():
    parts = made_parts(planned((2, 1)), 8)
    waits = [
        ("allreduce", 10**9 + 40_000_000 * update, 1_000_000 + 8_000_000 * (rank == 0), rank, 2 * update, 0, None)
        for update in range(8)
        for rank in (0, 1)
    ]
    parts = pd.concat([parts, pd.DataFrame(waits, columns=parts.columns)]).astype({"version": float})
    stage = find_pipeline(job_of(parts), EPOCHS, []).section.stages[0]
    assert stage.all_reduce_s == pytest.approx(0.001)


def test_an_order_that_no_schedule_has_is_reported():
    parts = made_parts(planned((1, 1)), 8)
    parts.loc[parts["name"].isin(("f", "b")) & (parts["stage"] == 1), "step"] ^= 1
    assumptions = []
    assert find_pipeline(job_of(parts), EPOCHS, assumptions).section.schedule == "1f1b"
    assert "no schedule explains" in assumptions[0]


def test_a_job_without_a_pipeline_has_none():
    parts = made_parts(planned((1, 1)), 4)
    assert logs_passes(parts) and not logs_passes(None) and not logs_passes(parts[parts["name"] != "b"])
    assert not logs_passes(parts.assign(stage=np.nan)) and find_pipeline(job_of(parts.assign(stage=np.nan)), 2, []) is None
    assumptions = []
    assert find_pipeline(job_of(parts.assign(stage=parts["stage"] + 1)), EPOCHS, assumptions) is None and assumptions


def test_the_ranks_of_a_job_are_the_children_of_its_launcher_in_order_of_start():
    processes = pd.DataFrame({"pid": [9, 4, 5, 6, 7], "ppid": [1, 9, 9, 9, 4], "start_ns": [0, 3, 1, 2, 9]})
    job = SimpleNamespace(processes=processes)
    assert ranks_by_start(job, [5], 3) == [5, 6, 4] and ranks_by_start(job, [5], 4) == [5]


@pytest.mark.root
@pytest.mark.torch
def test_the_twin_of_a_traced_training_has_its_stages_and_reads_and_writes_as_it_does(tmp_path):
    """Three gloo ranks, of which two read: the twin's ranks read as much, and each stage writes its own checkpoint."""
    generate(ImagenetLayout(classes=2, scale=0.2), tmp_path / "images", samples=49)
    conf = write_conf(tmp_path, 2, 1)
    job = [
        sys.executable, "-m", "iotwin.workloads.launch", "3", "iotwin.workloads.pipedream", "-m", "vgg16", "--preset", "tiny",
        "--data_dir", tmp_path / "images", "--config_path", conf, "-b", 4, "--eval-batch-size", 2, "-j", 1, "--epochs", 2,
        "--lr", 0.01, "--checkpoint_dir", tmp_path / "out", "--num_ranks_in_server", 2, "--variant", "instrumented",
    ]  # fmt: skip
    run_traced(list(map(str, job)), tmp_path / "job.trace", "pipedream", prints_events=False)
    trace = Trace(tmp_path / "job.trace")
    config = (fitted := fit(trace)).config
    assert [stage.ranks for stage in config.twin.pipeline.stages] == [[0, 1], [2]]
    assert (config.twin.pipeline.schedule, config.twin.pipeline.minibatches) == ("1f1b", 12)
    assert (config.train.epochs, config.reader.batch_size, config.reader.batch_size_eval, config.twin.ranks) == (2, 4, 2, 3)
    written = {file.name: file.rank for file in config.twin.checkpoint.files if file.name.endswith(".raw")}
    assert sorted(written.values()) == [0, 2]
    config.twin.startup_time, config.twin.init_time = 0.0, 0.0
    config.checkpoint.checkpoint_folder, config.output.folder = str(tmp_path / "twin_out"), str(tmp_path / "output")
    fitted.write(tmp_path / "twin.yaml")
    run_traced(own_command("emulate", tmp_path / "twin.yaml"), tmp_path / "twin.trace", "pipedream", prints_events=False)
    found = compare(trace, Trace(tmp_path / "twin.trace")).to_document()["dimensions"]
    assert min(found[name] for name in ("volume", "operation_mix", "request_size", "access_order", "files")) > 0.9
    assert found["checkpoint"] > 0.8
