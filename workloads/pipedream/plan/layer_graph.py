"""The layer graph of a model: nodes with times and bytes, directed edges, and a topological order.

Here, a set of nodes is an integer in which bit i is set if the i-th node of the graph is in the set.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from iotwin.common.errors import UsageError


@dataclass(frozen=True)
class LayerNode:
    """A layer or operation, with times in milliseconds per minibatch and sizes in bytes. `stage` is None before optimisation.

    `update_ms` is the time in which SGD updates the layer's parameters, 0 if the profile did not measure it. `written` holds the
    text of the other numbers in the node's file, so that they are written unchanged.
    """

    id: str
    description: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    activation_bytes: float = 0.0
    parameter_bytes: float = 0.0
    stage: int | None = None
    written: str | None = field(default=None, compare=False)
    update_ms: float = 0.0

    @property
    def compute_ms(self) -> float:
        """Return the milliseconds of both passes and of the update."""
        return self.forward_ms + self.backward_ms + self.update_ms

    @property
    def kind(self) -> str:
        """Return the description without arguments, such as Conv2d."""
        return self.description.partition("(")[0]

    @property
    def is_input(self) -> bool:
        """True if the node is an input of the model."""
        return self.description.startswith("Input")

    @property
    def is_free(self) -> bool:
        """True if the node has neither times nor bytes."""
        return not (self.forward_ms or self.backward_ms or self.activation_bytes or self.parameter_bytes)


def bits(nodes: int) -> Iterator[int]:
    """Yield the indices of the nodes in a set, lowest first."""
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


class Cycle(UsageError):
    """Raised if the layer graph has a cycle. The layer `node` is in the cycle or after it."""

    def __init__(self, node: int, text: str) -> None:
        super().__init__(text)
        self.node = node


@dataclass(frozen=True)
class ExchangeCost:
    """The processor time in which a rank sends a message and receives one of the same size. `latency_s`: for tiny messages."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds for tensors of `size_bytes`; 0 if there are none. A message with the shape precedes each tensor."""
        return 2 * self.latency_s + size_bytes / self.bytes_per_s if size_bytes else 0.0


@dataclass(frozen=True)
class LayerGraph:
    """A graph: nodes in the order of their file, and edges (source, target) as indices of nodes.

    The edges into a node are in the order of the layer's arguments. `exchange` is None if the profile did not measure it.
    """

    nodes: tuple[LayerNode, ...]
    edges: tuple[tuple[int, int], ...]
    name: str = "the graph"
    ending: str = ""  # end of the last line of the graph's file: nothing, or a newline
    exchange: ExchangeCost | None = None

    @cached_property
    def successors(self) -> list[list[int]]:
        """Return the direct successors of each node."""
        return _by_node(self.edges, len(self.nodes))

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """Return the direct predecessors of each node, in argument order."""
        return _by_node(((target, source) for source, target in self.edges), len(self.nodes))

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the index of each node by its id."""
        return {node.id: index for index, node in enumerate(self.nodes)}

    @property
    def everything(self) -> int:
        """Return the set of all nodes."""
        return (1 << len(self.nodes)) - 1

    def sources(self) -> list[int]:
        """Return the nodes without predecessors, in file order."""
        return [index for index, before in enumerate(self.predecessors) if not before]

    def sinks(self) -> list[int]:
        """Return the nodes without successors, in file order."""
        return [index for index, after in enumerate(self.successors) if not after]

    @cached_property
    def topological(self) -> list[int]:
        """Return the nodes in topological order; among ready nodes, in file order. Raises Cycle if the graph has a cycle."""
        waiting = [len(before) for before in self.predecessors]
        ready = deque(index for index, count in enumerate(waiting) if not count)
        order = []
        while ready:
            order.append(ready.popleft())
            for target in self.successors[order[-1]]:
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        if len(order) < len(self.nodes):
            caught = next(index for index, count in enumerate(waiting) if count)
            raise Cycle(caught, f"{self.name}: node {self.nodes[caught].id} is in or behind a cycle; layer graphs have none")
        return order

    @cached_property
    def ancestors(self) -> list[int]:
        """Return, for each node, the set of its ancestors, without the node itself."""
        found = [0] * len(self.nodes)
        for number in self.topological:
            for source in self.predecessors[number]:
                found[number] |= found[source] | 1 << source
        return found

    @cached_property
    def descendants(self) -> list[int]:
        """Return, for each node, the set of its descendants, without the node itself."""
        found = [0] * len(self.nodes)
        for number in reversed(self.topological):
            for target in self.successors[number]:
                found[number] |= found[target] | 1 << target
        return found

    @cached_property
    def successor_sets(self) -> list[int]:
        """Return, for each node, the set of its direct successors."""
        return [sum(1 << target for target in set(targets)) for targets in self.successors]

    def closure(self, nodes: Iterable[int]) -> int:
        """Return the set of `nodes` and all their ancestors."""
        found = 0
        for number in nodes:
            found |= self.ancestors[number] | 1 << number
        return found

    def without(self, removed: Iterable[int]) -> "LayerGraph":
        """Return the graph without the nodes `removed` and without the edges at them."""
        gone = set(removed)
        kept = [index for index in range(len(self.nodes)) if index not in gone]
        index_of = {number: new for new, number in enumerate(kept)}
        edges = tuple((index_of[a], index_of[b]) for a, b in self.edges if a not in gone and b not in gone)
        return replace(self, nodes=tuple(self.nodes[number] for number in kept), edges=edges)

    def with_stages(self, stages: dict[str, int]) -> "LayerGraph":
        """Return the graph with the stage of each node taken from `stages`, by node id."""
        return replace(self, nodes=tuple(replace(node, stage=stages[node.id]) for node in self.nodes))

    def exchange_s(self, size_bytes: float) -> float:
        """Return the seconds that a rank is busy with one exchange of tensors of `size_bytes`, 0 if that was not measured."""
        return self.exchange.seconds(size_bytes) if self.exchange else 0.0


def _by_node(pairs: Iterable[tuple[int, int]], count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for node, other in pairs:
        found[node].append(other)
    return found


def partition(graph: LayerGraph) -> dict[int, LayerGraph]:
    """Return, by stage, the graph of the stage's nodes and the edges between them. Raises UsageError if a node has no stage."""
    stages = []
    for node in graph.nodes:
        if node.stage is None:
            raise UsageError(f"{graph.name}: node {node.id} has no stage_id; give an optimised graph")
        stages.append(node.stage)
    return {stage: graph.without(index for index, own in enumerate(stages) if own != stage) for stage in sorted(set(stages))}


def is_series_parallel(graph: LayerGraph) -> bool:
    """Return True if only two nodes are left after nodes with one predecessor and one successor are removed repeatedly."""
    before = [set(sources) for sources in graph.predecessors]
    after = [set(targets) for targets in graph.successors]
    left = len(graph.nodes)
    waiting = deque(range(left))
    while waiting:
        number = waiting.popleft()
        if len(before[number]) != 1 or len(after[number]) != 1:
            continue
        (source,), (target,) = before[number], after[number]
        before[number], after[number] = set(), set()
        after[source] = after[source] - {number} | {target}
        before[target] = before[target] - {number} | {source}
        left -= 1
        waiting += (source, target)  # these nodes may now have one predecessor and one successor
    return left == 2
