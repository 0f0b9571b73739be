"""The layer graph: its file, its order, its states, its compression."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.workloads.pipedream.plan.compress import compress
from iotwin.workloads.pipedream.plan.costs import points_of
from iotwin.workloads.pipedream.plan.graph_file import format_graph, parse_graph, read_graph, write_graph
from iotwin.workloads.pipedream.plan.layer_graph import ExchangeCost, LayerGraph, LayerNode, bits, is_series_parallel, partition
from iotwin.workloads.pipedream.plan.prepare import folded, runs_of, without_inputs
from iotwin.workloads.pipedream.plan.states.antichains import Antichains, states_of
from iotwin.workloads.pipedream.plan.states.lattice import count_states, lattice_of
from tests.workloads.pipedream.common import DATA, chain, profile, random_graph

FILES = sorted(DATA.glob("*.graph.txt"))
TIMES = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=3.0, parameter_size=4.0"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_written_as_it_was_read(path):
    assert format_graph(read_graph(path)) == path.read_text()


finite = st.floats(0, 1e12).map(lambda value: round(value, 3))


@given(
    st.lists(
        st.tuples(st.text("abc(),;=[]. ", max_size=12), finite, finite, finite, finite, st.none() | st.integers(0, 9)),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_written_is_read_again(rows):
    nodes = tuple(
        LayerNode(f"n{k}", text.replace(" -- ", " ").strip() + "x", *numbers, stage=stage)
        for k, (text, *numbers, stage) in enumerate(rows)
    )
    graph = LayerGraph(nodes, tuple((k, k + 1) for k in range(len(nodes) - 1)))
    again = parse_graph(format_graph(graph))
    assert again.nodes == graph.nodes and again.edges == graph.edges


def test_a_list_of_activations_counts_as_its_sum_and_is_kept():
    text = f"a -- LSTM(1, 2) -- {TIMES.replace('3.0', '[1.5; 2.0; 3.0]')}"
    graph = parse_graph(text)
    assert graph.nodes[0].activation_bytes == 6.5
    assert format_graph(graph) == text


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([f"a -- A -- {TIMES}", f"b -- B -- {TIMES}", "\ta -- b", "\tb -- a"], "g.txt:1: node a is in or behind a cycle"),
        ([f"a -- A -- {TIMES}", "\ta -- z"], "g.txt:2: the edge names 'z'"),
        ([f"a -- A -- B -- {TIMES}"], "g.txt:1: .* must not hold ' -- '"),
        ([f"a -- A -- {TIMES}".replace("2.0", "-2.0")], "g.txt:1: backward_compute_time is -2.0; .* not negative"),
        ([f"a -- A -- {TIMES}".replace("2.0", "nan")], "g.txt:1: backward_compute_time is nan"),
        ([f"a -- A -- {TIMES}".replace("2.0", "two")], "g.txt:1: backward_compute_time is 'two', which is no number"),
        ([f"a -- A -- {TIMES}", f"a -- A -- {TIMES}"], "g.txt:2: node a was given before"),
        (["a -- A -- forward_compute_time=1"], "g.txt:1: times and sizes are"),
        ([f"a -- A -- {TIMES}", "\ta b"], "g.txt:2: an edge is"),
        ([""], "g.txt holds no nodes"),
    ],
)
def test_bad_files_are_refused_with_their_line(lines, message):
    with pytest.raises(UsageError, match=message):
        parse_graph("\n".join(lines), "g.txt")


def test_antichains_of_the_published_cases():
    """The values that the original's graph library gives for its test graphs."""
    graph = profile("test2")
    antichains = Antichains(graph)

    def of(*names):
        return sum(1 << graph.index[name] for name in names)

    def names(nodes):
        return {graph.nodes[node].id for node in bits(nodes)}

    assert names(antichains.augment(of("2"))) == {"0", "2"}
    assert names(antichains.augment(of("3"))) == {"3"}
    assert names(antichains.deaugment(of("1", "3"))) == {"3"}
    assert [names(each) for each in antichains.next(of("2"))] == [{"1", "2"}, {"2", "4"}, {"3"}]
    assert antichains.next(of("3")) == []
    augmented = {frozenset(names(antichains.augment(each))) for each in states_of(graph).antichains}
    assert augmented == set(map(frozenset, ("0", "04", "02", "042", "01", "041", "021", "0421", "3")))
    several = profile("test")  # two sources
    assert len(states_of(several).antichains) == 6
    assert several.nodes[several.sources()[0]].id == "4"


@pytest.mark.parametrize(("name", "states", "after_folding"), [
    ("alexnet", 22, 22), ("vgg16", 40, 40), ("resnet50", 240, 240), ("gnmt", 99, 33), ("gnmt_large", 1495, 69),
])  # fmt: skip
def test_published_profiles_have_the_known_number_of_states(name, states, after_folding):
    graph = without_inputs(profile(name))
    assert len(states_of(graph).antichains) == states
    assert len(states_of(folded(graph)).antichains) == after_folding


@pytest.mark.parametrize("seed", range(40))
def test_states_are_all_sets_closed_under_ancestors_that_hold_the_source(seed):
    graph = random_graph(seed)
    closed = {
        chosen
        for chosen in range(1, 1 << len(graph.nodes))
        if chosen & 1 and all(graph.ancestors[node] & ~chosen == 0 for node in bits(chosen))
    }
    states = states_of(graph)
    assert set(states.closures) == closed
    for state, closure in enumerate(states.closures):
        contained = {k for k, other in enumerate(states.closures) if other != closure and other & ~closure == 0}
        assert set(bits(states.before[state])) == contained
        assert max(contained, default=-1) < state
        assert graph.closure(bits(states.antichains[state])) == closure


@pytest.mark.parametrize("seed", range(40))
def test_the_lattice_has_the_same_states_totals_and_steps(seed):
    graph = random_graph(seed, 11)
    states = states_of(graph)
    points, lattice = points_of(graph, states), lattice_of(graph)
    assert count_states(graph) == len(lattice.output) == len(states.closures)
    place = {closure: state for state, closure in enumerate(states.closures)}
    order = [place[lattice.closure(state)] + 1 for state in range(len(lattice.output))]
    assert sorted(order) == list(range(1, len(order) + 1))
    for name in ("seconds", "parameters", "output"):
        np.testing.assert_allclose(getattr(lattice, name), getattr(points, name)[order], rtol=1e-12)
    for number, step in enumerate(lattice.steps):
        begin, end, upper = lattice.begins[number : number + 3]
        below = [lattice.closure(state) for state in range(begin, end)]
        above = [lattice.closure(state) for state in range(end, upper)]
        pairs = {(a, b) for a, small in enumerate(below) for b, large in enumerate(above) if not small & ~large}
        owner = np.searchsorted(step.of_parent, np.arange(len(step.child)), side="right") - 1
        assert set(zip(owner.tolist(), step.child.tolist(), strict=True)) == pairs
        owner = np.searchsorted(step.of_child, np.arange(len(step.parent)), side="right") - 1
        assert set(zip(step.parent.tolist(), owner.tolist(), strict=True)) == pairs


def test_states_beyond_listing_are_counted():
    nodes = tuple(LayerNode(f"n{k}", "Layer") for k in range(41))
    assert count_states(LayerGraph(nodes[:15], tuple((0, k) for k in range(1, 15)))) == 2**14
    branches = tuple((k - 2 if k > 2 else 0, k) for k in range(1, 41))  # two branches of twenty
    assert count_states(LayerGraph(nodes, branches)) == 21 * 21
    assert count_states(LayerGraph(nodes, ())) is None


@pytest.mark.parametrize("seed", range(30))
def test_runs_keep_totals_and_their_states_are_states(seed):
    graph = random_graph(seed, 12)
    runs, members = runs_of(graph)
    assert sum(members) == graph.everything
    closed = set(states_of(graph).closures)
    assert {sum(members[run] for run in bits(each)) for each in states_of(runs).closures} <= closed
    for total in ("forward_ms", "backward_ms", "update_ms", "parameter_bytes"):
        assert sum(getattr(n, total) for n in runs.nodes) == pytest.approx(sum(getattr(n, total) for n in graph.nodes))


def test_the_search_of_states_agrees_with_next():
    graph = without_inputs(profile("gnmt"))
    antichains = Antichains(graph)
    found = {graph.closure(bits(each)) for each in states_of(graph).antichains}
    waiting, seen = [1 << graph.sources()[0]], set()
    while waiting:
        front = waiting.pop()
        if front not in seen:
            seen.add(front)
            waiting += antichains.next(front)
    assert {graph.closure(bits(front)) for front in seen} == found


def test_sources_that_the_first_does_not_lead_to_are_steps_of_their_own():
    nodes = tuple(LayerNode(name, "Layer") for name in "abcd")
    graph = LayerGraph(nodes, ((0, 1), (2, 3)))
    assert states_of(graph).closures[-1] == graph.everything


def test_a_deep_graph_is_no_trouble():
    count = 1500
    nodes = tuple(LayerNode(f"n{k}", "Layer") for k in range(count))
    edges = tuple((k, k + 1) for k in range(count - 1)) + tuple((k, k + 2) for k in range(0, count - 2, 2))
    graph = LayerGraph(nodes, edges)
    assert len(states_of(graph).closures) == count
    assert graph.ancestors[-1].bit_count() == count - 1
    assert is_series_parallel(LayerGraph(nodes, tuple((k, k + 1) for k in range(count - 1))))


def test_too_many_states_are_refused_with_what_to_do():
    nodes = tuple(LayerNode(f"n{k}", "Layer") for k in range(22))
    with pytest.raises(IotwinError, match="compress its branches first"):
        states_of(LayerGraph(nodes, tuple((0, k) for k in range(1, 22))))


def test_compression_is_that_of_the_original():
    assert format_graph(compress(profile("resnet50"))) == (DATA / "resnet50.compressed.graph.txt").read_text()


def test_updates_and_exchanges_are_in_a_second_file_that_a_graph_without_them_has_not(tmp_path):
    graph = chain(1.0, 2.0)
    nodes = tuple(replace(node, update_ms=0.25) for node in graph.nodes)
    graph = replace(graph, nodes=nodes, exchange=ExchangeCost(0.001, 1e9))
    write_graph(graph, path := tmp_path / "graph.txt")
    assert path.read_text() == format_graph(replace(graph, exchange=None)) and "update" not in path.read_text()
    found = read_graph(path)
    assert found.exchange == graph.exchange and found.nodes == graph.nodes and found.nodes[1].update_ms == 0.25
    (second,) = tmp_path.glob("*.json")
    written = json.loads(second.read_text())
    for wrong in ({"update_ms": {"node99": 1}}, {"exchange": {"latency_s": -1, "bytes_per_s": 1}},
                  {"exchange": {"latency_s": 1, "bytes_per_s": 0}}, {"graph_sha256": "0" * 64}):  # fmt: skip
        second.write_text(json.dumps(written | wrong))
        with pytest.raises(UsageError, match=r"graph\.measured\.json.*profile the model again"):
            read_graph(path)
    for unreadable in ("{", '{"update_ms": {}}'):
        second.write_text(unreadable)
        with pytest.raises(UsageError, match=r"graph\.measured\.json.*profile the model again"):
            read_graph(path)
    write_graph(profile("vgg16"), path)
    assert read_graph(path).exchange is None and not any(node.update_ms for node in read_graph(path).nodes)
    write_graph(profile("vgg16"), tmp_path / "plain.txt")
    assert not (tmp_path / "plain.measured.json").exists()


@pytest.mark.parametrize("seed", range(60))
def test_compression_keeps_times_parameters_and_order(seed):
    graph = random_graph(seed, 14)
    smaller = compress(graph)
    for total in ("forward_ms", "backward_ms", "update_ms", "parameter_bytes"):
        assert sum(getattr(n, total) for n in smaller.nodes) == pytest.approx(sum(getattr(n, total) for n in graph.nodes))
    assert len(smaller.topological) == len(smaller.nodes) <= len(graph.nodes)


def test_series_parallel_graphs_are_told_from_others():
    assert is_series_parallel(profile("vgg16")) and is_series_parallel(profile("resnet50"))
    assert not is_series_parallel(profile("gnmt"))


def test_a_partition_is_the_graphs_of_its_stages():
    graph = profile("vgg16")
    staged = graph.with_stages({node.id: int(k > 17) for k, node in enumerate(graph.nodes)})
    parts = partition(staged)
    assert [len(parts[stage].nodes) for stage in (0, 1)] == [18, 23]
    with pytest.raises(UsageError, match="has no stage_id"):
        partition(graph)
