"""Order, versions and routes by the formulas, and what the simulation makes of them."""

import gzip
import json

import numpy as np
import pytest

from iotwin.common.errors import UsageError
from iotwin.workloads.pipedream.plan.plan_file import parse_plan, plan_document, read_plan
from iotwin.workloads.pipedream.plan.report import optimize
from iotwin.workloads.policies.pipeline import SCHEDULES, PipelinePlan, Stage, order, routes, versions
from iotwin.workloads.policies.pipeline_simulator import Stalled, in_flight, simulate, summary
from tests.processes import call
from tests.workloads.pipedream.common import DATA, options, profile


def balanced(*replicas: int, **changes) -> PipelinePlan:
    """Stages that all take a second a minibatch, with all their ranks; a third of it forward."""
    stages, first = [], 0
    for number, count in enumerate(replicas):
        stages.append(Stage(number, tuple(range(first, first + count)), count / 3, 2 * count / 3, 8.0, 8.0, 100.0, 10.0))
        first += count
    return PipelinePlan(tuple(stages), **changes)


@pytest.mark.parametrize(("replicas", "warm_ups", "noam"), [
    ((1, 1, 1, 1), [3, 2, 1, 0], 4), ((3, 1), [1, 0], 2), ((2, 1, 1), [1, 1, 0], 2), ((15, 1), [1, 0], 2),
    ((8, 4, 4), [1, 1, 0], 2), ((2, 2), [1, 0], 2),
])  # fmt: skip
def test_warm_ups_are_those_of_the_formula(replicas, warm_ups, noam):
    plan = balanced(*replicas)
    assert [plan.warm_up(stage) for stage in range(len(replicas))] == warm_ups
    assert plan.noam == noam
    assert [plan.versions_kept(stage) for stage in range(len(replicas))] == [w + 1 for w in warm_ups]


def test_order_is_warm_up_then_one_forward_one_backward_then_drain():
    plan = balanced(1, 1, 1)
    assert order(plan, 0, 0, 4) == [("F", 0), ("F", 1), ("F", 2), ("B", 0), ("F", 3), ("B", 1), ("B", 2), ("B", 3)]
    assert order(plan, 2, 0, 2) == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]
    assert order(plan, 0, 0, 1) == [("F", 0), ("B", 0)]  # fewer minibatches than warm-up
    assert order(balanced(2, 1), 0, 1, 5) == [("F", 1), ("F", 3), ("B", 1), ("B", 3)]
    assert order(plan, 0, 0, 4, "gpipe") == [("F", 0), ("F", 1), ("F", 2), ("B", 0), ("B", 1), ("B", 2), ("F", 3), ("B", 3)]
    assert order(plan, 0, 0, 2, "none") == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (3, 1), (2, 1, 1), (5, 3, 2)], ids=str)
def test_versions_are_the_updates_made_before_each_forward_pass(schedule, replicas):
    """Counted along the order: 1f1b and none update after each B, gpipe and flush after a group, 2bw a group later."""
    plan = balanced(*replicas)
    for stage in range(len(replicas)):
        for replica in range(replicas[stage]):
            made, expected = 0, {}
            for kind, minibatch in order(plan, stage, replica, 37, schedule):
                if kind == "B":
                    made += 1
                elif schedule in ("1f1b", "none"):
                    expected[minibatch] = made
                else:
                    expected[minibatch] = max(0, minibatch // plan.group - (schedule == "2bw"))
            assert versions(plan, stage, replica, 37, schedule) == [expected[minibatch] for minibatch in sorted(expected)]


def test_every_minibatch_passes_one_rank_of_each_stage():
    plan = balanced(3, 2)
    assert routes(plan, 4) == [[0, 3], [1, 4], [2, 3], [0, 4]]
    for schedule in SCHEDULES:
        done = sorted(
            each for stage, count in ((0, 3), (1, 2)) for k in range(count) for each in order(plan, stage, k, 11, schedule)
        )
        assert done == sorted([("F", k) for k in range(11)] * 2 + [("B", k) for k in range(11)] * 2)


@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (3, 1), (2, 1, 1), (15, 1), (2, 2), (8, 4, 4)], ids=str)
def test_a_balanced_pipeline_runs_at_its_bottleneck_s_rate(replicas):
    plan = balanced(*replicas)
    found = summary(plan, simulate(plan, 240), 240)
    assert found["seconds_per_minibatch"] == pytest.approx(1, rel=0.06)
    assert found["seconds"] == pytest.approx(found["fill_s"] + found["drain_s"] + 240 * found["seconds_per_minibatch"])
    assert found["fill_s"] == pytest.approx(sum(replicas[:-1]) / 3)
    assert found["drain_s"] == pytest.approx(2 * sum(replicas[:-1]) / 3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_timeline_keeps_every_rule(schedule):
    plan = balanced(3, 2, 1)
    found = simulate(plan, 31, schedule)
    assert len(found.rank) == 31 * 3 * 2
    when = {
        (int(s), "B" if b else "F", int(m)): (start, end)
        for s, b, m, start, end in zip(found.stage, found.backward, found.minibatch, found.start_s, found.end_s, strict=True)
    }
    for (stage, kind, minibatch), (start, _) in when.items():
        before = (stage - 1, "F", minibatch) if kind == "F" else (stage + 1, "B", minibatch)
        assert before not in when or when[before][1] <= start + 1e-12
        assert kind == "F" or when[stage, "F", minibatch][1] <= start + 1e-12
    for rank in range(plan.ranks):
        own = np.flatnonzero(found.rank == rank)
        own = own[np.argsort(found.start_s[own])]
        assert (found.start_s[own[1:]] >= found.end_s[own[:-1]] - 1e-12).all()
        stage = int(found.stage[own[0]])
        done = [("B" if found.backward[k] else "F", int(found.minibatch[k])) for k in own]
        assert done == order(plan, stage, plan.stages[stage].ranks.index(rank), 31, schedule)


def test_schedules_cost_what_they_are_known_to():
    """A straight pipeline of p stages and groups of p: none takes p times as long, GPipe (2p - 1) / p times."""
    plan = balanced(1, 1, 1, 1)
    seconds = {schedule: simulate(plan, 240, schedule).seconds / 240 for schedule in SCHEDULES}
    assert seconds["none"] == pytest.approx(4)
    assert seconds["gpipe"] == seconds["flush"] == pytest.approx(7 / 4)
    assert seconds["1f1b"] == seconds["2bw"] == pytest.approx(1, rel=0.02)
    held = {schedule: [in_flight(simulate(plan, 40, schedule), rank) for rank in range(4)] for schedule in SCHEDULES}
    assert held["1f1b"] == [4, 3, 2, 1]
    assert held["gpipe"] == [4, 4, 4, 4] and held["flush"] == [4, 3, 2, 1] and held["none"] == [1, 1, 1, 1]


def test_what_a_stage_reads_sends_and_saves():
    plan = balanced(3, 1)
    first, last = summary(plan, simulate(plan, 12), 12)["stages"]
    assert first["read_bytes"] == 12 * 8 and last["read_bytes"] == 0
    assert first["checkpoint_bytes"] == 200
    assert last["bytes_sent"] == 12 * 8
    assert first["bytes_sent"] == pytest.approx(12 * (8 + 2 * 2 / 3 * 100))
    assert first["peak_bytes"] == 3 * 100 + 2 * 10


def test_a_link_carries_one_thing_at_a_time():
    slow = PipelinePlan((Stage(0, (0,), 0.1, 0.1), Stage(1, (1,), 0.1, 0.1, receive_s=1.0)), depth={0: 8, 1: 0})
    assert summary(slow, simulate(slow, 100), 100)["seconds_per_minibatch"] == pytest.approx(1, rel=0.02)
    assert slow.bottleneck.stage == 1


def test_depths_that_make_ranks_wait_for_ever_are_noticed():
    with pytest.raises(Stalled):
        simulate(balanced(1, 1, depth={0: 0, 1: 2}), 8)


def test_a_plan_file_is_read_as_it_was_written():
    plan = optimize(profile("vgg16"), options([4], [1e9]), sha256="ab").plan
    document = json.loads(json.dumps(plan_document(plan)))
    again = parse_plan(document, "plan.json")
    assert again.stages == plan.stages
    assert plan_document(again) == document
    assert document["depth"] == {"0": 1, "1": 0} and document["graph_sha256"] == "ab"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version is 2"),
        ({"schedule": "zigzag"}, "schedule is 'zigzag'"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"depth": {"7": 1}}, "depth 1 of stage 7"),
        ({"stages": []}, "rank 0 is in no stage"),
        ({"stages": [{"stage": 1, "ranks": [0], "forward_s": 1, "backward_s": 1}]}, r"stages\[0\]\.stage is 1"),
        ({"stages": [{"stage": 0, "ranks": [0], "forward_s": -1, "backward_s": 1}]}, "forward_s is -1"),
        ({"stages": [{"stage": 0, "ranks": [], "forward_s": 1, "backward_s": 1}]}, "stage 0 has no ranks"),
        ({"stages": [{"stage": 0, "ranks": [1], "forward_s": 1, "backward_s": 1}]}, "rank 0 is in no stage"),
    ],
)
def test_bad_plans_are_refused(change, message):
    document = {**plan_document(balanced(1, 1)), **change}
    with pytest.raises(UsageError, match=f"plan.json: .*{message}"):
        parse_plan(document, "plan.json")


def test_confs_of_the_original_are_read_and_broken_ones_named(tmp_path):
    plan = read_plan(DATA / "confs" / "vgg16__gpus=4__hybrid_conf.json")
    assert [stage.ranks for stage in plan.stages] == [(0, 1, 2), (3,)] and plan.depth == {0: 1, 1: 0}
    assert read_plan(DATA / "confs" / "gnmt__gpus=12__hybrid_conf.json").warm_up(0) == 12
    assert [(stage.forward_s, stage.backward_s) for stage in plan.stages] == [(1, 2), (1 / 3, 2 / 3)]
    with pytest.raises(UsageError, match=r"mp_conf.json:3: no JSON"):
        read_plan(DATA / "confs" / "vgg16__gpus=4__mp_conf.json")
    for ranks, message in (
        ({"0": [0, 1], "1": [1]}, "rank 1 is in stage 0 and in stage 1"),
        ({"0": [0], "1": [2]}, "rank 1 is in no"),
    ):
        path = tmp_path / "conf.json"
        path.write_text(json.dumps({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": ranks}))
        with pytest.raises(UsageError, match=message):
            read_plan(path)


def test_simulate_writes_a_timeline_for_perfetto_and_a_trace(tmp_path):
    conf = str(DATA / "confs" / "vgg16__gpus=4__hybrid_conf.json")
    done = call("pipedream", "simulate", conf, "--minibatches", "12", "--trace", str(tmp_path / "t.json"), "--json")
    document = json.loads(done.stdout)
    assert document["order"]["3"][:4] == ["F0", "B0", "F1", "B1"]
    assert document["versions"]["0"] == [0, 0, 1, 2]
    passes = [event for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(passes) == 12 * 2 * 2
    assert max(event["ts"] + event["dur"] for event in passes) == pytest.approx(document["seconds"] * 1e6)
    assert {event["args"]["weight_version"] for event in passes if event["tid"] == 0} == {0, 1, 2}
    assert call("pipedream", "simulate", conf, "--minibatches", "12", "--trace", str(tmp_path / "t.json.gz")).returncode == 0
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()

    from iotwin.trace_store.reader import Trace

    trace = tmp_path / "plan.trace"
    assert call("pipedream", "simulate", conf, "--minibatches", "12", "--trace", str(trace), "--quiet").returncode == 0
    assert Trace(trace).manifest.events == 12 + 2
    assert call("plot", "timeline", str(trace), "-o", str(tmp_path / "t.svg")).returncode == 0
    assert not list(tmp_path.glob(".*"))
    again = call("pipedream", "simulate", conf, "--trace", str(trace))
    assert again.returncode == 1 and "exists already" in again.stderr
