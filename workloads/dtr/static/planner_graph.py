"""The graph of the static planners. Its nodes are in topological order and have one result each; it has no views or constants."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import msgspec

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.untrusted_files import read_foreign_struct
from iotwin.workloads.dtr.simulator.graph import Graph, GraphBuilder


class Dag(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """A graph: node i costs `cost[i]`, has a result of `size[i]` bytes and reads the results of the nodes `args[i]`, all below i.

    The first `forward` nodes are the forward pass with the loss. `fixed_bytes` are in memory at all times. `names` may be empty.
    """

    cost: list[int]
    size: list[int]
    args: list[tuple[int, ...]]
    forward: int
    fixed_bytes: int = 0
    names: list[str] = []

    def __len__(self) -> int:
        return len(self.cost)

    @cached_property
    def users(self) -> list[list[int]]:
        """For each node of the graph, a list of the nodes that read its result."""
        found: list[list[int]] = [[] for _ in self.cost]
        for node, args in enumerate(self.args):
            for arg in set(args):
                found[arg].append(node)
        return found

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """The distinct edges (source, target) of the graph, whose target reads the result of its source."""
        return [(arg, node) for node, args in enumerate(self.args) for arg in sorted(set(args))]

    def last_use(self, node: int, before: int | None = None) -> int:
        """Return the last node (below `before`, if given) that reads the result of `node`; `node` itself if there is none."""
        return max((user for user in self.users[node] if before is None or user < before), default=node)

    def separators(self) -> list[int]:
        """Return the forward nodes that are on every path from the first to the last forward node (articulation points)."""
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
    """Return Checkmate's linear training graph of n = `layers` layers, which has the edges i -> i + 1 and i -> 2n - i."""
    count = 2 * layers + 1
    args = [tuple(sorted({max(node - 1, 0), 2 * layers - node} if node > layers else {node - 1})) for node in range(1, count)]
    return Dag([1] * count, [1] * count, [(), *args], layers + 1)


def read_dag(path: Path) -> Dag:
    """Read a graph from its JSON document. Raises UsageError if the file is not a graph."""
    try:
        dag = read_foreign_struct(path, Dag)
    except IotwinError as error:
        raise UsageError(f"{path} is not a graph: {error}") from None
    count = len(dag)
    if not (len(dag.size) == len(dag.args) == count > 0) or not 0 < dag.forward <= count or len(dag.names) not in (0, count):
        raise UsageError(
            f"{path} is not a graph: cost, size, args and names need one entry per node, and forward must be 1 to their number"
        )
    if min(dag.cost) < 0 or min(dag.size) < 0:
        raise UsageError(f"{path} is not a graph: a cost or size is negative")
    for node, args in enumerate(dag.args):
        if any(not 0 <= arg < node for arg in args):
            raise UsageError(f"{path} is not a graph: node {node} reads a node that does not come before it")
    return dag


def write_dag(dag: Dag) -> bytes:
    """Return the graph as the content of a JSON document that `read_dag` reads."""
    return msgspec.json.encode(dag)


def from_graph(graph: Graph, fixed_bytes: int) -> Dag:
    """Return a Dag with one node per operator of `graph`, which must come from `rewrite_for_planners`."""
    ops = range(graph.operators)
    args = [tuple(sorted({int(graph.tensor_op[t]) for t in graph.arguments(op)})) for op in ops]
    sizes = [sum(int(graph.tensor_size[t]) for t in graph.results(op)) for op in ops]
    backward = [op for op in ops if graph.op_backward[op]]
    return Dag(
        [int(c) for c in graph.op_cost], sizes, args, backward[0] if backward else len(args), fixed_bytes, list(graph.op_names)
    )


def to_graph(dag: Dag, order: Iterable[int] | None = None) -> Graph:
    """Return `dag` for the simulator. Nodes run in `order` (None: by index); results are released after their last use."""
    builder = GraphBuilder()
    tensors: dict[int, int] = {}
    sequence = list(range(len(dag)) if order is None else order)
    index_of = {node: index for index, node in enumerate(sequence)}
    last = {node: max([index_of[node], *(index_of[user] for user in dag.users[node])]) for node in sequence}
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
