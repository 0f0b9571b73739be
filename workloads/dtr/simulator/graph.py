"""The operations of a model's training step as arrays: operators, tensors, storages and the schedule."""

from array import array
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Step(IntEnum):
    """The kind of an item in a schedule. The operand of COMPUTE is an operator; the operand of all other kinds is a tensor."""

    COMPUTE = 0
    GET = 1  # add an external reference
    PIN = 2  # recompute the tensor if it is evicted, and never evict it from now on
    RELEASE = 3  # remove an external reference


@dataclass(frozen=True)
class Graph:
    """A training step: its operators in the order of their calls, its tensors and storages, and its schedule.

    Arrays named `op_...` have an entry per operator, `tensor_...` per tensor, `storage_...` per storage. The arguments of
    operator `o` are `args[arg_start[o]:arg_start[o + 1]]`. Its results are the tensors from `out_start[o]` to `out_start[o + 1]`
    - 1. A view has `tensor_size` 0, and its `tensor_alias` is the index of the argument whose storage it shares. Other tensors
    have `tensor_alias` -1. Costs are in ns (or units), sizes in bytes (or units).
    """

    op_names: list[str]
    op_cost: Ints
    op_backward: Ints
    op_constant: Ints
    arg_start: Ints
    args: Ints
    out_start: Ints
    tensor_names: list[str]
    tensor_op: Ints
    tensor_size: Ints
    tensor_alias: Ints
    tensor_storage: Ints
    storage_size: Ints
    storage_root: Ints
    items: Ints  # the schedule, (n, 2): Step, operand
    output_bytes: int = 0  # total bytes of the tensors that the step leaves alive; 0 if the schedule pins them in memory instead

    @property
    def operators(self) -> int:
        """Number of operators. Each constant counts as an operator."""
        return len(self.op_cost)

    @property
    def tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensor_op)

    @property
    def storages(self) -> int:
        """Number of storages."""
        return len(self.storage_size)

    def arguments(self, op: int) -> list[int]:
        """Return the tensors that operator `op` reads, in the order of its arguments; a tensor may occur several times."""
        return [int(t) for t in self.args[self.arg_start[op] : self.arg_start[op + 1]]]

    def results(self, op: int) -> range:
        """Return the tensors that operator `op` computes."""
        return range(int(self.out_start[op]), int(self.out_start[op + 1]))

    def compute_ns(self) -> int:
        """Return the cost of running every operator once."""
        return int(self.op_cost.sum())

    def constant_bytes(self) -> int:
        """Return the total bytes of all constants."""
        return int(self.tensor_size[self.op_constant[self.tensor_op] == 1].sum()) if self.tensors else 0

    def bottleneck_bytes(self, with_views: bool = False) -> int:
        """Return the most memory, in bytes, that a single operator needs for its results and arguments.

        As in the original simulator, a view counts 0 bytes, and a repeated argument counts twice. With `with_views`, the storage
        of each argument counts once instead.
        """
        return max((self._working_set(op, with_views) for op in range(self.operators)), default=0)

    def _working_set(self, op: int, with_views: bool) -> int:
        made = sum(int(self.tensor_size[t]) for t in self.results(op))
        if with_views:
            return made + sum(int(self.storage_size[s]) for s in {int(self.tensor_storage[t]) for t in self.arguments(op)})
        return made + sum(int(self.tensor_size[t]) for t in self.arguments(op))

    @cached_property
    def without_releases(self) -> "Graph":
        """The same graph, with a schedule that never releases a reference."""
        return replace(self, items=self.items[self.items[:, 0] != Step.RELEASE])

    @cached_property
    def prepared(self) -> dict[str, Any]:
        """A cache in which the simulator stores arrays that it derives from the graph, by name."""
        return {}


def _numbers() -> "array[int]":
    return array("q")


@dataclass
class GraphBuilder:
    """Builds a Graph, operator by operator. `add`, `get`, `pin` and `release` also append an item to the graph's schedule."""

    op_names: list[str] = field(default_factory=list)
    tensor_names: list[str] = field(default_factory=list)
    output_bytes: int = 0
    _op: "array[int]" = field(default_factory=_numbers)  # cost, backward, constant
    _arg_start: "array[int]" = field(default_factory=lambda: array("q", [0]))
    _args: "array[int]" = field(default_factory=_numbers)
    _out_start: "array[int]" = field(default_factory=lambda: array("q", [0]))
    _tensor: "array[int]" = field(default_factory=_numbers)  # op, size, alias, storage
    _storage: "array[int]" = field(default_factory=_numbers)  # size, root
    _items: "array[int]" = field(default_factory=_numbers)

    def storage(self, tensor: int) -> int:
        """Return the storage of a tensor."""
        return self._tensor[4 * tensor + 3]

    def storage_size(self, tensor: int) -> int:
        """Return the bytes of a tensor's storage."""
        return self._storage[2 * self.storage(tensor)]

    def add(
        self,
        name: str,
        cost: int,
        args: list[int],
        results: list[tuple[str, int, int]],
        backward: bool = False,
        constant: bool = False,
    ) -> range:
        """Add an operator and return the indices of its result tensors. `args` are indices of tensors.

        `results` lists (name, size, index of the argument whose storage the result shares, or -1).
        """
        op = len(self.op_names)
        self.op_names.append(name)
        self._op.extend((cost, backward, constant))
        self._args.extend(args)
        self._arg_start.append(len(self._args))
        first = len(self.tensor_names)
        for result, size, alias in results:
            if alias < 0:
                storage = len(self._storage) // 2
                self._storage.extend((size, len(self.tensor_names)))
            else:
                storage, size = self.storage(args[alias]), 0
            self._tensor.extend((op, size, alias, storage))
            self.tensor_names.append(result)
        self._out_start.append(len(self.tensor_names))
        self._items.extend((Step.COMPUTE, op))
        return range(first, len(self.tensor_names))

    def get(self, tensor: int) -> None:
        """Add an external reference to a tensor."""
        self._items.extend((Step.GET, tensor))

    def pin(self, tensor: int) -> None:
        """Keep the tensor in memory from now on."""
        self._items.extend((Step.PIN, tensor))

    def release(self, tensor: int) -> None:
        """Remove an external reference from a tensor."""
        self._items.extend((Step.RELEASE, tensor))

    def build(self, items: Ints | None = None) -> Graph:
        """Return the graph that was built. Its schedule is `items`; if None, the items that the other methods appended."""

        def columns(values: "array[int]", width: int) -> Ints:
            return np.array(values, dtype=np.int64).reshape(-1, width)

        cost, backward, constant = columns(self._op, 3).T.copy()
        tensor_op, tensor_size, alias, storage = columns(self._tensor, 4).T.copy()
        storage_size, root = columns(self._storage, 2).T.copy()
        arg_start, args, out_start = (columns(v, 1)[:, 0] for v in (self._arg_start, self._args, self._out_start))
        return Graph(
            self.op_names, cost, backward, constant, arg_start, args, out_start, self.tensor_names, tensor_op, tensor_size, alias,
            storage, storage_size, root, columns(self._items, 2) if items is None else items, self.output_bytes,
        )  # fmt: skip
