"""Computes the cost of a stage, in seconds per minibatch in steady state, by the formulas of PipeDream's code or of its paper.

A *state* is a set of layers that can precede a cut between two stages (states/). A *point* is such a cut: point 0 is before all
layers, point k after the layers of the k-th state. A stage is between two points. Machines form *levels*, such as the GPUs of a
server and the servers of a cluster; a *unit* of a level is one of its machines, with all the levels inside it.

Symbols: C is the compute seconds of a minibatch on one unit, W the parameter bytes, m the number of replicas. B is the bytes per
second between two units of the level, `inner` the number of units of the next inner level, `out` the bytes across a cut.

``code``   first stage    (C + 4(m-1)W/(Bm)/inner) / m
           later stages   (C + 4(m-1)W/(Bm)) / m; with a compression ratio r also 2 out/(Bm)/r for inputs and outputs
           (optimizer_graph_hierarchical.py of msr-fiddle/pipedream)
``paper``  all stages     max(C, 2(m-1)W/B) / m, and 2 out/B/r for inputs (r = 1 by default)
           (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, bits
from iotwin.workloads.pipedream.plan.states.antichains import Antichains, States

Array = npt.NDArray[np.float64]
CostModel = Literal["code", "paper"]
MemoryModel = Literal["original", "versions"]


@dataclass(frozen=True)
class Level:
    """One level of the machine hierarchy: its number of units, and the bytes per second between any two of them."""

    machines: int
    bandwidth: float


@dataclass(frozen=True)
class CostOptions:
    """The machines and constraints for a plan.

    * `levels` begin with the innermost. `memory_bytes` is the limit per worker, None without a limit.
    * By default, a plan uses fewer workers than given only if it is then faster. With `exact_workers` it uses all of them. With
      `fewest_workers` it uses the fewest with which it is as fast.
    * `straight` allows one replica per stage. `compression` is the ratio by which activations are compressed for transfers.
    """

    levels: tuple[Level, ...]
    straight: bool = False
    exact_workers: bool = False
    fewest_workers: bool = False
    compression: float | None = None
    cost_model: CostModel = "code"
    memory_bytes: float | None = None
    memory_model: MemoryModel = "versions"

    @property
    def all_workers(self) -> bool:
        """Return True if a plan must use every worker."""
        return self.exact_workers and not self.fewest_workers

    @property
    def workers(self) -> int:
        """Return the number of workers: the product of the levels' machines."""
        return int(np.prod([level.machines for level in self.levels]))


@dataclass(frozen=True)
class Points:
    """The points of a graph. Each array has an entry per point, for example the totals of all layers before it.

    `closures` are the sets of these layers. `seconds` is the time of both passes of a minibatch and of the optimizer's update;
    `parameters` and `activations` are bytes. `output` is the bytes across the cut, and `exchange_s` the time in which a rank
    sends and receives them, 0 unless the profile has it. `reach[a, b]` is True if a stage can be between points a and b.
    """

    closures: list[int]
    seconds: Array
    forward_s: Array
    parameters: Array
    activations: Array
    output: Array
    exchange_s: Array
    reach: npt.NDArray[np.bool_]

    @property
    def last(self) -> int:
        """Return the point after all layers."""
        return len(self.closures) - 1

    def busy_s(self, begin: Any, end: Any) -> Any:
        """Return the seconds per minibatch of a stage between two points on one unit, with its exchanges at both cuts."""
        return self.seconds[end] - self.seconds[begin] + self.exchange_s[begin] + self.exchange_s[end]


def points_of(graph: LayerGraph, states: States) -> Points:
    """Return the points of a graph's `states`. As in PipeDream, `output` sums the augmented antichain of each state."""
    antichains = Antichains(graph)
    count = len(states.closures)
    reach = np.zeros((count + 1, count + 1), bool)
    reach[0, 1:] = True
    for state, before in enumerate(states.before):
        packed = np.frombuffer(before.to_bytes(count // 8 + 1, "little"), np.uint8)
        reach[1:, state + 1] = np.unpackbits(packed, bitorder="little")[:count]
    return _totals(graph, [0, *states.closures], [0, *map(antichains.augment, states.antichains)], reach)


def chain_points(graph: LayerGraph, closures: list[int]) -> Points:
    """Return the points between given stages. `closures[k]` is the set of layers of the stages 0 to k."""
    antichains = Antichains(graph)
    fronts = [sum(1 << node for node in bits(each) if not graph.successor_sets[node] & each) for each in closures]
    reach = np.triu(np.ones((len(closures) + 1,) * 2, bool), 1)
    return _totals(graph, [0, *closures], [0, *map(antichains.augment, fronts)], reach)


def _totals(graph: LayerGraph, closures: list[int], fronts: list[int], reach: npt.NDArray[np.bool_]) -> Points:
    nodes = graph.nodes
    activation = np.array([node.activation_bytes for node in nodes])
    inside = _members(closures, len(nodes))
    output = _members(fronts, len(nodes)) @ activation
    inner = [0.0, *map(graph.exchange_s, output[1:-1]), 0.0]
    return Points(
        closures,
        inside @ (np.array([node.compute_ms for node in nodes]) / 1000),
        inside @ (np.array([node.forward_ms for node in nodes]) / 1000),
        inside @ np.array([node.parameter_bytes for node in nodes]),
        inside @ activation,
        output,
        np.array(inner),
        reach,
    )


def _members(sets: Iterable[int], size: int) -> Array:
    width = size // 8 + 1
    packed = np.frombuffer(b"".join(each.to_bytes(width, "little") for each in sets), np.uint8).reshape(-1, width)
    return np.unpackbits(packed, axis=1, bitorder="little")[:, :size].astype(float)


class Costs:
    """Computes the costs of stages under `options`. Arguments and results may be numbers, or arrays that broadcast."""

    def __init__(self, options: CostOptions) -> None:
        self.options = options
        self._code = options.cost_model == "code"

    def first(self, level: int, compute: Any, parameters: Any, replicas: Any) -> Any:
        """Return the seconds of a first stage on `level`. `compute` is in seconds, `parameters` in bytes."""
        at = self.options.levels[level]
        if not self._code:
            return np.maximum(compute, 2 * (replicas - 1) * parameters / at.bandwidth) / replicas
        inner = self.options.levels[level - 1].machines if level else 1
        return (compute + 4 * (replicas - 1) * parameters / (at.bandwidth * replicas) / inner) / replicas

    def later(self, level: int, compute: Any, parameters: Any, entering: Any, leaving: Any, replicas: Any) -> Any:
        """Return the seconds of a later stage on `level`: the longest of computing, receiving input and sending output.

        `entering` and `leaving` are the bytes of input and output per minibatch.
        """
        at, ratio = self.options.levels[level], self.options.compression
        if not self._code:
            busy = np.maximum(compute, 2 * (replicas - 1) * parameters / at.bandwidth) / replicas
            return np.maximum(busy, 2 * entering / at.bandwidth / (ratio or 1))
        busy = (compute + 4 * (replicas - 1) * parameters / (at.bandwidth * replicas)) / replicas
        if ratio is None:
            return busy
        return np.maximum(busy, 2 * np.maximum(entering, leaving) / (at.bandwidth * replicas) / ratio)

    def too_large(self, parameters: Any, activations: Any, replicas: int, units: Any) -> Any:
        """Return True if a stage exceeds the memory of a worker, by one of two formulas, the options' memory model.

        `units` is the number of units of this stage and all later ones.

        ``original``  ceil((units after the stage) / replicas) x (activations + parameters), which is 0 for the last stage
        ``versions``  with w = floor((units - 1) / replicas) other minibatches in flight:
                      (w + 1) x (activations + parameters), and one more copy of the parameters for the optimizer's state
        """
        if self.options.memory_bytes is None:
            return np.False_
        if self.options.memory_model == "original":
            held = np.ceil((units - replicas) / replicas) * (activations + parameters)
        else:
            held = ((units - 1) // replicas + 1) * (activations + parameters) + parameters
        return held > self.options.memory_bytes

    def data_parallel(self, seconds: float, parameters: float) -> float:
        """Return the seconds per minibatch if all workers are replicas of one stage."""
        for level, at in enumerate(self.options.levels):
            seconds = float(self.first(level, seconds, parameters, at.machines))
        return seconds


def sent_bytes(parameters: Any, replicas: int) -> Any:
    """Return the bytes per minibatch that a stage's replicas send one another: one ring all-reduce of `parameters` bytes."""
    return 2.0 * (replicas - 1) * parameters / replicas
