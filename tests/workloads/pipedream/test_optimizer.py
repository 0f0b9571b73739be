"""The optimizer against the original's answers, against every partition there is, and against its own formulas."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from iotwin.common.errors import IotwinError
from iotwin.workloads.pipedream.plan.convert import convert
from iotwin.workloads.pipedream.plan.costs import Costs, points_of
from iotwin.workloads.pipedream.plan.latency import optimize_latency
from iotwin.workloads.pipedream.plan.layer_graph import ExchangeCost
from iotwin.workloads.pipedream.plan.optimizer import Split, _Search, plan_seconds, seconds_by_workers, solve
from iotwin.workloads.pipedream.plan.prepare import folded, prepared_points, without_inputs
from iotwin.workloads.pipedream.plan.report import evaluate, optimize
from iotwin.workloads.pipedream.plan.states.antichains import states_of
from tests.conftest import ROOT
from tests.workloads.pipedream.common import DATA, chain, options, profile, random_graph

OPTIMA = json.loads((DATA / "optima.json").read_text())


def _asked(row):
    words = row["asked"]
    return options(
        words["n"],
        words["b"],
        straight=words.get("straight", False),
        exact_workers=True,
        fewest_workers=words.get("fewer", False),
        compression=words.get("compression"),
        memory_bytes=words.get("memory"),
        memory_model="original",
    )


@pytest.mark.parametrize("row", OPTIMA, ids=lambda row: f"{row['graph']}-{row['name']}")
def test_the_original_s_optimum_is_found(row):
    graph = without_inputs(profile(row["graph"]))
    states, points = prepared_points(graph)
    assert len(states.closures) == row["states"]
    if points.last > 1000 and len(row["asked"]["n"]) > 1:
        _, points = prepared_points(folded(graph))
    assert points.seconds[-1] == pytest.approx(row["single_s"], rel=1e-12)
    found = solve(points, _asked(row))
    assert found.seconds == pytest.approx(row["stage_s"], rel=1e-9)
    assert plan_seconds(points, _asked(row), found.levels) == pytest.approx(found.seconds, rel=1e-12)


def _splits(last, reach, machines, straight, exact):
    """Every way to cut points 0..last into stages with replicas."""
    for count in range(min(last, machines) + 1):
        for cuts in combinations(range(1, last), count):
            ends = (0, *cuts, last)
            if not all(reach[pair] for pair in pairwise(ends)):
                continue
            for replicas in product(range(1, 2 if straight else machines + 1), repeat=len(ends) - 1):
                if sum(replicas) == machines if exact else sum(replicas) <= machines:
                    yield tuple(Split(*pair, count) for pair, count in zip(pairwise(ends), replicas, strict=True))


def _fits(points, asked, splits):
    costs = Costs(asked)
    units = sum(split.replicas for split in splits)
    for split in splits:
        total = points.parameters[split.end] - points.parameters[split.begin]
        active = points.activations[split.end] - points.activations[split.begin]
        if costs.too_large(total, active, split.replicas, units):
            return False
        units -= split.replicas
    return True


ASKED = {
    "plain": {},
    "no communication": {"compression": None},
    "compressed": {"compression": 3.0},
    "exact": {"exact_workers": True},
    "straight": {"straight": True},
    "straight exact": {"straight": True, "exact_workers": True},
    "paper": {"cost_model": "paper"},
    "memory": {"memory_bytes": 2.5e8},
    "memory original exact": {"memory_bytes": 1.2e8, "memory_model": "original", "exact_workers": True},
    "fewest": {"fewest_workers": True},
}


@pytest.mark.parametrize("seed", range(300))
def test_no_partition_is_better(seed):
    """Brute force: every chain of states, with every number of replicas, of a random graph."""
    exchange = ExchangeCost(0.002, 5e9) if seed % 20 >= 10 else None
    graph = replace(random_graph(seed, 7 if seed % 10 else 9), exchange=exchange)
    points = points_of(graph, states_of(graph))
    name = list(ASKED)[seed % len(ASKED)]
    machines = 1 + seed // 10 % 4
    asked = options([machines], [10.0 ** (8 + seed % 3)], **ASKED[name])
    best = np.inf
    for splits in _splits(points.last, points.reach, machines, asked.straight, asked.all_workers):
        if _fits(points, asked, splits):
            best = min(best, plan_seconds(points, asked, (splits,)))
    parallel = Costs(asked).data_parallel(points.seconds[-1], points.parameters[-1])
    if not asked.all_workers and _fits(points, asked, (Split(0, points.last, machines),)):
        best = min(best, parallel)
    if not np.isfinite(best):
        with pytest.raises(IotwinError, match="no plan"):
            solve(points, asked)
        return
    found = solve(points, asked)
    assert found.seconds == pytest.approx(best, rel=1e-12, abs=1e-15)
    assert plan_seconds(points, asked, found.levels) == pytest.approx(found.seconds, rel=1e-12, abs=1e-15)
    assert _fits(points, asked, found.levels[0])


def test_a_stage_s_time_has_its_updates_and_its_exchanges_at_both_cuts():
    """Layers of 10, 20 and 30 ms with outputs of 1 MB, which take 1 ms, as do two messages at 0.5 ms."""
    graph = replace(chain(10, 20, 30), exchange=ExchangeCost(0.0005, 1e9))
    nodes = tuple(replace(node, activation_bytes=1e6, update_ms=1.0 + number) for number, node in enumerate(graph.nodes))
    graph = replace(graph, nodes=nodes)
    found = optimize(graph, options([3], [1e12], straight=True, exact_workers=True))
    times = [pytest.approx(each) for each in ((0.010, 0.003), (0.022, 0.004), (0.032, 0.003))]
    assert [(stage.forward_s, stage.backward_s) for stage in found.plan.stages] == times
    assert found.document["stage_time_s"] == pytest.approx(0.035) == found.plan.bottleneck.busy_s
    assert [(stage.forward_s, stage.backward_s) for stage in convert(found.partition).plan.stages] == times
    assert evaluate(graph, options([3], [1e12]), found.plan)["stages"][1]["compute_s"] == pytest.approx(0.026)


@pytest.mark.parametrize("seed", range(40))
def test_no_partition_over_two_levels_is_better(seed):
    graph = random_graph(seed + 1000, 6)
    points = points_of(graph, states_of(graph))
    asked = options([2, 2], [1e9, 2e8], exact_workers=seed % 2 == 0)
    best = np.inf
    for outer in _splits(points.last, points.reach, 2, False, asked.all_workers):
        inner_best = []
        for group in outer:
            reach = points.reach[group.begin : group.end + 1, group.begin : group.end + 1]
            inner = [
                tuple(Split(s.begin + group.begin, s.end + group.begin, s.replicas) for s in splits)
                for splits in _splits(group.end - group.begin, reach, 2, False, asked.all_workers)
            ]
            inner_best.append(inner)
        for chosen in product(*inner_best):
            best = min(best, plan_seconds(points, asked, (sum(chosen, ()), outer)))
    if np.isfinite(best):
        assert solve(points, asked).seconds == pytest.approx(best, rel=1e-12, abs=1e-15)
    else:
        with pytest.raises(IotwinError):
            solve(points, asked)


@pytest.mark.parametrize("seed", range(30))
def test_among_equals_the_plan_has_the_fewest_stages(seed):
    graph = random_graph(seed + 500, 6)
    points = points_of(graph, states_of(graph))
    asked = options([4], [1e9], exact_workers=True)
    try:
        found = solve(points, asked)
    except IotwinError:
        return
    equal = [
        splits
        for splits in _splits(points.last, points.reach, 4, False, True)
        if plan_seconds(points, asked, (splits,)) <= found.seconds * (1 + 1e-13)
    ]
    assert len(found.levels[0]) == min(map(len, equal))


def _best(name, machines, bandwidths, **changes):
    return optimize(profile(name), options(machines, bandwidths, **changes))


def test_published_plans_come_out():
    found = _best("vgg16", [4], [1e9])
    assert [stage.replicas for stage in found.plan.stages] == [3, 1]
    assert found.document["stage_time_s"] == pytest.approx(0.205520896, rel=1e-9)
    assert found.document["speedup_over_data_parallel"] == pytest.approx(2.838, abs=1e-3)
    first = {node.id for node in found.partition.nodes if node.stage == 0}
    assert "node18" in first and "node19" not in first
    for bandwidth, seconds in ((2e8, 0.12845056), (1e8, 0.25690112)):
        found = _best("vgg16", [16], [bandwidth])
        assert [stage.replicas for stage in found.plan.stages] == [15, 1]
        layers = [{node.description.partition("(")[0] for node in found.partition.nodes if node.stage == k} for k in (0, 1)]
        assert "Linear" not in layers[0] and "Conv2d" not in layers[1]
        assert found.document["stage_time_s"] == pytest.approx(seconds, rel=1e-9)
    assert [s.replicas for s in _best("alexnet", [16], [1.25e9]).plan.stages] == [15, 1]
    assert [s.replicas for s in _best("gnmt", [4], [1e9]).plan.stages] == [1, 1, 1, 1]
    assert _best("gnmt_large", [4, 4], [1e10, 1.25e9]).document["stage_time_s"] == pytest.approx(0.042061, abs=5e-10)


@pytest.mark.parametrize(("name", "change"), [("vgg16", -0.74), ("alexnet", -0.91), ("resnet50", 1.34)])
def test_bytes_sent_change_as_published(name, change):
    found = _best(name, [4], [1e9]).document
    assert found["sent_bytes_per_minibatch"] / found["data_parallel_sent_bytes_per_minibatch"] - 1 == pytest.approx(
        change, abs=0.01
    )


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "gnmt", "gnmt_large", "resnet50"])
@pytest.mark.parametrize("asked", [([4], [1e9]), ([16], [1e8]), ([4, 4], [1e10, 3.125e8])], ids=str)
def test_a_plan_is_never_slower_than_one_machine_or_data_parallelism(name, asked):
    for straight in (False, True):
        found = _best(name, *asked, straight=straight).document
        assert found["stage_time_s"] <= min(found["single_machine_s"], found["data_parallel_s"]) * (1 + 1e-12)


def test_all_workers_are_used_unless_fewer_are_faster():
    assert _best("gnmt", [16], [1e8]).document["workers"] == 1
    assert _best("gnmt", [16], [1e8], exact_workers=True).document["workers"] == 16
    assert _best("vgg16", [16], [2e8]).document["workers_unused"] == 0
    assert _best("vgg16", [16], [2e8], fewest_workers=True).document["workers_unused"] > 0


def test_exact_workers_take_the_better_of_folded_and_unfolded():
    asked = {"straight": True, "exact_workers": True}
    found = {fold: optimize(profile("gnmt"), options([16], [1.25e9], **asked), fold).document for fold in (None, True, False)}
    assert found[True]["stage_time_s"] == pytest.approx(0.019922944, rel=1e-9)
    assert found[None]["stage_time_s"] == found[False]["stage_time_s"] == pytest.approx(0.0197132288, rel=1e-9)
    assert [found[fold]["states"] for fold in (None, True, False)] == [99, 33, 99]


@pytest.mark.parametrize("fold", [True, False])
def test_without_exact_workers_folding_changes_nothing(fold):
    found = optimize(profile("gnmt"), options([8], [1.25e9]), fold)
    assert found.document["stage_time_s"] == pytest.approx(
        optimize(profile("gnmt"), options([8], [1.25e9])).document["stage_time_s"]
    )


@pytest.mark.parametrize(
    "asked", [([4], [1e9]), ([16], [1.25e9]), ([8, 2], [2.5e10, 3.125e9]), ([2, 2, 2], [1e10, 1e9, 5e8])], ids=str
)
@pytest.mark.parametrize("name", ["vgg16", "gnmt", "gnmt_large", "resnet50"])
def test_evaluating_a_plan_gives_its_time(name, asked):
    for changes in ({}, {"cost_model": "paper"}):
        wanted = options(*asked, **changes)
        found = optimize(profile(name), wanted)
        again = evaluate(found.partition, wanted, found.plan)
        assert again["valid"] and again["stage_time_s"] == pytest.approx(found.document["stage_time_s"], rel=1e-12)
        alone = evaluate(found.partition, wanted)
        assert alone["stage_time_s"] == pytest.approx(found.document["stage_time_s"], rel=1e-12)
        if len(asked[0]) == 1:
            slowest = max(stage.seconds_per_minibatch for stage in found.plan.stages)
            assert slowest <= found.document["stage_time_s"] * (1 + 1e-9)


def test_what_is_no_partition_is_said_to_be_none():
    graph = chain(1, 1, 1)
    wanted = options([4], [1e9])
    back = graph.with_stages({"node0": 1, "node1": 0, "node2": 1})
    assert evaluate(back, wanted)["reason"] == "edge node0 -- node1 leads from stage 1 back to stage 0"
    gap = graph.with_stages({"node0": 0, "node1": 2, "node2": 2})
    assert evaluate(gap, wanted)["reason"] == "stage 1 has no layers, stage 2 has"
    assert not evaluate(graph, wanted)["valid"]
    many = graph.with_stages({"node0": 0, "node1": 1, "node2": 2})
    assert "3 stages need as many workers" in evaluate(many, options([2], [1e9]))["reason"]


def test_more_workers_and_bandwidth_never_hurt():
    _, points = prepared_points(without_inputs(profile("vgg16")))
    curves = [seconds_by_workers(points, options([8], [bandwidth])) for bandwidth in (1e8, 1e9, 1e10)]
    assert all((np.diff(curve) <= 0).all() for curve in curves)
    assert (curves[0] >= curves[1]).all() and (curves[1] >= curves[2]).all()
    assert curves[1][3] == solve(points, options([4], [1e9])).seconds


def test_what_fits_no_memory_and_what_has_too_few_layers_is_refused():
    with pytest.raises(IotwinError, match=r"fits 1e\+06 bytes"):
        _best("vgg16", [4], [1e9], memory_bytes=1e6)
    with pytest.raises(IotwinError, match="no plan of 3 states uses exactly 5 workers"):
        optimize(chain(1, 2, 3), options([5], [1e9], straight=True, exact_workers=True))


def test_the_memory_limit_holds_for_every_stage():
    found = _best("vgg16", [4], [1e9], memory_bytes=16e9)
    assert all(stage["memory_bytes"] <= 16e9 for stage in found.document["stages"]) and found.document["fits_memory"]
    assert _best("vgg16", [4], [1e9], memory_bytes=16e9, memory_model="original").document["fits_memory"] is False
    assert any(stage["memory_bytes"] > 16e9 for stage in _best("vgg16", [4], [1e9]).document["stages"])


def test_the_inputs_in_flight_are_limited():
    assert optimize(profile("gnmt"), options([4], [1e9]), in_flight=2).plan.depth == {0: 1, 1: 1, 2: 1, 3: 0}
    assert optimize(profile("gnmt"), options([4], [1e9])).document["noam"] == 4


def test_latency_is_the_sum_of_the_way_under_the_interval():
    wanted = options([3], [1e9], compression=None, straight=True)
    found = optimize_latency(chain(10, 20, 30), wanted, 0.035)
    assert [stage["nodes"] for stage in found["stages"]] == [["node0", "node1"], ["node2"]]
    # 60 ms of layers, and 1000 bytes over the link, counted where they enter and nowhere else.
    assert found["latency_s"] == pytest.approx(0.06 + 1e-6)
    alone = optimize_latency(chain(10, 20, 30), wanted, 0.1)
    assert alone["latency_s"] == pytest.approx(0.06) and alone["workers"] == 1
    with pytest.raises(IotwinError, match=r"within 0\.005 s"):
        optimize_latency(chain(10, 20, 30), wanted, 0.005)


@pytest.mark.parametrize("profile_name", ["gnmt", "resnet50"])  # resnet50's useful states are found first
def test_documents_are_the_same_whatever_the_hash_seed(tmp_path, profile_name):
    asked = ["-n", "4", "2", "-b", "1e10", "1e9"] if profile_name == "gnmt" else ["-n", "8", "-b", "1e9"]
    words = ["pipedream", "optimize", str(DATA / f"{profile_name}.graph.txt"), *asked, "--activation-compression-ratio", "1"]
    code = (
        "import sys; from iotwin.main import main; from iotwin.workloads.pipedream.plan import report; report._MOST_PAIRS = 100; "
        f"main({[*words, '-o', 'out', '--json']!r})"
    )
    texts = set()
    for seed in (0, 1, 2, 12345, 4294967295):
        place = tmp_path / str(seed)
        place.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=place, env=environment, capture_output=True, text=True, check=True
        )
        document = {**json.loads(done.stdout), "seconds": None}
        names = ("plan.json", "gpus=8.txt", "gpus=8.svg")
        texts.add((json.dumps(document), *((place / "out" / name).read_text() for name in names)))
    assert len(texts) == 1


@pytest.mark.parametrize("few", [{"_MOST_USEFUL": 200}, {"_MOST_USEFUL": 10}], ids=["runs of layers", "a sample"])
def test_a_graph_with_too_many_states_still_gets_a_plan(monkeypatch, few):
    monkeypatch.setattr("iotwin.workloads.pipedream.plan.report._MOST_PAIRS", 50)
    for name, value in few.items():
        monkeypatch.setattr(f"iotwin.workloads.pipedream.plan.report.{name}", value)
    graph = profile("resnet50")
    found = optimize(graph, options([4], [1e9]))
    assert found.document["complete"] is False
    assert 0.162880924 - 1e-12 <= found.document["stage_time_s"] <= 0.162880924 * 1.1
    assert found.document["bound_s"] == pytest.approx(found.document["single_machine_s"] / 4)
    again = evaluate(found.partition, options([4], [1e9]), found.plan)
    assert again["stage_time_s"] == pytest.approx(found.document["stage_time_s"], rel=1e-12)


def test_searching_only_useful_states_changes_no_plan(monkeypatch):
    """Brute force holds the search over all states; the search that first drops states must find the same plans."""
    monkeypatch.setattr("iotwin.workloads.pipedream.plan.states.lattice._MOST_CUTS", 10)
    plain = [changes for name, changes in ASKED.items() if not ("exact" in name or "memory" in name)]
    for seed in range(200):
        graph = random_graph(seed, 12)
        asked = options([1 + seed % 5], [10.0 ** (8 + seed % 3)], **plain[seed // 5 % len(plain)])
        found = []
        for most in (10**6, 0):
            monkeypatch.setattr("iotwin.workloads.pipedream.plan.report._MOST_PAIRS", most)
            found.append(optimize(graph, asked, fold=False).document)
        assert found[1]["stage_time_s"] == pytest.approx(found[0]["stage_time_s"], rel=1e-12, abs=1e-15)
        if found[1]["complete"]:
            chosen = [[(stage["nodes"], stage["replicas"]) for stage in each["stages"]] for each in found]
            assert chosen[0] == chosen[1]
        else:
            assert asked.cost_model == "paper"


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("resnet50", ([4], [1e9])),
        ("resnet50", ([16], [1.25e9])),
        ("resnet50.compressed", ([16], [1e8])),
        ("vgg16", ([16], [2e8])),
    ],
)
def test_searching_only_useful_states_of_a_profile_gives_its_optimum(monkeypatch, name, asked):
    whole = _best(name, *asked).document
    monkeypatch.setattr("iotwin.workloads.pipedream.plan.report._MOST_PAIRS", 10)
    found = _best(name, *asked).document
    assert found["complete"] and found["stage_time_s"] == pytest.approx(whole["stage_time_s"], rel=1e-14)
    assert [stage["nodes"] for stage in found["stages"]] == [stage["nodes"] for stage in whole["stages"]]


@pytest.mark.parametrize("exact", [True, False])
def test_the_ends_that_two_outer_machines_need_are_those_of_all_pairs(exact):
    for name in ("vgg16", "gnmt"):
        points = prepared_points(without_inputs(profile(name)))[1]
        search = _Search(points, options([5, 2], [1e9, 1e8], exact_workers=exact))
        pairs, ends = search.all_pairs(0), search.from_ends(0)
        np.testing.assert_allclose(ends[0, 1:], pairs[0, 1:], rtol=1e-12)
        np.testing.assert_allclose(ends[:-1, -1], pairs[:-1, -1], rtol=1e-12)
