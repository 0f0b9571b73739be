"""Finds the value with the lowest score among those that can be evicted."""

from time import perf_counter_ns
from typing import Any

import numpy as np

from iotwin.workloads.dtr.live.evicted_sets import EvictedSets
from iotwin.workloads.dtr.live.neighbourhoods import Neighbourhoods
from iotwin.workloads.dtr.live.recomputation_graph import EVICTABLE, ValueGraph
from iotwin.workloads.dtr.simulator import kernel_codes
from iotwin.workloads.dtr.simulator.heuristics import Heuristic

_SMALL = 0.01  # share of the mean size: `ignore_small` does not evict smaller values (DTR's prototype)


class Candidates(ValueGraph):
    """The graph of values, and the rule that chooses among those that can be evicted."""

    def __init__(self, heuristic: Heuristic, *, sampling: bool, ignore_small: bool, seed: int) -> None:
        super().__init__()
        self._heuristic, self._sampling, self._ignore_small = heuristic, sampling, ignore_small
        self._random = np.random.default_rng(seed)
        self._sets = EvictedSets(self) if heuristic.cost == kernel_codes.SETS else None
        self._neighbourhoods = Neighbourhoods(self)
        self.search_ns = 0
        self.cost_ns = 0

    def remove(self, slot: int) -> None:
        """Remove a row, as in the graph."""
        if self._sets is not None:
            self._sets.removed(slot)
        else:
            self._neighbourhoods.forget(slot)
        super().remove(slot)

    def evicted(self, slot: int) -> None:
        """Note that the value of the row left memory."""
        super().evicted(slot)
        if self._sets is not None:
            self._sets.evicted(slot)
        else:
            self._neighbourhoods.changed(slot)

    def computed(self, slot: int, locked: bool) -> None:
        """Note that the value of the row is in memory again."""
        super().computed(slot, locked)
        if self._sets is not None:
            self._sets.computed(slot)
        else:
            self._neighbourhoods.changed(slot)

    def recompute_ns(self, slot: int) -> float:
        """Return the ns that recomputing the row's value and the evicted values that it needs takes, by the heuristic."""
        if self._sets is not None:
            self._sets.settle()
        found = self._numerators(np.array([slot])) if self._heuristic.cost != kernel_codes.UNIT else [self.cost[slot]]
        return float(found[0])

    def choose(self, clock: int) -> Any:
        """Return the value with the lowest score, or None if none can be evicted."""
        value = None
        while value is None:
            begin = perf_counter_ns()
            self.bury()
            pool = np.flatnonzero(self.view("state") == EVICTABLE)
            if not len(pool):
                return None
            if self._ignore_small:
                size = self.view("size")[pool]
                large = pool[size >= _SMALL * size.mean()]
                pool = large if len(large) else pool
            if self._sampling:
                pool = self._random.choice(pool, max(1, int(len(pool) ** 0.5)), replace=False)
            between = perf_counter_ns()
            value = self.values[self._lowest(pool, clock)]()  # None if another thread has freed it meanwhile
            self.search_ns += between - begin
            self.cost_ns += perf_counter_ns() - between
        return value

    def _lowest(self, pool: Any, clock: int) -> int:
        rule = self._heuristic
        if rule.choice == kernel_codes.RANDOM:
            return int(self._random.choice(pool))
        accessed = self.view("accessed")[pool]
        if rule.choice == kernel_codes.LEAST_RECENT:
            return int(pool[accessed.argmin()])
        if rule.plug_in is not None:
            rows = ((self.size[row], self.cost[row], max(clock - self.accessed[row], 1)) for row in pool)
            scores = np.array([rule.plug_in(size, cost, stale, clock) for size, cost, stale in rows])
            return int(pool[scores.argmin()])
        if self._sets is not None:
            self._sets.settle()
        scores = self._numerators(pool)
        if rule.cost == kernel_codes.UNION:
            accessed = self._neighbourhoods.latest(pool)
        if rule.by_size:
            scores = scores / self.view("size")[pool]
        if rule.by_staleness:
            scores = scores / np.maximum(clock - accessed, 1)
        return int(pool[scores.argmin()])

    def _numerators(self, pool: Any) -> Any:
        kind = self._heuristic.cost
        if kind == kernel_codes.UNIT:
            return np.ones(len(pool))
        cost = self.view("cost")[pool]
        if kind == kernel_codes.LOCAL:
            return cost
        return cost + (self.view("charges")[pool] if kind == kernel_codes.SETS else self._neighbourhoods.costs(pool, kind))
