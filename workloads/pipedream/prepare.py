"""From a profile to the graph that is optimised: without inputs and unused items, and without what costs and carries nothing."""

from dataclasses import replace

from workloads.pipedream.costs import Points, points_of
from workloads.pipedream.graph import Graph, Node
from workloads.pipedream.states.antichains import States, states_of


def without_inputs(graph: Graph) -> Graph:
    """Return the graph without its Input sources, then without its ``__getitem__`` sinks, as the original removes them."""
    kept = graph.without(number for number in graph.sources() if graph.nodes[number].is_input)
    return kept.without(number for number in kept.sinks() if kept.nodes[number].description.startswith("__getitem__"))


def folded(graph: Graph) -> Graph:
    """Return the graph without nodes that cost and carry nothing and depend on nothing else: they go where they are used.

    GNMT's ``hidden`` and the ``__getitem__`` of it are such nodes; a cut between them is no cut.
    """
    gone: set[int] = set()
    for number in graph.topological:
        if graph.nodes[number].is_free and gone.issuperset(graph.predecessors[number]):
            gone.add(number)
    return graph.without(gone) if len(gone) < len(graph.nodes) else graph


def runs_of(graph: Graph) -> tuple[Graph, list[int]]:
    """Return the graph with every run of layers as one node that carries what its last layer does, and the layers of each run."""
    nodes: list[Node] = []
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
                parameter_bytes=so_far.parameter_bytes + node.parameter_bytes,
            )
            members[run[number]] |= 1 << number
        else:
            run[number] = len(nodes)
            nodes.append(node)
            members.append(1 << number)
    edges = tuple((run[a], run[b]) for a, b in graph.edges if run[a] != run[b])
    return Graph(tuple(nodes), edges, graph.name), members


def prepared_points(graph: Graph) -> tuple[States, Points]:
    """Return the states of a prepared graph and their points."""
    states = states_of(graph)
    return states, points_of(graph, states)
