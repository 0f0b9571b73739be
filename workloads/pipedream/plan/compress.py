"""Merges each chain of layers on a branch into one node, so that the optimizer searches fewer states.

PipeDream's compress_graph_branches.py writes equal files, except that it omits the last layer of a branch and its times.
"""

from collections import deque
from dataclasses import replace

from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, LayerNode


class _Compression:
    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.merged: dict[int, LayerNode] = {}  # the node that replaces each chain, by the index of the chain's last layer
        self.found: dict[str, LayerNode] = {}  # nodes of the new graph by id, in the order of its file
        self.incoming: dict[str, list[str]] = {}  # ids of the predecessors of each node, by the node's id
        self.runs = 0

    def node(self, number: int) -> LayerNode:
        """Return the node of the new graph for layer `number`, which must be unmerged or the last of its chain."""
        return self.merged.get(number, self.graph.nodes[number])

    def connect(self, source: LayerNode, target: LayerNode) -> None:
        """Add an edge to the new graph, and its nodes if the graph lacks them."""
        for node in (source, target):
            self.found.setdefault(node.id, node)
        self.incoming.setdefault(target.id, []).append(source.id)

    def run(self, first: int) -> int:
        """Merge the chain of layers that begins at `first`, the first layer of a branch. Return the chain's last layer."""
        graph, layers = self.graph, [first]
        while self._chain_continues(layers[-1]):
            layers.append(graph.successors[layers[-1]][0])
        # A layer with several successors ends the chain. It is merged unless it is the whole chain.
        if len(layers) > 1 or len(graph.successors[first]) == 1:
            self.merged[layers[-1]] = self._node(layers)
        self.runs += 1
        return layers[-1]

    def _chain_continues(self, layer: int) -> bool:
        after = self.graph.successors[layer]
        return len(after) == 1 and len(self.graph.predecessors[after[0]]) == 1

    def _node(self, layers: list[int]) -> LayerNode:
        nodes = [self.graph.nodes[layer] for layer in layers]
        single = len(nodes) == 1 or (len(nodes) == 2 and len(self.graph.successors[layers[-1]]) > 1)
        return LayerNode(
            f"compressed_node{self.runs}",
            nodes[-1].description if single else f"Branch {self.runs}",
            sum(node.forward_ms for node in nodes),
            sum(node.backward_ms for node in nodes),
            nodes[-1].activation_bytes,
            sum(node.parameter_bytes for node in nodes),
            update_ms=sum(node.update_ms for node in nodes),
        )

    def result(self) -> LayerGraph:
        """Return the new graph. Its edges are grouped by target."""
        index = {name: index for index, name in enumerate(self.found)}
        edges = [(index[source], index[name]) for name in self.found for source in self.incoming.get(name, ())]
        # Without `written`, numbers are formatted anew when the graph is written, as in the original.
        nodes = tuple(replace(node, written=None) for node in self.found.values())
        return LayerGraph(nodes, tuple(edges), self.graph.name, exchange=self.graph.exchange)


def compress(graph: LayerGraph) -> LayerGraph:
    """Return the graph with each chain of layers on a branch merged into one node.

    The node has the sum of the chain's times and parameters, and the activation size of the chain's last layer.
    """
    state = _Compression(graph)
    waiting, seen = deque(graph.sources()), set()
    while waiting:
        number = waiting.popleft()
        if number in seen:
            continue
        seen.add(number)
        after = graph.successors[number]
        if not after and not graph.predecessors[number]:
            state.found.setdefault(graph.nodes[number].id, graph.nodes[number])
        for target in after:
            last = target
            if len(after) > 1 and len(graph.predecessors[target]) == 1:
                last = state.run(target)
                state.connect(state.node(number), state.node(last))
            else:
                state.runs += len(after) > 1
                state.connect(state.node(number), state.node(target) if len(after) == 1 else graph.nodes[target])
            if last not in seen:
                waiting.append(last)
    return state.result()
