"""Sets of evicted values that edges of the graph connect, for the heuristic h_eq: the numerator SETS of the scores.

When a value is evicted, it and the sets of its evicted neighbours become one set. When it is computed again, it leaves its set;
the other values of the set remain together. A value in memory is charged for each set that contains one of its neighbours: the
set's cost is part of the value's entry in `ValueGraph.charges`. Each change updates the charges, so a choice needs no search.
"""

from iotwin.workloads.dtr.live.recomputation_graph import ValueGraph


class _EvictedSet:
    """Rows of evicted values, the rows that are charged for them, and what they cost together."""

    __slots__ = ("charged", "cost", "rows")

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self.charged: set[int] = set()
        self.cost = 0


class EvictedSets:
    """Maintains the sets of a graph. Until the first call of `settle`, no sets are made, and evictions are only noted."""

    def __init__(self, graph: ValueGraph) -> None:
        self._graph = graph
        self._set_of: dict[int, _EvictedSet] = {}
        self._charged_for: dict[int, set[_EvictedSet]] = {}  # by row: the sets that the row is charged for
        self._unsettled: dict[int, None] = {}
        self._needed = False

    def evicted(self, row: int) -> None:
        """Note that the value of the row left memory."""
        if self._needed:
            self._unite(row)
        else:
            self._unsettled[row] = None

    def computed(self, row: int) -> None:
        """Note that the value of the row is in memory again."""
        if row in self._unsettled:
            del self._unsettled[row]
            return
        self._leave(row)
        for other in self._neighbours(row):
            found = self._set_of.get(other)
            if found is not None:
                self._charge(row, found)

    def removed(self, row: int) -> None:
        """Note that the row is about to be removed from the graph."""
        self._unsettled.pop(row, None)
        if row in self._set_of:
            self._leave(row)
        for found in self._charged_for.pop(row, ()):
            found.charged.discard(row)

    def settle(self) -> None:
        """Make the sets of the values that have left memory so far. From now on, each eviction updates the sets at once."""
        for row in self._unsettled:
            self._unite(row)
        self._unsettled.clear()
        self._needed = True

    def _neighbours(self, row: int) -> list[int]:
        return [*self._graph.parents[row], *self._graph.children[row]]

    def _unite(self, row: int) -> None:
        graph = self._graph
        largest, *others = sorted(self._charged_for.pop(row, ()), key=lambda one: -len(one.charged)) or [_EvictedSet()]
        largest.charged.discard(row)
        for other in others:
            other.charged.discard(row)
            self._merge(largest, other)
        graph.charges[row] = 0
        largest.rows.add(row)
        self._set_of[row] = largest
        self._raise(largest.charged, graph.cost[row])
        largest.cost += graph.cost[row]
        for neighbour in self._neighbours(row):
            if neighbour not in self._set_of:
                self._charge(neighbour, largest)

    def _merge(self, one: _EvictedSet, other: _EvictedSet) -> None:
        """Add the set `other` to the set `one`. For a row that was charged for both, the sum of the charges does not change."""
        self._raise(one.charged - other.charged, other.cost)
        for row in other.charged:
            self._charged_for[row].discard(other)
            self._charge(row, one)
        one.cost += other.cost
        one.rows |= other.rows
        for row in other.rows:
            self._set_of[row] = one

    def _raise(self, rows: set[int], cost: int) -> None:
        charges = self._graph.charges
        for row in rows:
            charges[row] += cost

    def _charge(self, row: int, found: _EvictedSet) -> None:
        """Charge a row for the set `found`, unless this was done before."""
        if row not in found.charged:
            found.charged.add(row)
            self._charged_for.setdefault(row, set()).add(found)
            self._graph.charges[row] += found.cost

    def _leave(self, row: int) -> None:
        """Remove a row from its set. Rows that now have no neighbour in the set are no longer charged for it."""
        found, cost = self._set_of.pop(row), self._graph.cost[row]
        found.rows.discard(row)
        found.cost -= cost
        self._raise(found.charged, -cost)
        for other in self._neighbours(row) if found.rows else list(found.charged):
            if other in found.charged and not any(one in found.rows for one in self._neighbours(other)):
                found.charged.discard(other)
                self._charged_for[other].discard(found)
                self._graph.charges[other] -= found.cost
