"""The graph that static planners see: nodes in topological order, one result each, no views, no constants."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from common.errors import UsageError
from workloads.dtr.graph import Graph, GraphBuilder


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """A graph as JSON: `args[i]` are the nodes that node i reads, all smaller than i."""

    cost: list[int]
    size: list[int]
    args: list[list[int]]
    forward: int  # nodes of the forward pass, the loss included
    fixed_bytes: int = 0


@dataclass(frozen=True)
class Dag:
    """Node `i` costs `cost[i]`, makes `size[i]` bytes and reads `args[i]`; the first `forward` nodes are the forward pass."""

    cost: list[int]
    size: list[int]
    args: list[tuple[int, ...]]
    forward: int
    fixed_bytes: int = 0
    names: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.cost)

    @cached_property
    def users(self) -> list[list[int]]:
        """The nodes that read each node."""
        found: list[list[int]] = [[] for _ in self.cost]
        for node, args in enumerate(self.args):
            for arg in set(args):
                found[arg].append(node)
        return found

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """(from, to), each once."""
        return [(arg, node) for node, args in enumerate(self.args) for arg in sorted(set(args))]

    def last_use(self, node: int, before: int | None = None) -> int:
        """Return the last node below `before` that reads `node`, or itself."""
        return max((user for user in self.users[node] if before is None or user < before), default=node)

    def separators(self) -> list[int]:
        """Return the forward nodes that every path from first to last passes: articulation points of the forward graph."""
        jumped = [0] * (self.forward + 1)
        for low, high in self.edges:
            if high < self.forward:
                jumped[low + 1] += 1
                jumped[high] -= 1
        found, over = [], 0
        for node in range(self.forward):
            over += jumped[node]
            if over == 0:
                found.append(node)
        return found


def training_chain(layers: int) -> Dag:
    """Return Checkmate's linear training graph: `layers` forward, a loss, `layers` backward; edges i -> i+1 and i -> 2n-i."""
    count = 2 * layers + 1
    args = [tuple(sorted({max(node - 1, 0), 2 * layers - node} if node > layers else {node - 1})) for node in range(1, count)]
    return Dag([1] * count, [1] * count, [(), *args], layers + 1)


def read_dag(path: Path) -> Dag:
    """Return the graph of a JSON document; UsageError for one that is none."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no graph: {error}") from None
    count = len(document.cost)
    if not (len(document.size) == len(document.args) == count > 0) or not 0 < document.forward <= count:
        raise UsageError(f"{path} is no graph: cost, size and args need one entry a node, and forward a number of them")
    if min(document.cost) < 0 or min(document.size) < 0:
        raise UsageError(f"{path} is no graph: a cost or size is negative")
    for node, args in enumerate(document.args):
        if any(not 0 <= arg < node for arg in args):
            raise UsageError(f"{path} is no graph: node {node} reads a node that does not come before it")
    read = [tuple(args) for args in document.args]
    return Dag(document.cost, document.size, read, document.forward, document.fixed_bytes)


def write_dag(dag: Dag) -> bytes:
    """Return a graph as the JSON that `read_dag` reads."""
    return msgspec.json.encode(_Document(dag.cost, dag.size, [list(args) for args in dag.args], dag.forward, dag.fixed_bytes))


def from_graph(graph: Graph, fixed_bytes: int) -> Dag:
    """Return the planners' graph of a rewritten one (`workloads.dtr.rewrite.rewrite_for_planners`), a node an operator."""
    ops = range(graph.operators)
    args = [tuple(sorted({int(graph.tensor_op[t]) for t in graph.arguments(op)})) for op in ops]
    sizes = [sum(int(graph.tensor_size[t]) for t in graph.results(op)) for op in ops]
    backward = [op for op in ops if graph.op_backward[op]]
    return Dag(
        [int(c) for c in graph.op_cost], sizes, args, backward[0] if backward else len(args), fixed_bytes, list(graph.op_names)
    )


def to_graph(dag: Dag, order: Iterable[int] | None = None) -> Graph:
    """Return a graph for the simulator: nodes in `order` (as they stand when left out), each released after its last use."""
    builder = GraphBuilder()
    tensors: dict[int, int] = {}
    sequence = list(range(len(dag)) if order is None else order)
    place = {node: index for index, node in enumerate(sequence)}
    last = {node: max([place[node], *(place[user] for user in dag.users[node])]) for node in sequence}
    dying: dict[int, list[int]] = {}
    for node, index in last.items():
        dying.setdefault(index, []).append(node)
    for index, node in enumerate(sequence):
        name = dag.names[node] if dag.names else f"f{node}"
        args = [tensors[arg] for arg in dag.args[node]]
        tensors[node] = builder.add(name, dag.cost[node], args, [(f"x{node}", dag.size[node], -1)], node >= dag.forward)[0]
        for dead in sorted(dying.get(index, [])):
            builder.release(tensors[dead])
    return builder.build()
