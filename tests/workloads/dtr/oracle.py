"""A plain simulator, written from the definitions: objects, sets, recursion, a fresh search for every score."""

import math
from dataclasses import dataclass, field

from iotwin.workloads.dtr.simulator import kernel_codes
from iotwin.workloads.dtr.simulator.graph import Graph, Step
from iotwin.workloads.dtr.simulator.heuristics import Heuristic


class OutOfMemory(Exception):
    pass


class Thrash(Exception):
    pass


@dataclass(eq=False)
class Storage:
    size: int
    state: str = "uncomputed"  # resident, evicted
    banished: bool = False
    tensors: list["Tensor"] = field(default_factory=list)
    locks: int = 0
    references: int = 0
    pinned: bool = False
    accessed: int | float = -math.inf
    dependents: set[int] = field(default_factory=set)  # evicted ones, for banishing
    group: "Group | None" = None

    def cost(self) -> int:
        return sum({tensor.op: tensor.cost for tensor in self.tensors}.values())


@dataclass(eq=False)
class Tensor:
    number: int
    op: int
    cost: int
    size: int
    storage: Storage
    parents: list["Tensor"]
    siblings: list["Tensor"]
    children: list[tuple[int, "Tensor"]] = field(default_factory=list)  # with the operator's number
    defined: bool = False


@dataclass(eq=False)
class Group:
    """A node of the forest of sets."""

    total: int
    parent: "Group | None" = None


class Oracle:
    def __init__(
        self, graph: Graph, heuristic: Heuristic, budget: int, dealloc: str, limit: float, better: bool, draws: list[float]
    ):
        self.graph, self.heuristic, self.budget, self.dealloc, self.limit = graph, heuristic, budget, dealloc, limit
        self.better, self.draws = better, iter(draws)
        self.tensors: dict[int, Tensor] = {}
        self.storages: dict[int, Storage] = {}
        self.pool: list[Storage] = []
        self.clock, self.memory, self.peak = 1, 0, 0
        self.evictions = self.deallocations = self.rematerializations = self.remat_compute = 0
        self.accesses = self.evaluations = 0
        self.victims: list[int] = []  # first tensors of the storages that the budget evicted
        self.pending: list[Storage] = []  # results of the operator that is being computed for the first time
        self.aware: set[Storage] = set()  # storages whose neighbourhoods the original searched since, and found these in

    def run(self) -> dict[str, object]:
        try:
            for step, operand in self.graph.items.tolist():
                self.step(Step(step), operand)
            result = "pass"
        except OutOfMemory:
            result = "oom"
        except Thrash:
            result = "thrash"
        return {
            "result": result, "budget": self.budget, "clock": self.clock, "peak": self.peak, "evictions": self.evictions,
            "deallocations": self.deallocations, "rematerializations": self.rematerializations,
            "remat_compute": self.remat_compute, "accesses": self.accesses, "evaluations": self.evaluations,
        }  # fmt: skip

    def step(self, step: Step, operand: int) -> None:
        if step == Step.COMPUTE:
            self.compute(operand)
        elif step == Step.GET:
            self.tensors[operand].storage.references += 1
        elif step == Step.PIN:
            if not self.tensors[operand].defined:
                self.perform(self.tensors[operand], first=False)
            self.pin(self.tensors[operand].storage)
        elif self.dealloc != "ignore":
            self.release(self.tensors[operand].storage)

    def release(self, storage: Storage) -> None:
        storage.references -= 1
        if storage.references:
            return
        if self.dealloc == "banish":
            self.try_banish(storage)
        elif storage.state == "resident" and not storage.pinned:
            self.deallocations += 1
            self.evict(storage)

    def compute(self, op: int) -> None:
        graph = self.graph
        parents = [self.tensors[t] for t in graph.arguments(op)]
        made = []
        for number in graph.results(op):
            alias = int(graph.tensor_alias[number])
            storage = parents[alias].storage if alias >= 0 else Storage(int(graph.tensor_size[number]))
            if alias < 0 and self.heuristic.cost == kernel_codes.SETS:
                storage.group = Group(0)
            tensor = Tensor(number, op, int(graph.op_cost[op]), int(graph.tensor_size[number]), storage, list(parents), made)
            storage.tensors.append(tensor)
            storage.references += 1
            self.tensors[number] = tensor
            made.append(tensor)
        for parent in parents:
            parent.children += [(op, tensor) for tensor in made]
        for tensor in made:
            for parent in parents:
                if parent.storage is not tensor.storage:
                    parent.storage.dependents.add(tensor.number)
        if self.heuristic.cost == kernel_codes.NEIGHBOURHOOD and not self.better:
            self.pending = [tensor.storage for tensor in made if tensor.storage.state == "uncomputed"]
        self.perform(made[0], first=True)
        self.pending, self.aware = [], set()
        for tensor in made:
            tensor.storage.accessed = self.clock

    def perform(self, tensor: Tensor, first: bool) -> None:
        for parent in tensor.parents:
            if self.dealloc != "banish" or parent.storage.references > 0:
                parent.storage.accessed = self.clock
        missing = [parent for parent in tensor.parents if not parent.defined]
        for parent in tensor.parents:
            if parent.defined:
                self.lock(parent.storage)
        for parent in missing:
            if not parent.defined:
                self.perform(parent, first=False)
            self.lock(parent.storage)
        total = sum(sibling.size for sibling in tensor.siblings)
        while self.memory + total > self.budget:
            if not self.pool:
                raise OutOfMemory
            self.evictions += 1
            victim = self.choose()
            self.victims.append(victim.tensors[0].number)
            self.evict(victim)
        self.execute(tensor, total, first)
        if self.remat_compute > self.limit:
            raise Thrash

    def execute(self, tensor: Tensor, total: int, first: bool) -> None:
        self.clock += tensor.cost
        self.memory += total
        self.peak = max(self.peak, self.memory)
        if not first:
            self.remat_compute += tensor.cost
            self.rematerializations += 1
        order = [sibling for sibling in tensor.siblings if sibling is not tensor] + [tensor]
        self.memory -= sum(other.size for other in order if other.defined)
        fresh = [other for other in order if not other.defined]
        back = [other.storage for other in fresh if other.storage.state != "resident"]
        for other in fresh:
            other.defined = True
            other.storage.state = "resident"
        for storage in back:
            self.pool.append(storage)
            if self.heuristic.cost == kernel_codes.SETS:
                self.find(storage.group)
                self.find(storage.group).total -= storage.cost()
                storage.group = None
        if not first and self.pending:
            for storage in back:
                found = self.sources(storage)
                self.aware = (self.aware - found) | (found & self.sources(self.pending[0]))
        walked = list(tensor.parents) if self.better else tensor.parents  # the original's list changes under its feet
        for parent in walked:
            if parent.storage.banished:
                continue
            self.unlock(parent.storage)
            for other in fresh:
                parent.storage.dependents.discard(other.number)
            if self.dealloc == "banish":
                self.try_banish(parent.storage)

    def lock(self, storage: Storage) -> None:
        if storage.locks == 0:
            self.pool.remove(storage)
        storage.locks += 1

    def unlock(self, storage: Storage) -> None:
        storage.locks -= 1
        if storage.locks == 0:
            self.pool.append(storage)

    def pin(self, storage: Storage) -> None:
        if not storage.pinned:
            self.lock(storage)
            storage.pinned = True

    def evict(self, storage: Storage) -> None:
        storage.state = "evicted"
        self.memory -= storage.size
        if storage in self.pool:
            self.pool.remove(storage)
        for tensor in storage.tensors:
            tensor.defined = False
            for parent in tensor.parents:
                if parent.storage is not storage:
                    parent.storage.dependents.add(tensor.number)
        if storage in self.aware:
            self.aware |= self.sources(storage)
        if self.heuristic.cost == kernel_codes.SETS:
            storage.group = Group(storage.cost())
            for other in self.around(storage):
                left, right = self.find(other.group), self.find(storage.group)
                if left is not right:
                    left.parent = right
                    right.total += left.total

    def try_banish(self, storage: Storage) -> None:
        if storage.references > 0 or storage.dependents:
            return
        if storage.state == "resident":
            storage.locks = 0
            self.deallocations += 1
            self.evict(storage)
        storage.banished = True
        for tensor in storage.tensors:
            for parent in tensor.parents:
                if parent.storage is not storage:
                    parent.storage.dependents.discard(tensor.number)
                    parent.children.remove((tensor.op, tensor))
            for _, child in tensor.children:
                if child.storage is not storage:
                    child.parents.remove(tensor)
                    self.pin(child.storage)

    # ---- scores ----

    def choose(self) -> Storage:
        if self.heuristic.choice == kernel_codes.RANDOM:
            self.evaluations += 1
            self.accesses += 1
            return self.pool[int(next(self.draws) * len(self.pool))]
        best, victim = math.inf, None
        for storage in self.pool:
            value = self.score(storage)
            if value <= best:
                best, victim = value, storage
            if value == 0:
                break
        assert victim is not None
        return victim

    def score(self, storage: Storage) -> float:
        self.evaluations += 1
        self.accesses += 1
        if self.heuristic.choice == kernel_codes.LEAST_RECENT:
            return storage.accessed
        cost, accessed = 1, storage.accessed
        if self.heuristic.cost != kernel_codes.UNIT:
            cost = storage.cost()
        if self.heuristic.cost == kernel_codes.SETS:
            cost += sum(group.total for group in {self.find(other.group): None for other in self.around(storage)})
        if self.heuristic.cost in (kernel_codes.NEIGHBOURHOOD, kernel_codes.ANCESTORS):
            cost += sum(other.cost() for other in self.reach(storage, down=False))
        if self.heuristic.cost == kernel_codes.NEIGHBOURHOOD:
            cost += sum(other.cost() for other in self.reach(storage, down=True))
            cost += sum(other.cost() for other in self.pending if storage in self.aware)
        if self.heuristic.cost == kernel_codes.UNION:
            near = self.reach(storage, True, not self.better) | self.reach(storage, False, not self.better)
            cost += sum(other.cost() for other in near)
            accessed = max([accessed, *(other.accessed for other in near)])
        if not (self.heuristic.by_size or self.heuristic.by_staleness):
            return float(cost)
        denominator = float(storage.size) if self.heuristic.by_size else 1.0
        if self.heuristic.by_staleness:
            denominator *= float(self.clock - accessed)
        return cost / denominator if denominator > 0 else math.inf

    def edges(self, storage: Storage, down: bool) -> list[Storage]:
        """Storages next to one, an entry an edge, in the order of the calls."""
        if down:
            found = sorted(((op, child.number) for t in storage.tensors for op, child in t.children))
            return [self.tensors[number].storage for _, number in found]
        return [parent.storage for tensor in storage.tensors for parent in tensor.parents]

    def reach(self, base: Storage, down: bool, uncomputed: bool = False) -> set[Storage]:
        """Evicted storages that a path of evicted ones leads to; `uncomputed`: those that were never computed count, too."""
        found: set[Storage] = set()
        stack = [base]
        while stack:
            for other in self.edges(stack.pop(), down):
                self.accesses += 1
                if self.away(other, uncomputed) and other not in found:
                    found.add(other)
                    stack.append(other)
        return found

    def away(self, storage: Storage, uncomputed: bool) -> bool:
        return storage.state == "evicted" or (uncomputed and storage.state == "uncomputed")

    def sources(self, base: Storage) -> set[Storage]:
        """The storage and all that lead to it by a path of evicted ones."""
        found, stack = {base}, [base]
        while stack:
            for other in self.edges(stack.pop(), down=False):
                if other not in found:
                    found.add(other)
                    stack += [other] * (other.state == "evicted")
        return found

    def around(self, storage: Storage) -> list[Storage]:
        found: dict[Storage, None] = {}
        for other in self.edges(storage, False) + self.edges(storage, True):
            self.accesses += 1
            if self.away(other, not self.better) and other is not storage:
                found[other] = None
        return list(found)

    def find(self, group: Group | None) -> Group:
        assert group is not None
        self.accesses += 1
        if group.parent is None:
            return group
        group.parent = self.find(group.parent)
        return group.parent
