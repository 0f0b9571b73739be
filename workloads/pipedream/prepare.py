"""From a profile to the graph that is optimised: without inputs and unused items, and without what costs and carries nothing."""

from workloads.pipedream.antichains import States, states_of
from workloads.pipedream.costs import Points, points_of
from workloads.pipedream.graph import Graph


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


def prepared_points(graph: Graph) -> tuple[States, Points]:
    """Return the states of a prepared graph and their points."""
    states = states_of(graph)
    return states, points_of(graph, states)
