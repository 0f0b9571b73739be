"""Branch compression: every run of layers on a branch becomes one node, so that fewer states are left to search.

Names, order and numbers are those of the original's compress_graph_branches.py, so that its files come out byte for byte. A layer
at the very end of a branch, which the original drops with its times, is kept.
"""

from collections import deque
from dataclasses import replace

from workloads.pipedream.graph import Graph, Node


class _Compression:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.merged: dict[int, Node] = {}  # the node that stands for a run, by the run's last layer
        self.found: dict[str, Node] = {}  # of the new graph, by id, in the order of the file
        self.incoming: dict[str, list[str]] = {}
        self.runs = 0

    def node(self, number: int) -> Node:
        """Return what stands for a layer in the new graph."""
        return self.merged.get(number, self.graph.nodes[number])

    def connect(self, source: Node, target: Node) -> None:
        """Add an edge, and its ends if they are new."""
        for node in (source, target):
            self.found.setdefault(node.id, node)
        self.incoming.setdefault(target.id, []).append(source.id)

    def run(self, first: int) -> int:
        """Merge the run of layers that begins a branch with `first`, and return its last layer."""
        graph, layers = self.graph, [first]
        while self._goes_on(layers[-1]):
            layers.append(graph.successors[layers[-1]][0])
        # A layer that feeds several others ends the run, and belongs to it unless it is all of it.
        if len(layers) > 1 or len(graph.successors[first]) == 1:
            self.merged[layers[-1]] = self._node(layers)
        self.runs += 1
        return layers[-1]

    def _goes_on(self, layer: int) -> bool:
        after = self.graph.successors[layer]
        return len(after) == 1 and len(self.graph.predecessors[after[0]]) == 1

    def _node(self, layers: list[int]) -> Node:
        nodes = [self.graph.nodes[layer] for layer in layers]
        single = len(nodes) == 1 or (len(nodes) == 2 and len(self.graph.successors[layers[-1]]) > 1)
        return Node(
            f"compressed_node{self.runs}",
            nodes[-1].description if single else f"Branch {self.runs}",
            sum(node.forward_ms for node in nodes),
            sum(node.backward_ms for node in nodes),
            nodes[-1].activation_bytes,
            sum(node.parameter_bytes for node in nodes),
        )

    def result(self) -> Graph:
        """Return the new graph; edges grouped by the node they lead to."""
        index = {name: index for index, name in enumerate(self.found)}
        edges = [(index[source], index[name]) for name in self.found for source in self.incoming.get(name, ())]
        # A number written anew has its new form everywhere, as the original's printing gives it.
        nodes = tuple(replace(node, written=None) for node in self.found.values())
        return Graph(nodes, tuple(edges), self.graph.name)


def compress(graph: Graph) -> Graph:
    """Return the graph with every run of layers on a branch as one node of their times, parameters and last activation."""
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
