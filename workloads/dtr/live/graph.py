"""The values that can be computed again, as rows of a graph: which are in memory, and what each was computed from."""

from typing import Any

import numpy as np

NONE, EVICTABLE, LOCKED, EVICTED = 0, 1, 2, 3  # what a row stands for: nothing, or a value of this state


class ValueGraph:
    """A row per value that can be computed again, and an edge from each value to those computed from it.

    Columns stay short, as scores are computed from whole columns: free rows and edges at the front are used first.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []  # a weak reference to the value of each row
        self.state = np.zeros(0, np.uint8)
        self.size = np.zeros(0)  # bytes
        self.cost = np.zeros(0)  # ns of its operation
        self.accessed = np.zeros(0, np.int64)  # the runtime's clock at the latest access
        # Sets of evicted values that edges connect (the numerator SETS): the set of each row, and the total cost of each set.
        self.set_of = np.zeros(0, np.int32)
        self.set_cost = np.zeros(0)
        self.parent = np.zeros(0, np.int32)  # the rows at both ends of each edge; 0: a free edge
        self.child = np.zeros(0, np.int32)
        self.evictable_bytes = 0
        self._edges_of: list[list[int]] = []
        self._free: list[int] = []
        self._free_edges: list[int] = []
        self._grow()
        self._free.pop()  # row 0 stands for values that cannot be evicted

    def _grow(self) -> None:
        old = len(self.state)
        new = max(_FIRST_LENGTH, 2 * old)
        for name in ("state", "size", "cost", "accessed", "set_of", "set_cost"):
            setattr(self, name, _longer(getattr(self, name), new))
        self.values += [None] * (new - old)
        self._edges_of += [[] for _ in range(new - old)]
        self._free += range(new - 1, old - 1, -1)

    def add(self, value: Any, reference: Any, cost_ns: int, parents: list[int], clock: int) -> None:
        """Add a row for a value in memory that an operation of `cost_ns` computed from the values of the rows `parents`."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        value.slot, value.graph = slot, self
        self.values[slot] = reference
        self.state[slot], self.size[slot] = EVICTABLE, value.bytes
        self.evictable_bytes += value.bytes
        self.cost[slot], self.accessed[slot] = cost_ns, clock
        for parent in parents:
            self._connect(parent, slot)

    def _connect(self, parent: int, child: int) -> None:
        if not self._free_edges:
            old = len(self.parent)
            new = max(_FIRST_LENGTH, 2 * old)
            self.parent, self.child = _longer(self.parent, new), _longer(self.child, new)
            self._free_edges += range(new - 1, old - 1, -1)
        edge = self._free_edges.pop()
        self.parent[edge], self.child[edge] = parent, child
        self._edges_of[parent].append(edge)
        self._edges_of[child].append(edge)

    def remove(self, slot: int) -> None:
        """Remove the row of a value that no longer exists, or can no longer be computed again."""
        if self.state[slot] == EVICTABLE:
            self.evictable_bytes -= int(self.size[slot])
        for edge in self._edges_of[slot]:
            other = self.parent[edge] if self.child[edge] == slot else self.child[edge]
            if other != slot:
                self._edges_of[other].remove(edge)
            self.parent[edge] = self.child[edge] = 0
            self._free_edges.append(edge)
        self._edges_of[slot] = []
        self.state[slot], self.set_of[slot] = NONE, 0
        self.values[slot] = None
        self._free.append(slot)

    def lock(self, slot: int) -> None:
        """Note that the value of the row, which is in memory, must stay there."""
        self.state[slot] = LOCKED
        self.evictable_bytes -= int(self.size[slot])

    def unlock(self, slot: int) -> None:
        """Note that the value of the row can be evicted again."""
        self.state[slot] = EVICTABLE
        self.evictable_bytes += int(self.size[slot])

    def neighbours(self, slot: int) -> tuple[list[int], list[int]]:
        """Return the rows of the values from which the row's value was computed, and of those computed from it."""
        edges = self._edges_of[slot]
        up = [int(self.parent[edge]) for edge in edges if self.child[edge] == slot]
        return up, [int(self.child[edge]) for edge in edges if self.parent[edge] == slot]

    def evicted(self, slot: int) -> None:
        """Note that the value of the row left memory."""
        if self.state[slot] == EVICTABLE:
            self.evictable_bytes -= int(self.size[slot])
        self.state[slot] = EVICTED

    def computed(self, slot: int, locked: bool) -> None:
        """Note that the value of the row is in memory again."""
        self.state[slot] = LOCKED
        if not locked:
            self.unlock(slot)


_FIRST_LENGTH = 64  # of columns


def _longer(column: Any, length: int) -> Any:
    return np.concatenate([column, np.zeros(length - len(column), column.dtype)])
