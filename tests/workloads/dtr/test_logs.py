"""Logs: what is wrong with one is said with its line; graphs survive rewriting and the cache."""

import csv
import json

import numpy as np
import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.workloads.dtr.simulator.graph import Step
from iotwin.workloads.dtr.simulator.heuristics import HEURISTICS
from iotwin.workloads.dtr.simulator.log_format import LogError, read_log, write_line
from iotwin.workloads.dtr.simulator.log_manifest import LoggedModel, load_graph, models_of, read_manifest, write_manifest
from iotwin.workloads.dtr.simulator.rewrite import collapse_aliases, eliminate_constants, merge_tuples, rewrite_for_planners
from iotwin.workloads.dtr.simulator.simulate import SimulationSettings, baseline, simulate
from iotwin.workloads.dtr.simulator.sweep import run_sweep
from tests.workloads.dtr.random_logs import write_random_log

START = write_line("ANNOTATE", ANNOTATION="START")


def constant(name="x1", size=4):
    return write_line("CONSTANT", NAME=name) + write_line("MEMORY", NAME=name, MEMORY=size)


def call(args, results, time=5, alias=-1, size=8, name="op"):
    details = [write_line("MEMORY", NAME=r, MEMORY=size) + write_line("ALIAS", NAME=r, ALIAS=alias) for r in results]
    return write_line("CALL", NAME=name, ARGS=args, RESULT=results, TIME=time) + b"".join(details)


def mutation(args, indices):
    return write_line("MUTATE", NAME="a_", ARGS=args, MUTATE=indices, TIME=1)


RELEASE = write_line("RELEASE", NAME="x1")
BAD = {
    "truncated": (constant() + call(["x1"], ["x2"])[:30], r":3: not an instruction.*cut off"),
    "not JSON": (b"hello\n", r":1: not an instruction"),
    "unknown": (write_line("JUMP", NAME="x"), r":1: unknown instruction 'JUMP'"),
    "alias": (constant() + call(["x1"], ["x2"], alias=3), r":5: alias 3 of 'x2' is no argument of line 3, which has 1"),
    "undefined": (call(["x9"], ["x2"]), r":1: 'x9' is used before it is defined"),
    "negative": (constant() + call(["x1"], ["x2"], time=-4), r":3: time -4 is negative"),
    "twice": (constant() + constant(), r":3: 'x1' is defined a second time"),
    "after release": (constant() + RELEASE + call(["x1"], ["x2"]), r":4: 'x1' is used after its release"),
    "no memory": (write_line("CONSTANT", NAME="x1"), r":1: the log ends before MEMORY of x1, line 1 needs it"),
    "order": (write_line("CONSTANT", NAME="x1") + constant("x2"), r":2: MEMORY of x1 should follow line 1, not CONSTANT of x2"),
    "stray": (write_line("MEMORY", NAME="x1", MEMORY=3), r":1: MEMORY of 'x1' belongs to no CONSTANT or CALL"),
    "words": (constant(size="many"), r":2: memory 'many' is not a whole number"),
    "empty": (b"", r":1: the log holds no operation"),
    "mutation": (constant() + mutation(["x1"], [2]), r":3: mutated argument 2 is none of 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named(tmp_path, case):
    content, message = BAD[case]
    path = tmp_path / "bad.log"
    path.write_bytes(content)
    with pytest.raises(LogError, match=message):
        read_log(path)
    assert read_log(path, collect=True).problems


def test_what_follows_a_bad_detail_is_still_read(tmp_path):
    path = tmp_path / "bad.log"
    path.write_bytes(constant() + call(["x1"], ["x2"], alias=3) + constant("x4") + call(["x4"], ["x5"], time=-1))
    problems = read_log(path, collect=True).problems
    assert problems[0].line == 5 and "time -1 is negative" in [problem.text for problem in problems]


def test_what_stands_before_start_does_not_count(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(call(["leftover"], ["y"]) + START + write_line("RELEASE", NAME="gone") + constant() + call(["x1"], ["x2"]))
    assert read_log(path).graph.operators == 2


def test_a_name_re_pointed_at_itself_stays_alive(tmp_path):
    path = tmp_path / "log"
    copies = write_line("COPY_FROM", DST="x1", SRC="x1") + write_line("COPY", DST="x3", SRC="x2")
    path.write_bytes(constant() + call(["x1"], ["x2"]) + copies + write_line("RELEASE", NAME="x2"))
    graph = read_log(path).graph
    assert simulate(graph, SimulationSettings(HEURISTICS["LRU"], 12)).result == "pass"
    assert graph.items[-1].tolist() == [Step.PIN, 1]


def test_a_mutation_makes_a_fresh_storage_under_the_same_name(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(constant() + mutation(["x1", "x1"], [0]) + call(["x1"], ["x2"]))
    graph = read_log(path).graph
    assert graph.arguments(1) == [0, 0] and graph.arguments(2) == [1]
    assert graph.storage_size.tolist() == [4, 4, 8]


def test_outputs_are_pinned_or_their_bytes_summed_once_a_storage(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(constant() + call(["x1"], ["x2"]) + call(["x2"], ["x3"], alias=0))
    pinned, summed = read_log(path).graph, read_log(path, preallocate=True).graph
    assert (pinned.items[:, 0] == Step.PIN).sum() == 4 and summed.output_bytes == 12


def test_rewrites_keep_cost_and_bytes_and_maps_lead_to_what_became_of_each(tmp_path):
    seen = 0
    for seed in range(60):
        graph = read_log(write_random_log(tmp_path / "log", seed)).graph
        try:
            collapsed = collapse_aliases(graph)
        except IotwinError as error:
            assert "views and new tensors" in str(error)
            continue
        seen += 1
        merged = merge_tuples(collapsed.graph)
        bare = eliminate_constants(merged.graph)
        assert (collapsed.graph.tensor_alias < 0).all() and collapsed.graph.storages == graph.storages
        assert merged.graph.tensors == merged.graph.operators
        assert merged.graph.storage_size.sum() == graph.storage_size.sum() == bare.graph.storage_size.sum() + bare.constant_bytes
        assert baseline(collapsed.graph).eager_peak == baseline(graph).eager_peak
        whole = rewrite_for_planners(graph)
        assert whole.graph.items.tolist() == bare.graph.items.tolist()
        for op, new in enumerate(whole.operators):
            assert new is None or whole.graph.op_cost[new] == graph.op_cost[op]
    assert seen > 20


def test_a_graph_from_the_cache_is_the_log_s(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = write_random_log(tmp_path / "log", 3)
    first, second = load_graph(log), load_graph(log)
    assert list((tmp_path / "cache").rglob("*.npz"))
    assert all(np.array_equal(value, getattr(second, name)) for name, value in first.__dict__.items() if name != "prepared")
    next((tmp_path / "cache").rglob("*.npz")).write_bytes(b"damaged")
    assert load_graph(log).items.tolist() == first.items.tolist()


def test_manifests_name_their_logs(tmp_path):
    log = write_random_log(tmp_path / "a.log", 1)
    write_manifest(tmp_path / "manifest.json", [LoggedModel("a", "A (1)", "small", log)])
    assert models_of([tmp_path / "manifest.json"])[0].log == log
    for name in ("b.log", "b" * 300):
        (tmp_path / "bad.json").write_text(json.dumps({"models": [{"name": "b", "log": name}]}))
        with pytest.raises(UsageError, match=rf"{name}, the log of 'b', does not exist"):
            read_manifest(tmp_path / "bad.json")


def test_a_sweep_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    models = models_of([write_random_log(tmp_path / "a.log", 5)])
    whole = run_sweep(models, ["pareto", "banishing"], tmp_path / "out", 1, False, trials=2)
    assert whole["runs"] == 6 * 10 + 20 + 30 == whole["passed"] + whole["oom"] + whole["thrash"]
    lost = tmp_path / "out" / whole["files"][0]
    content = json.loads(lost.read_text())
    table = (tmp_path / "out" / "runs.csv").read_text()
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == whole["runs"] and [row["result"] for row in rows].count("pass") == whole["passed"]
    assert {row["overhead"] == "" for row in rows if row["result"] != "pass"} == {True}
    lost.unlink()
    with pytest.raises(IotwinError, match="--resume"):
        run_sweep(models, ["pareto", "banishing"], tmp_path / "out", 1, False, trials=2)
    again = run_sweep(models, ["pareto", "banishing"], tmp_path / "out", 1, True, trials=2)
    assert again["runs"] == 10 and again["files"] == whole["files"]
    assert (tmp_path / "out" / "runs.csv").read_text() == table
    for row in [*content["results"], *(repeated := json.loads(lost.read_text())["results"])]:
        assert all(
            (overhead is None) == (state != "pass") for overhead, state in zip(row.pop("overhead"), row["state"], strict=True)
        )
        row.pop("total_time")
    assert repeated == content["results"]
