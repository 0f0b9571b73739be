"""Describes a layer graph as a JSON document."""

from typing import Any

from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, bits, is_series_parallel
from iotwin.workloads.pipedream.plan.prepare import folded, without_inputs
from iotwin.workloads.pipedream.plan.states.antichains import Antichains, states_of
from iotwin.workloads.pipedream.plan.states.lattice import count_states


def describe(graph: LayerGraph, with_states: bool = False) -> dict[str, Any]:
    """Return the counts, topological order and totals of a graph without its inputs. `with_states` adds a list of its states.

    `state_count` is the number of states that the optimizer searches, None if counting takes too long. Raises IotwinError if
    there are too many states to list.
    """

    def names(numbers: Any, of: LayerGraph = graph) -> list[str]:
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
