"""A graph of the values that can be computed again: which of them are in memory, and from which others each was computed."""

from array import array
from collections import deque
from typing import Any

import numpy as np

NONE, EVICTABLE, LOCKED, EVICTED = 0, 1, 2, 3  # the state of a row: unused, or that of its value


class ValueGraph:
    """A row per value that can be computed again, and an edge from each value to those computed from it.

    Columns are Python's arrays, whose single elements are read and written faster than numpy's. `view` returns a column as a
    numpy array. Scores are computed from whole columns, so columns must stay short: new values take free rows at the front.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []  # a weak reference to the value of each row
        self.state = array("b")
        self.size = array("q")  # bytes
        self.cost = array("q")  # ns of the operation that computes the value
        self.charges = array("q")  # ns of evicted values, which the score adds to the value's own cost (`EvictedSets`)
        self.accessed = array("q")  # the runtime's clock at the latest access
        self.parents: list[list[int]] = []  # rows of the values from which the row's value was computed
        self.children: list[list[int]] = []  # rows of the values that were computed from the row's value
        self.evictable_bytes = 0
        self.dead: deque[int] = deque()  # rows of values that no longer exist
        self._free: list[int] = []
        self._views: dict[str, Any] = {}
        self._grow()
        self._free.pop()  # row 0 stands for values that cannot be evicted

    def _grow(self) -> None:
        old = len(self.state)
        new = max(_FIRST_LENGTH, 2 * old)
        for name in ("state", "size", "cost", "charges", "accessed"):
            column = getattr(self, name)
            longer = array(column.typecode, column.tobytes() + bytes((new - old) * column.itemsize))
            setattr(self, name, longer)
            self._views[name] = np.frombuffer(longer, longer.typecode)
        self.values += [None] * (new - old)
        for rows in (self.parents, self.children):
            rows += [[] for _ in range(new - old)]
        self._free += range(new - 1, old - 1, -1)

    def view(self, name: str) -> Any:
        """Return a column as an array of numpy that shares its memory, until the graph grows."""
        return self._views[name]

    def add(self, value: Any, reference: Any, cost_ns: int, parents: list[int], clock: int) -> None:
        """Add a row for a value in memory that an operation of `cost_ns` computed from the values of the rows `parents`."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        value.slot, value.graph = slot, self
        self.values[slot] = reference
        self.state[slot], self.size[slot] = EVICTABLE, value.bytes
        self.evictable_bytes += value.bytes
        self.cost[slot], self.accessed[slot], self.charges[slot] = cost_ns, clock, 0
        self.parents[slot] = parents.copy()  # each row has its own list, and all results of an operation the same `parents`
        for parent in parents:
            self.children[parent].append(slot)

    def remove(self, slot: int) -> None:
        """Remove the row of a value that no longer exists, or can no longer be computed again."""
        if self.state[slot] == EVICTABLE:
            self.evictable_bytes -= self.size[slot]
        for parent in self.parents[slot]:
            self.children[parent].remove(slot)
        for child in self.children[slot]:
            self.parents[child].remove(slot)
        self.parents[slot], self.children[slot] = [], []
        self.state[slot] = NONE
        self.values[slot] = None
        self._free.append(slot)

    def bury(self) -> None:
        """Remove the rows of values that no longer exist."""
        while self.dead:
            self.remove(self.dead.popleft())

    def lock(self, slot: int) -> None:
        """Note that the value of the row, which is in memory, must stay there."""
        self.state[slot] = LOCKED
        self.evictable_bytes -= self.size[slot]

    def unlock(self, slot: int) -> None:
        """Note that the value of the row can be evicted again."""
        self.state[slot] = EVICTABLE
        self.evictable_bytes += self.size[slot]

    def evicted(self, slot: int) -> None:
        """Note that the value of the row left memory."""
        if self.state[slot] == EVICTABLE:
            self.evictable_bytes -= self.size[slot]
        self.state[slot] = EVICTED

    def computed(self, slot: int, locked: bool) -> None:
        """Note that the value of the row is in memory again."""
        self.state[slot] = LOCKED
        if not locked:
            self.unlock(slot)


_FIRST_LENGTH = 64  # length of columns at first
