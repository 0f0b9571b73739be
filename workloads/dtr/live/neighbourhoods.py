"""The evicted values that can be reached from a value through evicted values only: the numerators of h_DTR, MSPS and DTRUnopt."""

from typing import Any

import numpy as np

from iotwin.workloads.dtr.live.recomputation_graph import EVICTED, ValueGraph
from iotwin.workloads.dtr.simulator import kernel_codes

_UP, _DOWN = 0, 1


class Neighbourhoods:
    """Searches a graph of values. The result of a search is cached until one of the values that the search met changes."""

    def __init__(self, graph: ValueGraph) -> None:
        self._graph = graph
        self._found: tuple[dict[int, set[int]], dict[int, set[int]]] = ({}, {})

    def costs(self, rows: Any, kind: int) -> Any:
        """Return, for each row, the total cost of the evicted values that it reaches on the sides of the numerator `kind`."""
        cost = self._graph.cost
        if kind == kernel_codes.ANCESTORS:
            return np.array([sum(cost[other] for other in self._search(row, _UP)) for row in rows.tolist()])
        if kind == kernel_codes.UNION:
            return np.array([sum(cost[other] for other in self._both(row)) for row in rows.tolist()])
        return np.array([sum(cost[other] for side in (_UP, _DOWN) for other in self._search(row, side)) for row in rows.tolist()])

    def latest(self, rows: Any) -> Any:
        """Return, for each row, the latest access to its value or to a value that it reaches on either side."""
        accessed = self._graph.accessed
        return np.array([max(accessed[other] for other in (row, *self._both(row))) for row in rows.tolist()])

    def _neighbours(self, row: int, side: int) -> list[int]:
        return self._graph.children[row] if side else self._graph.parents[row]

    def _both(self, row: int) -> set[int]:
        return self._search(row, _UP) | self._search(row, _DOWN)

    def _search(self, row: int, side: int) -> set[int]:
        found = self._found[side].get(row)
        if found is None:
            found, waiting = set(), [row]
            while waiting:
                for other in self._neighbours(waiting.pop(), side):
                    if self._graph.state[other] == EVICTED and other not in found:
                        found.add(other)
                        waiting.append(other)
            self._found[side][row] = found
        return found

    def changed(self, row: int) -> None:
        """Forget the searches that met `row`, since its value was evicted or came back into memory."""
        for side in (_UP, _DOWN):
            if self._found[side]:
                # A search upwards meets the row if it began at one of the row's descendants, and vice versa.
                seen, waiting = {row}, [row]
                while waiting:
                    for other in self._neighbours(waiting.pop(), 1 - side):
                        if other not in seen:
                            seen.add(other)
                            self._found[side].pop(other, None)
                            if self._graph.state[other] == EVICTED:
                                waiting.append(other)

    def forget(self, row: int) -> None:
        """Forget the searches from `row` and those that met it, since the row no longer has a value."""
        for side in (_UP, _DOWN):
            self._found[side].pop(row, None)
        self.changed(row)
