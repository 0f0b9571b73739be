"""Prepares a profile for the optimizer: removes inputs, unused outputs and nodes without cost."""

from dataclasses import replace

from iotwin.workloads.pipedream.plan.costs import Points, points_of
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, LayerNode
from iotwin.workloads.pipedream.plan.states.antichains import States, states_of


def without_inputs(graph: LayerGraph) -> LayerGraph:
    """Return the graph without input nodes that are sources, and then without ``__getitem__`` sinks, as in PipeDream."""
    kept = graph.without(number for number in graph.sources() if graph.nodes[number].is_input)
    return kept.without(number for number in kept.sinks() if kept.nodes[number].description.startswith("__getitem__"))


def folded(graph: LayerGraph) -> LayerGraph:
    """Return the graph without the free nodes (see LayerNode.is_free) that depend only on free nodes, such as GNMT's ``hidden``.

    These nodes cost nothing, so the search need not place them. Afterwards they get the stage of the nodes that read them.
    """
    gone: set[int] = set()
    for number in graph.topological:
        if graph.nodes[number].is_free and gone.issuperset(graph.predecessors[number]):
            gone.add(number)
    return graph.without(gone) if len(gone) < len(graph.nodes) else graph


def runs_of(graph: LayerGraph) -> tuple[LayerGraph, list[int]]:
    """Return the graph with each chain of layers merged into one node, and the set of layers that each new node replaces."""
    nodes: list[LayerNode] = []
    members: list[int] = []
    run: dict[int, int] = {}
    for number in graph.topological:
        node, before = graph.nodes[number], graph.predecessors[number]
        if len(before) == 1 and len(graph.successors[before[0]]) == 1:
            run[number] = run[before[0]]
            so_far = nodes[run[number]]
            nodes[run[number]] = replace(
                node,
                forward_ms=so_far.forward_ms + node.forward_ms,
                backward_ms=so_far.backward_ms + node.backward_ms,
                update_ms=so_far.update_ms + node.update_ms,
                parameter_bytes=so_far.parameter_bytes + node.parameter_bytes,
            )
            members[run[number]] |= 1 << number
        else:
            run[number] = len(nodes)
            nodes.append(node)
            members.append(1 << number)
    edges = tuple((run[a], run[b]) for a, b in graph.edges if run[a] != run[b])
    return LayerGraph(tuple(nodes), edges, graph.name, exchange=graph.exchange), members


def prepared_points(graph: LayerGraph) -> tuple[States, Points]:
    """Return the states of a graph without inputs, and the points of these states."""
    states = states_of(graph)
    return states, points_of(graph, states)
