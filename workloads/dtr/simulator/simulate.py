"""Simulates a training step under a memory budget: prepares arrays for the kernel, runs the kernel and returns the outcome."""

import importlib.util
import math
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.workloads.dtr.simulator import eviction, kernel_codes
from iotwin.workloads.dtr.simulator.compiler import PLAIN, has_numba
from iotwin.workloads.dtr.simulator.graph import Graph, Ints
from iotwin.workloads.dtr.simulator.heuristics import HEURISTICS, Heuristic

POLICIES = {"eager": kernel_codes.EAGER, "ignore": kernel_codes.IGNORE, "banish": kernel_codes.BANISH}
RESULTS = {kernel_codes.PASS: "pass", kernel_codes.OUT_OF_MEMORY: "oom", kernel_codes.THRASH: "thrash"}
UNLIMITED = 1 << 62
_FIRST_DRAWS = 1 << 12
_MOST_WORDS = 1 << 26  # most 64-bit words (512 MiB) for the rows of bits; if more are needed, no rows are stored
_SHORT = 4000  # schedules with fewer items run faster in plain Python than numba loads the compiled kernel
Records = np.ndarray[Any, np.dtype[np.void]]


@dataclass(frozen=True)
class SimulationSettings:
    """The settings of a run. `budget` is in bytes (or units).

    A run ends as 'thrash' if it costs more than `overhead_limit` times as much as running every operator once.
    """

    heuristic: Heuristic
    budget: int = UNLIMITED
    dealloc: str = "eager"
    overhead_limit: float = 2.0
    seed: int = 0
    sampling: bool = False
    ignore_small: bool = False
    better: bool = False
    events: bool = False
    plain: bool | None = None  # True: without numba; None: without numba if the schedule is short


@dataclass(frozen=True)
class RunEvents:
    """The events of a run, in order. `kind` is a constant of the kernel; `ident` the index of the tensor or storage, or bytes."""

    kind: Ints
    clock: Ints
    ident: Ints


@dataclass(frozen=True)
class SimulatedRun:
    """The outcome of a run. `clock` is 1 plus the cost of all operators that ran; `evictions` counts those due to the budget."""

    result: str
    budget: int
    clock: int
    peak: int
    evictions: int
    deallocations: int
    rematerializations: int
    remat_compute: int
    accesses: int
    evaluations: int
    cpu_s: float
    events: RunEvents | None = None

    def same(self) -> dict[str, Any]:
        """Return the values that every run with the same settings repeats: all except the CPU time and the events."""
        return {k: v for k, v in asdict(replace(self, events=None)).items() if k not in ("cpu_s", "events")}


@dataclass(frozen=True)
class Baseline:
    """Cost and memory of a step without a budget. `peak`: if unused storages are banished; `eager_peak`: if they are evicted."""

    compute: int
    peak: int
    eager_peak: int
    constant: int
    bottleneck: int
    bottleneck_with_views: int


def _group(keys: Ints, values: Ints, groups: int) -> tuple[Ints, Ints]:
    """Sort `values` by their group (`keys`). Return (start index of each group, sorted values)."""
    start = np.zeros(groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=groups), out=start[1:])
    return start, values[np.argsort(keys, kind="stable")]


def _edges(graph: Graph) -> tuple[Ints, Ints]:
    """Return (sources, targets) of the edges between storages: in call order, from each argument to each result."""
    arguments, results = np.diff(graph.arg_start), np.diff(graph.out_start)
    op = np.repeat(np.arange(graph.operators), arguments * results)
    inside = np.arange(len(op)) - np.repeat(np.cumsum(arguments * results) - arguments * results, arguments * results)
    source = graph.args[graph.arg_start[op] + inside // np.maximum(results[op], 1)]
    target = graph.out_start[op] + inside % np.maximum(results[op], 1)
    return graph.tensor_storage[source], graph.tensor_storage[target]


def _first_slots(graph: Graph) -> Ints:
    storages = graph.tensor_storage[graph.args]
    op = np.repeat(np.arange(graph.operators), np.diff(graph.arg_start))
    _, first, inverse = np.unique(op * max(graph.storages, 1) + storages, return_index=True, return_inverse=True)
    return np.asarray(first[inverse] - graph.arg_start[op], dtype=np.int64)


def _records(name: str, length: int, **columns: Ints) -> Records:
    """Return an array of `length` records of the kernel, with the fields FIELDS[name]. Fields that `columns` lacks are zero."""
    records = np.zeros(length, dtype=[(field, np.int64) for field in eviction.FIELDS[name]])
    for field, values in columns.items():
        records[field][: len(values)] = values
    return records


def _model(graph: Graph) -> dict[str, Any]:
    """Return the kernel's initial arrays for a graph, except those whose length depends on the settings."""
    sources, targets = _edges(graph)
    view_start, views = _group(graph.tensor_storage, np.arange(graph.tensors), graph.storages)
    parent_start, parents = _group(targets, sources, graph.storages)
    child_start, children = _group(sources, targets, graph.storages)
    total = np.zeros(graph.operators, dtype=np.int64)
    np.add.at(total, graph.tensor_op, graph.tensor_size)
    slots = np.diff(graph.arg_start)[graph.tensor_op]
    storages = _records(
        "storages",
        graph.storages + 1,
        size=graph.storage_size,
        view_start=view_start[:-1],
        parent_start=parent_start[:-1] + len(views),
        child_start=child_start[:-1] + len(views) + len(parents),
        near_start=parent_start[:-1] + child_start[:-1],
    )
    storages["status"], storages["accessed"], storages["after"], storages["node"] = eviction.UNCOMPUTED, eviction.NEVER, -1, -1
    # The list of evictable storages is empty: its head, the last record, links to itself.
    storages["before"][-1] = storages["after"][-1] = graph.storages
    ends = {"arg_start": graph.arg_start[:-1], "arg_end": graph.arg_start[1:], "out_start": graph.out_start[:-1]}
    run = _records("run", 1)
    run["clock"] = 1
    return {
        "run": run, "storages": storages,
        "tensors": _records(
            "tensors", graph.tensors + 1, op=graph.tensor_op, storage=graph.tensor_storage, size=graph.tensor_size,
            dependent_start=np.cumsum(slots) - slots,
        ),
        "ops": _records("ops", graph.operators + 1, cost=graph.op_cost, total=total, out_end=graph.out_start[1:], **ends),
        "slots": _records("slots", len(graph.args) + 1, argument=graph.args, first=_first_slots(graph)),
        "items": _records("items", len(graph.items), step=graph.items[:, 0], operand=graph.items[:, 1]),
        "links": np.concatenate([views, parents, children, np.zeros(1, dtype=np.int64)]),
        "flags": int(slots.sum()), "near": len(parents) + len(children), "ordered": bool((sources <= targets).all()),
        "aux": len(graph.args) + 1 + int(2 * np.diff(graph.out_start).max(initial=0) + np.diff(graph.arg_start).max(initial=0)),
    }  # fmt: skip


def _uniform(seed: int, count: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def _objects(records: Records) -> list[Any]:
    """Return the records of an array as a list of objects, which plain Python reads faster."""
    names = records.dtype.names or ()
    kind = type("Record", (), {"__slots__": names})
    made = []
    for values in records.tolist():
        item = kind()
        for name, value in zip(names, values, strict=True):
            setattr(item, name, value)
        made.append(item)
    return made


def _state(graph: Graph, settings: SimulationSettings, rooms: dict[str, int]) -> eviction.KernelState:
    """Return the kernel's initial state. `rooms`: lengths of the arrays that may have to grow. Unused arrays have one element."""
    model = graph.prepared or _model(graph)
    graph.prepared.update(model)
    nodes = rooms["nodes"] if settings.heuristic.cost == kernel_codes.SETS else 1
    arrays = {name: model[name].copy() for name in ("run", "storages", "tensors", "ops")}
    arrays |= {name: model[name] for name in ("slots", "items", "links")}
    searching = settings.heuristic.cost in (kernel_codes.NEIGHBOURHOOD, kernel_codes.ANCESTORS)
    words = -(-graph.storages // eviction.WORD) if searching and model["ordered"] else 0
    words = 0 if 2 * len(model["storages"]) * words > _MOST_WORDS else min(words, 1) if settings.plain else words
    arrays["run"]["words"], arrays["run"]["word"] = words, graph.storages if settings.plain else eviction.WORD
    arrays["reach"] = _records("reach", 2 * len(model["storages"]) if searching else 1)
    arrays["bits"] = np.zeros(2 * len(model["storages"]) * words + 1, dtype=np.int64)
    arrays["near"] = np.zeros(model["near"] + 1 if settings.heuristic.cost == kernel_codes.SETS else 1, dtype=np.int64)
    arrays |= {"nodes": _records("nodes", nodes), "events": _records("events", rooms["events"])}
    arrays["dependent"] = np.zeros(model["flags"] * (settings.dealloc == "banish") + 1, dtype=np.int64)
    arrays["aux"] = np.zeros(model["aux"], dtype=np.int64)
    arrays["draws"] = _uniform(settings.seed, rooms["draws"])
    if settings.plain:
        arrays = {name: _objects(array) if array.dtype.names else array.tolist() for name, array in arrays.items()}
    return eviction.KernelState(**arrays)


def _rules(settings: SimulationSettings, limit: int) -> eviction.Rules:
    heuristic = settings.heuristic
    return eviction.Rules(
        settings.budget, limit, POLICIES[settings.dealloc], heuristic.choice, heuristic.cost, int(heuristic.by_size),
        int(heuristic.by_staleness), int(settings.sampling), int(settings.ignore_small), int(settings.events),
        int(not settings.better),
    )  # fmt: skip


@cache
def load_kernel(plain: bool) -> types.ModuleType:
    """Return the module `eviction`, compiled by numba if it is installed. If `plain`, return the same module in plain Python."""
    return eviction if not plain or not has_numba() else _fresh_plain_kernel()


def _fresh_plain_kernel() -> types.ModuleType:
    """Return a new copy of the module `eviction` in plain Python. The caller may replace its functions."""
    spec = importlib.util.spec_from_file_location(eviction.__name__ + PLAIN, eviction.__file__)
    if spec is None or spec.loader is None:
        raise ImportError(f"{eviction.__file__} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _with_plug_in(name: str, score: Callable[[int, int, int, int], float]) -> types.ModuleType:
    """Return a kernel in plain Python that scores storages by the user's function `score`, called `name` in errors."""
    plugged = _fresh_plain_kernel()

    def plug_in(s: eviction.KernelState, rules: eviction.Rules, storage: int) -> float:
        s.run[0].evaluations += 1
        s.run[0].accesses += 1
        clock, one = s.run[0].clock, s.storages[storage]
        try:
            return float(score(one.size, one.cost, clock - one.accessed, clock))
        except Exception as error:  # the user's function may raise anything
            raise IotwinError(f"heuristic '{name}' failed for (size, cost, staleness, clock): {error}") from None

    plugged.score = plug_in  # type: ignore[attr-defined]
    return plugged


def simulate(graph: Graph, settings: SimulationSettings, compute: int | None = None) -> SimulatedRun:
    """Run a graph's schedule under a budget and return the outcome.

    The outcome's `result` is 'oom' if an operator does not fit and nothing can be evicted. It is 'thrash' if rematerialisation
    costs more than (overhead_limit - 1) times `compute`. By default, `compute` is the cost of running every operator once.
    """
    short = len(graph.items) < _SHORT if settings.plain is None else settings.plain
    plain = short or not has_numba() or settings.heuristic.plug_in is not None
    settings = replace(settings, plain=plain)
    module = load_kernel(plain)
    if settings.heuristic.plug_in is not None:
        module = _with_plug_in(settings.heuristic.name, settings.heuristic.plug_in)
    if settings.dealloc == "ignore":
        graph = graph.without_releases
    compute = graph.compute_ns() if compute is None else compute
    limit = UNLIMITED if math.isinf(settings.overhead_limit) else math.floor(compute * (settings.overhead_limit - 1))
    rules = _rules(settings, limit)
    rooms = {
        "nodes": 8 * graph.storages + 64,
        "events": 16 * (len(graph.items) + len(graph.args)) * settings.events,
        "draws": _FIRST_DRAWS if settings.heuristic.random or settings.sampling else 1,
    }
    begin = time.process_time()
    while True:
        state = _state(graph, settings, rooms)
        status = int(module.run(state, rules))
        if status != kernel_codes.GROW:
            break
        rooms = {name: 4 * room for name, room in rooms.items()}
    return _outcome(settings, state, status, time.process_time() - begin)


def _outcome(settings: SimulationSettings, state: eviction.KernelState, status: int, cpu_s: float) -> SimulatedRun:
    run = state.run[0]
    count = {name: int(getattr(run, name) if settings.plain else run[name]) for name in eviction.FIELDS["run"]}
    events = None
    if settings.events:
        rows = state.events[: count["events"]]
        columns = ([getattr(row, name) for row in rows] if settings.plain else rows[name] for name in eviction.FIELDS["events"])
        events = RunEvents(*(np.asarray(column, dtype=np.int64) for column in columns))
    return SimulatedRun(
        RESULTS[status], settings.budget, count["clock"], count["peak"], count["evictions"], count["deallocations"],
        count["recomputed"], count["recompute_cost"], count["accesses"], count["evaluations"], cpu_s, events,
    )  # fmt: skip


def baseline(graph: Graph, plain: bool | None = None) -> Baseline:
    """Return the cost and memory of a step without a budget. Budget ratios elsewhere are shares of the returned `peak`."""
    local = HEURISTICS["LRU"]
    banished = simulate(graph, SimulationSettings(local, dealloc="banish", plain=plain))
    eager = simulate(graph, SimulationSettings(local, plain=plain))
    return Baseline(
        graph.compute_ns(),
        banished.peak,
        eager.peak,
        graph.constant_bytes(),
        graph.bottleneck_bytes(),
        graph.bottleneck_bytes(True),
    )


def lower_bound(graph: Graph) -> int:
    """Return a lower bound, in bytes, of any run's memory: the most that one operator and all earlier constants need together."""
    made = np.zeros(graph.operators, dtype=np.int64)
    np.add.at(made, graph.tensor_op, graph.tensor_size)
    constants = np.cumsum(np.where(graph.op_constant == 1, 1, 0) * made)
    constant_storage = graph.op_constant[graph.tensor_op[graph.storage_root]] == 1
    most = 0
    for op in range(graph.operators):
        read = {int(s) for s in graph.tensor_storage[graph.arguments(op)]}
        needed = sum(int(graph.storage_size[s]) for s in read if not constant_storage[s])
        own = 0 if graph.op_constant[op] else sum(int(graph.tensor_size[t]) for t in graph.results(op))
        most = max(most, int(constants[op]) + needed + own)
    return most


def least_budget(graph: Graph, settings: SimulationSettings, base: Baseline, tolerance: float = 0.001) -> int | None:
    """Return the smallest budget that passes, to within `tolerance` times the peak; None if even the eager peak does not pass.

    The search is a bisection. Outcomes are not monotonic in the budget, so a smaller budget may pass by chance.
    """
    low, high = lower_bound(graph) - 1, base.eager_peak
    probe = replace(settings, events=False)
    if simulate(graph, replace(probe, budget=high), base.compute).result != "pass":
        return None
    while high - low > max(1, base.peak * tolerance):
        middle = (low + high) // 2
        passed = simulate(graph, replace(probe, budget=middle), base.compute).result == "pass"
        low, high = (low, middle) if passed else (middle, high)
    return high
