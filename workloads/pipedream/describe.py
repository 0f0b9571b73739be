"""What a layer graph holds, as a document."""

from typing import Any

from workloads.pipedream.graph import Graph, bits, is_series_parallel
from workloads.pipedream.prepare import folded, without_inputs
from workloads.pipedream.states.antichains import Antichains, states_of
from workloads.pipedream.states.lattice import count_states


def describe(graph: Graph, with_states: bool = False) -> dict[str, Any]:
    """Return counts, order and totals; when asked for, `states` and their `augmented` sets, of the graph without inputs.

    `state_count` is that of the graph as it is searched, without inputs and what is free; None where it is not counted.
    Raises IotwinError when there are too many states to list.
    """

    def names(numbers: Any, of: Graph = graph) -> list[str]:
        return [of.nodes[number].id for number in numbers]

    found: dict[str, Any] = {
        "nodes": len(graph.nodes),
        "edges": len(graph.edges),
        "sources": names(graph.sources()),
        "sinks": names(graph.sinks()),
        "topological": names(graph.topological),
        "state_count": count_states(folded(without_inputs(graph))),
        "states": None,
        "augmented": None,
        "totals": {
            "forward_ms": sum(node.forward_ms for node in graph.nodes),
            "backward_ms": sum(node.backward_ms for node in graph.nodes),
            "parameter_bytes": sum(node.parameter_bytes for node in graph.nodes),
            "activation_bytes": sum(node.activation_bytes for node in graph.nodes),
        },
        "series_parallel": is_series_parallel(graph),
    }
    if with_states:
        kept = without_inputs(graph)
        antichains = Antichains(kept)
        fronts = states_of(kept).antichains
        found["states"] = [names(bits(front), kept) for front in fronts]
        found["augmented"] = [names(bits(antichains.augment(front)), kept) for front in fronts]
    return found
