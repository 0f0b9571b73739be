"""The states of a layer graph: sets of layers that can precede a cut. A state is an antichain (its frontier) with all ancestors.

Sets of nodes are integers (see layer_graph.py). Terms and rules follow Narayanan et al., "PipeDream: Generalized Pipeline
Parallelism for DNN Training" (SOSP 2019). Its optimizer enumerates the same states, starting at the first source of the graph.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, bits

MOST_STATES = 12_000


class TooManyStates(IotwinError):
    """Raised if the graph has too many states to search."""


class Antichains:
    """Operations on antichains of a graph. An antichain is a set of nodes in which no node is an ancestor of another."""

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self._open_ancestors: dict[int, int] = {}

    def _open(self, node: int) -> int:
        """Return the ancestors of `node` that have a successor which is neither `node` nor one of its ancestors."""
        if node not in self._open_ancestors:
            ran = self.graph.ancestors[node] | 1 << node
            successors = self.graph.successor_sets
            self._open_ancestors[node] = sum(1 << p for p in bits(self.graph.ancestors[node]) if successors[p] & ~ran)
        return self._open_ancestors[node]

    def augment(self, antichain: int) -> int:
        """Return the antichain together with those ancestors whose output is still needed by a layer that has not run."""
        found = antichain
        for node in bits(antichain):
            found |= self._open(node)
        return found

    def deaugment(self, nodes: int) -> int:
        """Return `nodes` without the nodes that are ancestors of others: an antichain."""
        return sum(1 << node for node in bits(nodes) if not self.graph.descendants[node] & nodes)

    def next(self, antichain: int) -> list[int]:
        """Return the antichains of the next states: each has one more layer, which has not run in the present state."""
        augmented = self.augment(antichain)
        found: dict[int, None] = {}
        for node in bits(augmented):
            for target in dict.fromkeys(self.graph.successors[node]):
                if antichain >> target & 1 or self.graph.descendants[target] & augmented:
                    continue
                found[self.deaugment(augmented & ~(1 << node) | 1 << target)] = None
        return list(found)


@dataclass(frozen=True)
class States:
    """States of a graph. Each is listed after all states that it contains.

    `antichains[k]` is the frontier of state k, and `closures[k]` the set of all its layers. `before[k]` is an integer whose bit i
    is set if state k contains state i. `complete`: True if these are all states of the graph.
    """

    antichains: list[int]
    closures: list[int]
    before: list[int]
    complete: bool = True


def states_of(graph: LayerGraph, most: int = MOST_STATES) -> States:
    """Return all states from the first source node to the whole graph. Raises TooManyStates if there are more than `most`.

    If some layers do not depend on the first source, a state may also begin with, or add, any other source.
    """
    found = _search(graph, graph.closure(graph.sources()[:1]), 0, most)
    if graph.everything not in found:
        found = _search(graph, 0, sum(1 << source for source in graph.sources()), most)
    found.pop(0, None)
    discovery = {closure: index for index, closure in enumerate(found)}
    order = sorted(found, key=lambda closure: (closure.bit_count(), discovery[closure]))
    index_of = {closure: state for state, closure in enumerate(order)}
    before = [0] * len(order)
    for state, closure in enumerate(order):
        for after in found[closure]:
            before[index_of[after]] |= before[state] | 1 << state
    return States(_fronts(graph, order), order, before)


def _fronts(graph: LayerGraph, closures: list[int]) -> list[int]:
    successors = graph.successor_sets
    return [sum(1 << node for node in bits(closure) if not successors[node] & closure) for closure in closures]


def states_from(graph: LayerGraph, closures: list[int], complete: bool = True) -> States:
    """Return a state for each set of layers in `closures` (bit masks, sorted by number of layers)."""
    width = len(graph.nodes) // 8 + 1
    packed = np.frombuffer(b"".join(each.to_bytes(width, "little") for each in closures), np.uint8).reshape(-1, width)
    before = []
    for state, own in enumerate(packed):
        inside = ~(packed[:state] & ~own).any(axis=1)
        before.append(int.from_bytes(np.packbits(inside, bitorder="little").tobytes(), "little"))
    return States(_fronts(graph, closures), closures, before, complete)


def some_states_of(graph: LayerGraph, most: int) -> States:
    """Return about `most` states of a graph that has too many to list. They include good cuts.

    The states are prefixes of four topological orders. Among ready layers, an order first runs the one that was ready earliest,
    was ready last, adds the fewest output bytes, or has the fewest parameters. The compute time of each order is divided into
    equal shares. From each share, the state with the fewest output bytes is returned.
    """
    found = {graph.everything}
    total_ms = sum(node.compute_ms for node in graph.nodes)
    for rule in ("ready", "latest", "bytes", "parameters"):
        least: dict[int, tuple[float, int]] = {}
        left = [len(after) for after in graph.successors]
        closure, carried, ran_ms = 0, 0.0, 0.0
        for node in _order(graph, rule):
            closure |= 1 << node
            ran_ms += graph.nodes[node].compute_ms
            carried += graph.nodes[node].activation_bytes
            for before in graph.predecessors[node]:
                left[before] -= 1
                carried -= 0 if left[before] else graph.nodes[before].activation_bytes
            share = int(ran_ms / total_ms * most / 4) if total_ms else 0
            least[share] = min(least.get(share, (np.inf, 0)), (carried, closure))
        found |= {closure for _, closure in least.values()}
    return states_from(graph, sorted(found, key=lambda each: (each.bit_count(), each)), complete=False)


def _order(graph: LayerGraph, rule: str) -> list[int]:
    """Return the topological order in which `rule` chooses among the layers that are ready."""
    waiting = [len(before) for before in graph.predecessors]
    readers = [len(after) for after in graph.successors]
    ready = graph.sources()
    order = []

    def carried(node: int) -> float:
        own = graph.nodes[node].activation_bytes
        return own - sum(graph.nodes[before].activation_bytes for before in graph.predecessors[node] if readers[before] == 1)

    while ready:
        if rule == "bytes":
            node = min(ready, key=carried)
        elif rule == "parameters":
            node = min(ready, key=lambda node: graph.nodes[node].parameter_bytes)
        else:
            node = ready[0 if rule == "ready" else -1]
        ready.remove(node)
        order.append(node)
        for before in graph.predecessors[node]:
            readers[before] -= 1
        for after in graph.successors[node]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    return order


def _search(graph: LayerGraph, start: int, sources: int, most: int) -> dict[int, list[int]]:
    """Return a dict from each state to its next states; every state is given as its set of layers.

    The search begins with the state `start`. A next state adds a successor of the state's layers, or one of `sources`, with all
    its ancestors. Raises TooManyStates if there are more than `most` states.
    """
    successors = graph.successor_sets
    whole = [ancestors | 1 << node for node, ancestors in enumerate(graph.ancestors)]
    reach = sources
    for node in bits(start):
        reach |= successors[node]
    found: dict[int, list[int]] = {start: []}
    waiting = deque([(start, reach)])
    while waiting:
        closure, reach = waiting.popleft()
        for target in bits(reach & ~closure):
            after = closure | whole[target]
            found[closure].append(after)
            if after in found:
                continue
            if len(found) >= most:
                raise TooManyStates(
                    f"{graph.name} has more than {most:,} states, too many to search; compress its branches first: "
                    "iotwin pipedream compress"
                )
            found[after] = []
            further = reach
            for node in bits(after & ~closure):
                further |= successors[node]
            waiting.append((after, further))
    return found
