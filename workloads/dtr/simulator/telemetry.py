"""Evaluates the events of a simulated run: tables, memory over time, and a replay that checks the run."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.common.files import make_folder, write_whole
from iotwin.workloads.dtr.simulator import kernel_codes
from iotwin.workloads.dtr.simulator.graph import Graph
from iotwin.workloads.dtr.simulator.simulate import SimulatedRun

KINDS = {
    kernel_codes.E_PENDING: "pending", kernel_codes.E_USE: "use", kernel_codes.E_REUSE: "reuse", kernel_codes.E_LOCK: "lock",
    kernel_codes.E_UNLOCK: "unlock", kernel_codes.E_PRESSURE: "pressure", kernel_codes.E_COMPUTE: "compute",
    kernel_codes.E_RECOMPUTE: "recompute", kernel_codes.E_ALSO_COMPUTED: "also_computed",
    kernel_codes.E_ALSO_RECOMPUTED: "also_recomputed", kernel_codes.E_EVICT: "evict", kernel_codes.E_FREE: "free",
    kernel_codes.E_BANISH: "banish", kernel_codes.E_PIN: "pin", kernel_codes.E_BIRTH: "birth", kernel_codes.E_DEATH: "death",
}  # fmt: skip
_OF_STORAGES = {"lock", "unlock", "evict", "free", "banish", "pin"}
STORAGE_COLUMNS = (
    "root_id", "size", "tensor_count", "birth_time", "death_time", "last_remat_use_time", "last_model_use_time", "banish_time",
    "pin_time", "remat_use_count", "model_use_count", "remat_use_count_pinned", "model_use_count_pinned", "direct_remat_count",
    "collateral_remat_count", "evict_count",
)  # fmt: skip
TENSOR_COLUMNS = (
    "id", "name", "op_id", "storage_id", "index", "is_alias", "op_name", "size", "compute", "birth_time", "death_time",
    "last_remat_use_time", "last_model_use_time", "remat_use_count", "model_use_count", "remat_use_count_pinned",
    "model_use_count_pinned", "direct_remat_count", "collateral_remat_count",
)  # fmt: skip
OPERATOR_COLUMNS = ("id", "name", "outputs", "compute", "size", "is_aliasing", "recompute_count")


@dataclass
class Tables:
    """Three tables, of storages, operators and tensors: a dict per row, keyed by column name."""

    storage: list[dict[str, Any]]
    operator: list[dict[str, Any]]
    tensor: list[dict[str, Any]]


def _named(run: SimulatedRun) -> list[tuple[str, int, int]]:
    if run.events is None:
        raise ValueError("the run was made without events")
    kinds = run.events.kind.tolist()
    return [(KINDS[k], c, i) for k, c, i in zip(kinds, run.events.clock.tolist(), run.events.ident.tolist(), strict=True)]


def _empty_tables(graph: Graph) -> Tables:
    aliasing = [any(graph.tensor_alias[t] >= 0 for t in graph.results(op)) for op in range(graph.operators)]
    operators: list[dict[str, Any]] = [
        {
            "id": op,
            "name": graph.op_names[op],
            "outputs": len(graph.results(op)),
            "compute": int(graph.op_cost[op]),
            "size": sum(int(graph.tensor_size[t]) for t in graph.results(op)),
            "is_aliasing": aliasing[op],
            "recompute_count": 0,
        }
        for op in range(graph.operators)
    ]
    tensors: list[dict[str, Any]] = []
    for t in range(graph.tensors):
        op = int(graph.tensor_op[t])
        head = (
            t, graph.tensor_names[t], op, int(graph.storage_root[graph.tensor_storage[t]]), t - int(graph.out_start[op]),
            bool(graph.tensor_alias[t] >= 0), graph.op_names[op], int(graph.tensor_size[t]), int(graph.op_cost[op]),
        )  # fmt: skip
        tensors.append(dict.fromkeys(TENSOR_COLUMNS, 0) | dict(zip(TENSOR_COLUMNS, head, strict=False)))
    views = np.bincount(graph.tensor_storage, minlength=graph.storages)
    storages = [
        dict.fromkeys(STORAGE_COLUMNS, 0)
        | {"root_id": int(graph.storage_root[s]), "size": int(graph.storage_size[s]), "tensor_count": int(views[s])}
        for s in range(graph.storages)
    ]
    return Tables(storages, operators, tensors)


def tables(graph: Graph, run: SimulatedRun) -> Tables:
    """Return counts and times of every storage, operator and tensor of `run`. Raises ValueError if it was made without events."""
    made = _empty_tables(graph)
    for kind, clock, ident in _named(run):
        if kind == "pressure":
            continue
        if kind in _OF_STORAGES:
            _count_storage(made.storage[ident], kind, clock)
        else:
            _count_tensor(graph, made, kind, clock, ident)
    return made


def _count_storage(row: dict[str, Any], kind: str, clock: int) -> None:
    if kind in ("evict", "free"):
        row["evict_count"] += 1
    elif kind in ("banish", "pin"):
        row[f"{kind}_time"] = clock


def _count_tensor(graph: Graph, made: Tables, kind: str, clock: int, tensor: int) -> None:
    row, storage = made.tensor[tensor], made.storage[graph.tensor_storage[tensor]]
    rows = [row, storage]
    if kind in ("use", "reuse"):
        key = "model" if kind == "use" else "remat"
        for each in rows:
            each[f"last_{key}_use_time"] = clock
            each[f"{key}_use_count"] += 1
            each[f"{key}_use_count_pinned"] += storage["pin_time"] > 0
    elif kind in ("recompute", "also_recomputed"):
        key = "direct" if kind == "recompute" else "collateral"
        for each in rows[: 1 if row["is_alias"] else 2]:
            each[f"{key}_remat_count"] += 1
        made.operator[int(graph.tensor_op[tensor])]["recompute_count"] += kind == "recompute"
    elif kind in ("birth", "death"):
        for each in rows[: 1 if kind == "birth" and row["is_alias"] else 2]:
            each[f"{kind}_time"] = clock


def replay(graph: Graph, run: SimulatedRun) -> tuple[list[tuple[int, int]], set[int]]:
    """Replay the operators and evictions of `run`. Return ((clock, bytes in memory) after each, storages in memory at the end).

    The replay uses neither budget nor heuristic, so it checks the run. Raises ValueError if an operator's argument is not in
    memory, or if the replay's peak differs from that of `run`.
    """
    defined = np.zeros(graph.tensors, dtype=bool)
    resident: set[int] = set()
    views: list[list[int]] = [[] for _ in range(graph.storages)]
    for tensor, storage in enumerate(graph.tensor_storage.tolist()):
        views[storage].append(tensor)
    memory, peak, line = 0, 0, []
    for kind, clock, ident in _named(run):
        if kind in ("compute", "recompute"):
            op = int(graph.tensor_op[ident])
            if not defined[graph.arguments(op)].all():
                raise ValueError(f"operator {op} runs at {clock} without one of its arguments")
            results = list(graph.results(op))
            peak = max(peak, memory + int(graph.tensor_size[results].sum()))
            memory += int(graph.tensor_size[[t for t in results if not defined[t]]].sum())
            defined[results] = True
            resident.update(int(s) for s in graph.tensor_storage[results])
        elif kind in ("evict", "free"):
            resident.remove(ident)
            defined[views[ident]] = False
            memory -= int(graph.storage_size[ident])
        else:
            continue
        line.append((clock, memory))
    if peak != run.peak:
        raise ValueError(f"the run reports a peak of {run.peak}, its events have a peak of {peak}")
    return line, resident


def residency(graph: Graph, run: SimulatedRun) -> Any:
    """Return which storages of `run` are in memory: 0 or 1, with a row for each storage, and a column for each unit of time."""
    found = np.zeros((graph.storages, run.clock), dtype=np.int8)
    for kind, clock, ident in _named(run):
        if kind in ("compute", "recompute"):
            for tensor in graph.results(int(graph.tensor_op[ident])):
                found[graph.tensor_storage[tensor], clock - 1 :] = 1
        elif kind in ("evict", "free"):
            found[ident, clock - 1 :] = 0
    return found


def held(graph: Graph, run: SimulatedRun) -> list[dict[str, int]]:
    """Return {"clock", "locked_bytes", "pinned_bytes"} after each event that locks, unlocks or pins a storage."""
    locked: set[int] = set()
    pinned: set[int] = set()
    rows = []
    size = graph.storage_size
    for kind, clock, ident in _named(run):
        if kind == "lock":
            locked.add(ident)
        elif kind == "unlock":
            locked.discard(ident)
        elif kind == "pin":
            pinned.add(ident)
        else:
            continue
        rows.append(
            {"clock": clock, "locked_bytes": int(sum(size[s] for s in locked)), "pinned_bytes": int(sum(size[s] for s in pinned))}
        )
    return rows


def _csv(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def write_telemetry(directory: Path, graph: Graph, run: SimulatedRun) -> list[str]:
    """Write tables, edges, memory and held bytes of a run with events as CSV files, and return the files' names."""
    make_folder(directory)
    made = tables(graph, run)
    edges = [
        {"tensor": t, "child": child}
        for op in range(graph.operators)
        for t in dict.fromkeys(graph.arguments(op))
        for child in graph.results(op)
    ]
    timeline = [{"clock": clock, "memory_bytes": memory} for clock, memory in replay(graph, run)[0]]
    files = {
        "storage.csv": _csv(STORAGE_COLUMNS, made.storage),
        "operator.csv": _csv(OPERATOR_COLUMNS, made.operator),
        "tensor.csv": _csv(TENSOR_COLUMNS, made.tensor),
        "adjacency.csv": _csv(("tensor", "child"), edges),
        "memory.csv": _csv(("clock", "memory_bytes"), timeline),
        "held.csv": _csv(("clock", "locked_bytes", "pinned_bytes"), held(graph, run)),
    }
    for name, content in files.items():
        write_whole(directory / name, content)
    return list(files)


def chrome_events(graph: Graph, run: SimulatedRun) -> bytes:
    """Return a run as a Chrome trace in JSON: tracks of operators and of recomputed ones, evictions, and memory as a counter."""
    events: list[dict[str, Any]] = []
    memory = iter(replay(graph, run)[0])
    for kind, clock, ident in _named(run):
        if kind not in ("compute", "recompute", "evict", "free"):
            continue
        if kind in ("compute", "recompute"):
            op = int(graph.tensor_op[ident])
            cost = int(graph.op_cost[op])
            track = {"ph": "X", "pid": 0, "tid": int(kind == "recompute"), "ts": (clock - cost) / 1e3, "dur": cost / 1e3}
            events.append({"name": graph.op_names[op], "cat": kind, **track})
        else:
            events.append({"name": f"{kind} {ident}", "cat": kind, "ph": "i", "s": "t", "pid": 0, "tid": 2, "ts": clock / 1e3})
        events.append({"name": "memory", "ph": "C", "pid": 0, "ts": clock / 1e3, "args": {"bytes": next(memory)[1]}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()
