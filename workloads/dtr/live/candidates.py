"""Scores of the values that can be evicted: which of them has the lowest."""

from time import perf_counter_ns
from typing import Any

import numpy as np

from iotwin.workloads.dtr.live.graph import EVICTABLE, EVICTED, ValueGraph
from iotwin.workloads.dtr.live.neighbourhoods import Neighbourhoods
from iotwin.workloads.dtr.simulator import eviction
from iotwin.workloads.dtr.simulator.heuristics import Heuristic

_SMALL = 0.01  # of the mean size: `ignore_small` does not evict smaller values (DTR's prototype)


class Candidates(ValueGraph):
    """The graph of values, and the rule that chooses among those that can be evicted."""

    def __init__(self, heuristic: Heuristic, *, sampling: bool, ignore_small: bool, seed: int) -> None:
        super().__init__()
        self._heuristic, self._sampling, self._ignore_small = heuristic, sampling, ignore_small
        self._random = np.random.default_rng(seed)
        self._sets = heuristic.cost == eviction.SETS
        self._neighbourhoods = Neighbourhoods(self)
        self.search_ns = 0
        self.cost_ns = 0

    def add(self, value: Any, reference: Any, cost_ns: int, parents: list[int], clock: int) -> None:
        """Add a row, as in the graph."""
        super().add(value, reference, cost_ns, parents, clock)
        self._neighbourhoods.forget(value.slot)

    def remove(self, slot: int) -> None:
        """Remove a row, as in the graph."""
        self._neighbourhoods.forget(slot)
        if self._sets and self.state[slot] == EVICTED:
            self.set_cost[self.set_of[slot]] -= self.cost[slot]
        super().remove(slot)

    def evicted(self, slot: int) -> None:
        """Note that the value of the row left memory. Its set unites with the sets of its evicted neighbours."""
        super().evicted(slot)
        if self._sets:
            own = self._new_set(slot)
            self.set_cost[own] = self.cost[slot]
            for other in {int(self.set_of[row]) for side in self.neighbours(slot) for row in side if self.state[row] == EVICTED}:
                if other != own:
                    self.set_of[self.set_of == other] = own
                    self.set_cost[own] += self.set_cost[other]
                    self.set_cost[other] = 0
        self._neighbourhoods.changed(slot)

    def _new_set(self, slot: int) -> int:
        """Put the row into a separate set, whose number no evicted row has, and return that number."""
        taken = (self.set_of == slot) & (self.state == EVICTED)
        taken[slot] = False
        if taken.any():  # the set that has this row's number goes on under the number of one of its members
            member = int(np.flatnonzero(taken)[0])
            self.set_of[taken] = member
            self.set_cost[member], self.set_cost[slot] = self.set_cost[slot], 0
        self.set_of[slot] = slot
        return slot

    def computed(self, slot: int, locked: bool) -> None:
        """Note that the value of the row is in memory again."""
        if self._sets:
            self.set_cost[self.set_of[slot]] -= self.cost[slot]
        super().computed(slot, locked)
        self._neighbourhoods.changed(slot)

    def recompute_ns(self, slot: int) -> float:
        """Return what computing the value of the row again costs, by the heuristic: with what must be computed before it."""
        found = self._numerators(np.array([slot])) if self._heuristic.cost != eviction.UNIT else self.cost[[slot]]
        return float(found[0])

    def choose(self, clock: int) -> Any:
        """Return the value with the lowest score, or None if none can be evicted."""
        begin = perf_counter_ns()
        pool = np.flatnonzero(self.state == EVICTABLE)
        if self._ignore_small and len(pool):
            large = pool[self.size[pool] >= _SMALL * self.size[pool].mean()]
            pool = large if len(large) else pool
        if self._sampling and len(pool) > 1:
            pool = self._random.choice(pool, max(1, int(len(pool) ** 0.5)), replace=False)
        between = perf_counter_ns()
        value = self.values[self._lowest(pool, clock)]() if len(pool) else None
        self.search_ns += between - begin
        self.cost_ns += perf_counter_ns() - between
        return value

    def _lowest(self, pool: Any, clock: int) -> int:
        rule = self._heuristic
        if rule.choice == eviction.RANDOM:
            return int(self._random.choice(pool))
        if rule.choice == eviction.LEAST_RECENT:
            return int(pool[np.argmin(self.accessed[pool])])
        staleness = np.maximum(clock - self.accessed[pool], 1).astype(float)
        if rule.plug_in is not None:
            rows = zip(self.size[pool], self.cost[pool], staleness, strict=True)
            scores = np.array([rule.plug_in(int(size), int(cost), int(stale), clock) for size, cost, stale in rows])
            return int(pool[np.argmin(scores)])
        scores = self._numerators(pool)
        if rule.cost == eviction.UNION:
            staleness = np.maximum(clock - self._neighbourhoods.latest(pool), 1).astype(float)
        if rule.by_size:
            scores = scores / self.size[pool]
        if rule.by_staleness:
            scores = scores / staleness
        return int(pool[np.argmin(scores)])

    def _numerators(self, pool: Any) -> Any:
        kind = self._heuristic.cost
        if kind == eviction.UNIT:
            return np.ones(len(pool))
        if kind == eviction.LOCAL:
            return self.cost[pool]
        if kind == eviction.SETS:
            return self.cost[pool] + self._sets_beside(pool)
        return self.cost[pool] + self._neighbourhoods.costs(pool, kind)

    def _sets_beside(self, pool: Any) -> Any:
        """For each row of `pool`, sum the costs of the distinct sets of its evicted neighbours."""
        here = np.concatenate([self.parent, self.child])
        there = np.concatenate([self.child, self.parent])
        wanted = (self.state[here] == EVICTABLE) & (self.state[there] == EVICTED)
        rows = len(self.state)
        pairs = np.unique(here[wanted].astype(np.int64) * rows + self.set_of[there[wanted]])
        sums = np.bincount(pairs // rows, weights=self.set_cost[pairs % rows], minlength=rows)
        return sums[pool]
