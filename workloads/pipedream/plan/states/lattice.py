"""Selects the useful states of a graph that has very many: those at which a plan within a time limit can have a cut.

A stage on m replicas takes (K(end) - K(begin)) / m seconds. K(cut) is the compute seconds of all layers before the cut, plus the
seconds in which m replicas exchange the parameters of these layers. So of all earlier cuts only the one with the largest K
matters. Each state passes this K on to the states with one more layer. A pass forward and a pass backward over the states thus
check which plans keep the limit, in time proportional to the number of states. The few states that remain are searched exactly.
Costs of another form (the maximum in the cost model "paper", memory) are underestimated, so that no useful state is lost.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from iotwin.workloads.pipedream.plan.costs import Array, CostOptions
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, bits
from iotwin.workloads.pipedream.plan.states.antichains import MOST_STATES, Antichains, TooManyStates

Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
_RAN = 100  # in `missing`, marks a layer that has run
_SLACK = 1 + 1e-11  # tolerance for rounding errors, since the exact search adds in another order
_MOST_CUTS = 1_000  # the limit on stage times is lowered until at most this many states remain: their pairs are few enough


@dataclass(frozen=True)
class LatticeSteps:
    """The steps from the states with k layers (parents) to the states with k + 1 layers (children). A step adds one layer.

    In order of parents, step i leads to `child[i]`, and the steps of parent p begin at `of_parent[p]`. In order of children, step
    i comes from `parent[i]`, and the steps to child c begin at `of_child[c]`. Parents and children are indices, from 0, among the
    states with the same number of layers.
    """

    child: Ints
    of_parent: Ints
    parent: Ints
    of_child: Ints


@dataclass(frozen=True)
class Lattice:
    """All states of a graph with one source, sorted by number of layers. Arrays have an entry per state, as in `costs.Points`.

    `packed` holds the sets of layers: bit i stands for layer `order[i]`. `begins[k]` is the index of the first state with k + 1
    layers, and `steps[k]` leads from these states to those with one more layer.
    """

    order: list[int]
    packed: Bytes
    seconds: Array
    parameters: Array
    output: Array
    begins: list[int]
    steps: list[LatticeSteps]

    def closure(self, state: int) -> int:
        """Return the layers of a state as a set of nodes of the graph (see layer_graph.py)."""
        ran = np.flatnonzero(np.unpackbits(self.packed[state], bitorder="little"))
        return sum(1 << self.order[index] for index in ran)


class _Builder:
    """Enumerates states by number of layers. It holds all states with the current number: layers, frontiers, and totals.

    `missing` has a row per state and a column per layer of a window from `low` on. It counts the layer's predecessors that have
    not run. Layers before the window have run in every state, layers after it in none. Topological order keeps it narrow.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.order = graph.topological
        count = len(self.order)
        index_of = {number: new for new, number in enumerate(self.order)}
        self.leads = np.zeros((count, count), np.int8)
        for source, target in graph.edges:
            self.leads[index_of[source], index_of[target]] = 1
        self.predecessors = self.leads.sum(axis=0, dtype=np.int8)
        self.furthest = np.array(
            [1 + max((index_of[each] for each in graph.successors[n]), default=index_of[n]) for n in self.order]
        )
        width = -(-count // 64) * 8
        bit = np.packbits(np.eye(count, width * 8, dtype=bool), axis=1, bitorder="little")
        self.bit, self.not_before = (
            bit,
            ~np.packbits(np.pad(self.leads.T, ((0, 0), (0, width * 8 - count))), axis=1, bitorder="little"),
        )
        antichains = Antichains(graph)
        opened = np.zeros((count, width * 8), bool)
        for new, number in enumerate(self.order):
            opened[new, [index_of[each] for each in bits(antichains.augment(1 << number))]] = True
        self.open = np.packbits(opened, axis=1, bitorder="little").view(np.uint64)
        nodes = [graph.nodes[number] for number in self.order]
        self.layer_seconds = np.array([node.compute_ms for node in nodes]) / 1000
        self.layer_parameters = np.array([node.parameter_bytes for node in nodes])
        activation = np.pad([node.activation_bytes for node in nodes], (0, width * 8 - count))
        values = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self.sums = activation.reshape(width, 8) @ values.T  # [i, v]: bytes of the layers in byte i of `packed` if it is v
        # A set's key is the xor of its layers' keys. Among millions of sets, two have equal keys with probability 1e-7.
        self.layer_key = np.random.default_rng(20191027).integers(1, 2**63, count, dtype=np.uint64)
        self.low, self.missing = 0, self.predecessors[None, :1]
        self.keys, self.seconds, self.parameters = np.zeros(1, np.uint64), np.zeros(1), np.zeros(1)
        self.packed = self.front = np.zeros((1, width), np.uint8)

    def step(self) -> LatticeSteps:
        """Replace the states by those with one more layer, and return the steps from the old to the new states."""
        parents, layers = np.nonzero(self.missing == 0)
        layers += self.low
        keys = self.keys[parents] ^ self.layer_key[layers]
        by_child = np.argsort(keys)
        keys = keys[by_child]
        new = np.concatenate(([True], keys[1:] != keys[:-1]))
        child = np.empty(len(keys), np.int32)
        child[by_child] = np.cumsum(new) - 1
        of_parent = np.searchsorted(parents, np.arange(len(self.keys))).astype(np.int32)
        steps = LatticeSteps(child, of_parent, parents[by_child].astype(np.int32), np.flatnonzero(new).astype(np.int32))
        first = by_child[new]
        self.keys = keys[new]
        self._add(parents[first], layers[first])
        return steps

    def _add(self, parents: npt.NDArray[np.intp], added: npt.NDArray[np.intp]) -> None:
        """Replace the states by those with the indices `parents`, each with one layer of `added` added."""
        states = np.arange(len(added))
        high = self.low + self.missing.shape[1]
        further = max(high, int(self.furthest[added].max()))
        missing = np.empty((len(added), further - self.low), np.int8)
        missing[:, : high - self.low] = self.missing[parents]
        missing[:, high - self.low :] = self.predecessors[high:further]
        missing -= self.leads[added, self.low : further]
        missing[states, added - self.low] = _RAN
        while missing.shape[1] and (missing[:, 0] == _RAN).all():
            self.low, missing = self.low + 1, missing[:, 1:]
        self.missing = missing
        self.packed = self.packed[parents] | self.bit[added]
        self.front = self.front[parents] & self.not_before[added] | self.bit[added]
        self.seconds = self.seconds[parents] + self.layer_seconds[added]
        self.parameters = self.parameters[parents] + self.layer_parameters[added]

    def output(self) -> Array:
        """Return the activation bytes of each state's augmented antichain."""
        used = np.flatnonzero(np.bitwise_or.reduce(self.front, axis=0))
        states, layers = np.nonzero(np.unpackbits(self.front[:, used[0] : used[-1] + 1], axis=1, bitorder="little"))
        begins = np.searchsorted(states, np.arange(len(self.front)))
        crossing = np.bitwise_or.reduceat(self.open[layers + 8 * used[0]], begins, axis=0).view(np.uint8)
        found = np.zeros(len(crossing))
        for point in np.flatnonzero(np.bitwise_or.reduce(crossing, axis=0)):
            found += self.sums[point, crossing[:, point]]
        return found


def lattice_of(graph: LayerGraph) -> Lattice:
    """Return all states of a graph with one source."""
    builder = _Builder(graph)
    columns: list[tuple[Array, Array, Array]] = []
    packed, begins, steps = [], [0], []
    for _ in graph.nodes:
        steps.append(builder.step())
        packed.append(builder.packed)
        columns.append((builder.seconds, builder.parameters, builder.output()))
        begins.append(begins[-1] + len(builder.keys))
    seconds, parameters, output = (np.concatenate(each) for each in zip(*columns, strict=True))
    return Lattice(builder.order, np.concatenate(packed), seconds, parameters, output, begins, steps[1:])


class Feasible:
    """Finds the states at which a plan can have a cut if no stage may take longer than `limit_s`, on one level of machines."""

    def __init__(self, lattice: Lattice, options: CostOptions, limit_s: float) -> None:
        self.lattice, self.limit_s = lattice, limit_s * _SLACK
        (level,) = options.levels
        self.machines = level.machines
        self.most = 1 if options.straight else level.machines
        code = options.cost_model == "code"
        # Seconds that m replicas need to exchange one byte of parameters.
        self.share = [0.0] + [4 * (m - 1) / (level.bandwidth * m) * code for m in range(1, self.most + 1)]
        free = [np.inf] * (self.most + 1)
        link = self.limit_s * level.bandwidth * (options.compression or 1) / 2
        # Most bytes that may enter and leave a stage of m replicas within the limit.
        self.entering = [link * m for m in range(self.most + 1)] if code else [link] * (self.most + 1)
        if code and options.compression is None:
            self.entering = free
        self.leaving = self.entering if code else free
        self.columns = [(u, m) for u in range(1, self.machines) for m in range(1, min(self.machines - u, self.most) + 1)]

    def key(self, replicas: int, states: slice) -> Array:
        """Return K (see the module) of `states` for a stage with `replicas`."""
        found: Array = self.lattice.seconds[states] + self.share[replicas] * self.lattice.parameters[states]
        return found

    def forward(self) -> npt.NDArray[np.bool_]:
        """Return a (states, units + 1) matrix: True at u if exactly u units can run the state's layers within the limit."""
        lattice = self.lattice
        found = np.zeros((len(lattice.output), self.machines + 1), bool)
        largest = np.empty((0, 0))
        for index, (begin, end) in enumerate(zip(lattice.begins, lattice.begins[1:], strict=False)):
            own = slice(begin, end)
            keys = {m: self.key(m, own) for m in range(1, self.most + 1)}
            if index:
                step = lattice.steps[index - 1]
                largest = np.maximum.reduceat(largest[step.parent], step.of_child, axis=0)
            else:
                largest = np.full((end - begin, len(self.columns)), -np.inf)
            crossing = np.where(index == len(lattice.steps), 0, lattice.output[own])
            for m, key in keys.items():
                found[own, m] |= key <= m * self.limit_s
            for column, (u, m) in enumerate(self.columns):
                fits = (keys[m] - largest[:, column] <= m * self.limit_s) & (crossing <= self.leaving[m])
                found[own, u + m] |= fits
            for column, (u, m) in enumerate(self.columns):
                cut = found[own, u] & (crossing <= self.entering[m])
                largest[:, column] = np.where(cut, np.maximum(largest[:, column], keys[m]), largest[:, column])
        return found

    def backward(self) -> npt.NDArray[np.bool_]:
        """Return a (states, units + 1) matrix: True at u if at most u units can run all other layers within the limit."""
        lattice = self.lattice
        found = np.zeros((len(lattice.output), self.machines + 1), bool)
        columns = [(u - 1, m) for u, m in self.columns]
        smallest = np.empty((0, 0))
        for number in range(len(lattice.begins) - 2, -1, -1):
            own = slice(lattice.begins[number], lattice.begins[number + 1])
            keys = {m: self.key(m, own) for m in range(1, self.most + 1)}
            crossing = lattice.output[own]
            if number == len(lattice.steps):
                found[own], crossing = True, np.zeros(1)
                smallest = np.full((1, len(columns)), np.inf)
            else:
                step = lattice.steps[number]
                smallest = np.minimum.reduceat(smallest[step.child], step.of_parent, axis=0)
                for column, (u, m) in enumerate(columns):
                    fits = (smallest[:, column] - keys[m] <= m * self.limit_s) & (crossing <= self.entering[m])
                    found[own, u + m] |= fits
                np.logical_or.accumulate(found[own], axis=1, out=found[own])
            for column, (u, m) in enumerate(columns):
                cut = found[own, u] & (crossing <= self.leaving[m])
                smallest[:, column] = np.where(cut, np.minimum(smallest[:, column], keys[m]), smallest[:, column])
        return found

    def cuts(self) -> npt.NDArray[np.intp]:
        """Return the states at which a plan within the limit can have a cut, and the last state; [] if no plan keeps to it."""
        forward = self.forward()
        if not forward[-1].any():
            return np.zeros(0, np.intp)
        useful = np.flatnonzero((forward & self.backward()[:, ::-1]).any(axis=1))
        return useful if len(useful) and useful[-1] == len(forward) - 1 else np.append(useful, len(forward) - 1)


def useful_states(graph: LayerGraph, options: CostOptions, limit_s: float) -> tuple[list[int], float]:
    """Return (states, limit in seconds). A state is a set of layers, and a plan cuts the graph at states.

    The result has every state at which a plan within the limit has a cut. A plan is within it if no stage and no link takes
    longer. The first limit is `limit_s`, the time of a known plan. If more than _MOST_CUTS states remain, the limit is lowered.

    The search ignores limits of memory and lets plans leave workers idle. So the limit may become less than the time of every
    valid plan. Then the best valid plan may need a state that is missing here.

    Raises TooManyStates if more than MOST_STATES states remain at the least limit that any plan keeps.
    """
    lattice = lattice_of(graph)
    low = float(lattice.seconds[-1]) / options.workers
    cuts = Feasible(lattice, options, limit_s).cuts()
    while len(cuts) > _MOST_CUTS and limit_s > low * (1 + 1e-9):
        middle = (low + limit_s) / 2
        fewer = Feasible(lattice, options, middle).cuts()
        if len(fewer):
            cuts, limit_s = fewer, middle
        else:
            low = middle
    if len(cuts) > MOST_STATES:
        raise TooManyStates(f"{graph.name} has more than {MOST_STATES:,} cuts of plans that are equally fast")
    return [lattice.closure(int(state)) for state in cuts], limit_s


def count_states(graph: LayerGraph, most_fronts: int = 20_000) -> int | None:
    """Return the number of states of a graph, without listing them; None if it has several sources or counting takes too long.

    Each layer is included or excluded in turn. Partial sets that allow the same later layers are counted together.
    """
    if len(graph.sources()) != 1:
        return None
    left = [len(set(after)) for after in graph.successors]
    waiting = [len(set(before)) for before in graph.predecessors]
    ready = set(graph.sources())
    counts = {0: 1}
    while ready:
        node = min(ready, key=lambda each: (bool(left[each]) - sum(left[p] == 1 for p in set(graph.predecessors[each])), each))
        ready.remove(node)
        before = sum(1 << each for each in set(graph.predecessors[node]))
        for each in bits(before):
            left[each] -= 1
        asked = ~sum(1 << each for each in bits(before) if not left[each])
        own = 1 << node if left[node] else 0
        further: dict[int, int] = {}
        for front, count in counts.items():
            further[front & asked] = further.get(front & asked, 0) + count
            if front & before == before:
                further[(front | own) & asked] = further.get((front | own) & asked, 0) + count
        counts = further
        if len(counts) > most_fronts:
            return None
        for after in set(graph.successors[node]):
            waiting[after] -= 1
            if not waiting[after]:
                ready.add(after)
    return sum(counts.values()) - 1
