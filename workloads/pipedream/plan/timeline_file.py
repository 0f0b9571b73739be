"""Writes the timeline of a simulated pipeline as JSON for Perfetto and Chrome, or as a trace that all iotwin commands read."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.common.files import check_output, write_whole
from iotwin.workloads.policies.pipeline import PipelinePlan, versions
from iotwin.workloads.policies.pipeline_simulator import Timeline

_START_NS = 1_000_000_000
_FIRST_PID = 1000
_INSTANT_NS = 1000  # duration of a read or write in the trace; in the simulation, reads and writes take no time


def write_timeline(plan: PipelinePlan, timeline: Timeline, minibatches: int, schedule: str, path: Path) -> None:
    """Write the timeline: Chrome's JSON if `path` ends in .json or .json.gz, else a trace directory."""
    if path.name.endswith((".json", ".json.gz")):
        check_output(path)
        text = json.dumps(_chrome(plan, timeline, minibatches, schedule)).encode()
        write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    else:
        if path.exists():
            raise IotwinError(f"{path} exists already; remove it or name another trace")
        if not path.absolute().parent.is_dir():
            raise IotwinError(f"{path.parent} is not a directory; make it first")
        from iotwin.trace_store.trace_directory import made_trace

        with made_trace(path) as made:
            _write_trace(plan, timeline, minibatches, schedule, made)


def _versions_used(plan: PipelinePlan, minibatches: int, schedule: str) -> dict[tuple[int, int], int]:
    """Return the version of the weights that a stage uses for a minibatch, by (stage, minibatch)."""
    return {
        (stage.stage, minibatch): version
        for stage in plan.stages
        for replica in range(stage.replicas)
        for minibatch, version in zip(
            range(replica, minibatches, stage.replicas), versions(plan, stage.stage, replica, minibatches, schedule), strict=True
        )
    }


def _chrome(plan: PipelinePlan, timeline: Timeline, minibatches: int, schedule: str) -> dict[str, Any]:
    """Return the timeline in Chrome's Trace Event Format, with a process for each stage and a thread for each rank."""
    used = _versions_used(plan, minibatches, schedule)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": stage.stage, "args": {"name": f"stage {stage.stage}"}} for stage in plan.stages
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": stage.stage, "tid": rank, "args": {"name": f"rank {rank}"}}
        for stage in plan.stages
        for rank in stage.ranks
    ]
    for row in np.lexsort((timeline.rank, timeline.start_s)).tolist():
        stage, minibatch = int(timeline.stage[row]), int(timeline.minibatch[row])
        start, end = float(timeline.start_s[row]), float(timeline.end_s[row])
        events.append(
            {
                "ph": "X",
                "name": f"{'B' if timeline.backward[row] else 'F'}{minibatch}",
                "cat": "backward" if timeline.backward[row] else "forward",
                "pid": stage,
                "tid": int(timeline.rank[row]),
                "ts": round(start * 1e6, 3),
                "dur": round((end - start) * 1e6, 3),
                "args": {"minibatch": minibatch, "weight_version": used[stage, minibatch]},
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _write_trace(plan: PipelinePlan, timeline: Timeline, minibatches: int, schedule: str, path: Path) -> None:
    """Write a trace: a process per rank, a read per minibatch, and a checkpoint per stage.

    Each pass is recorded twice: as a GPU kernel, and as a part of a step.
    """
    from iotwin.trace_store import schema
    from iotwin.trace_store.manifest import ClockPair, Host, Manifest, Target
    from iotwin.trace_store.writer import write_events, write_tables

    end_ns = _START_NS + int(timeline.seconds * 1e9)
    events, files = _calls(plan, timeline, end_ns)
    host = Host("simulated", "", plan.ranks, 0, "")
    clock = [ClockPair(ns, ns, 0) for ns in (_START_NS, end_ns + 1_000_000)]
    note = "simulated from a plan: no job ran; passes take the plan's times, reads and writes take no time"
    manifest = Manifest(
        "complete",
        "simulated",
        host,
        Target(["iotwin", "pipedream", "simulate"]),
        notes=[note],
        clock=clock,
        start_ns=_START_NS,
        end_ns=end_ns + 1_000_000,
    )
    manifest.events = write_events(path / "events.parquet", [_encoded(events, schema.EVENTS)])
    manifest.counts = {op: events["op"].count(op) for op in sorted(set(events["op"]))}
    ranks = sorted(rank for stage in plan.stages for rank in stage.ranks)
    stage_of = {rank: stage.stage for stage in plan.stages for rank in stage.ranks}
    pids = [_FIRST_PID + rank for rank in ranks]
    processes = {
        "pid": pids, "ppid": 1, "namespace_pid": pids, "comm": [f"stage{stage_of[rank]}" for rank in ranks],
        "command_line": [f"stage {stage_of[rank]}" for rank in ranks], "role": "rank",
        "start_ns": _START_NS, "exit_ns": end_ns + 1_000_000, "exit_status": 0,
    }  # fmt: skip
    phases = {
        "rank": ranks * 2,
        "phase": ["epoch"] * len(ranks) + ["checkpoint"] * len(ranks),
        "epoch": 1,
        "start_ns": [_START_NS] * len(ranks) + [end_ns] * len(ranks),
        "end_ns": [end_ns] * len(ranks) + [end_ns + 1_000_000] * len(ranks),
    }
    write_tables(
        path,
        manifest,
        _encoded(files, schema.FILES),
        _encoded(processes, schema.PROCESSES),
        _encoded(phases, schema.PHASES),
        gpu=_encoded(_kernels(timeline), schema.GPU),
        parts=_encoded(_parts(timeline, _versions_used(plan, minibatches, schedule)), schema.PARTS),
    )


def _calls(plan: PipelinePlan, timeline: Timeline, end_ns: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (table of events, table of files): the reads of stage 0, and a checkpoint that each stage's first rank writes."""
    reads = (timeline.stage == 0) & ~timeline.backward
    order = np.argsort(timeline.start_s[reads], kind="stable")
    at_ns = _START_NS + (timeline.start_s[reads][order] * 1e9).astype(int)
    ranks, batches = timeline.rank[reads][order], timeline.minibatch[reads][order]
    size = int(plan.stages[0].input_bytes)
    rows = [
        (int(at), "pread64", int(rank), 0, int(batch) * size, size, 0)
        for at, rank, batch in zip(at_ns, ranks, batches, strict=True)
    ]
    for stage in plan.stages:
        rows.append((end_ns, "write", stage.ranks[0], stage.stage + 1, 0, int(2 * stage.parameter_bytes), 16))
    start, op, rank, file_id, offset, result, flags = map(list, zip(*rows, strict=True))
    pids = [_FIRST_PID + each for each in rank]
    events = {
        "start_ns": start, "duration_ns": _INSTANT_NS, "op": op, "pid": pids, "tid": pids, "file_id": file_id,
        "fd": 3, "offset": offset, "requested": result, "result": result, "flags": flags,
        "cpu": [each % 32767 for each in rank],
    }  # fmt: skip
    paths = ["/simulated/data", *(f"/simulated/checkpoint.{stage.stage}" for stage in plan.stages)]
    count = len(paths)
    files = {
        "file_id": list(range(count)),
        "device": 0,
        "inode": list(range(1, count + 1)),
        "generation": 0,
        "path": paths,
        "size_bytes": [size * len(batches)] + [0] * (count - 1),
        "kind": ["dataset"] + ["checkpoint"] * (count - 1),
    }
    return events, files


def _kernels(timeline: Timeline) -> dict[str, Any]:
    order = np.argsort(timeline.start_s, kind="stable")
    start = _START_NS + (timeline.start_s[order] * 1e9).astype(int)
    pids = timeline.rank[order] + _FIRST_PID
    return {
        "start_ns": start, "duration_ns": ((timeline.end_s - timeline.start_s)[order] * 1e9).astype(int),
        "kind": "kernel", "device": timeline.rank[order], "stream": 0, "pid": pids, "tid": pids, "source": "kineto",
        "name": [f"{'B' if backward else 'F'}{batch}"
                 for backward, batch in zip(timeline.backward[order], timeline.minibatch[order], strict=True)],
    }  # fmt: skip


def _parts(timeline: Timeline, used: dict[tuple[int, int], int]) -> dict[str, Any]:
    order = np.argsort(timeline.start_s, kind="stable")
    stage, minibatch = timeline.stage[order], timeline.minibatch[order]
    return {
        "name": ["b" if backward else "f" for backward in timeline.backward[order]],
        "start_ns": _START_NS + (timeline.start_s[order] * 1e9).astype(int),
        "duration_ns": ((timeline.end_s - timeline.start_s)[order] * 1e9).astype(int),
        "rank": timeline.rank[order], "epoch": 1, "step": minibatch, "stage": stage,
        "version": [used[pair] for pair in zip(stage.tolist(), minibatch.tolist(), strict=True)],
    }  # fmt: skip


def _encoded(columns: dict[str, Any], expected: Any) -> Any:
    """Return `columns` as a table of the schema `expected`. The first column must be a list; other values may be single."""
    import pyarrow as pa

    rows = len(next(iter(columns.values())))
    kinds = {f.name: pa.string() if pa.types.is_dictionary(f.type) else f.type for f in expected}
    whole = {name: columns.get(name) for name in kinds}
    whole = {name: values if isinstance(values, (list, np.ndarray)) else [values] * rows for name, values in whole.items()}
    return pa.table({name: pa.array(whole[name], type=kind) for name, kind in kinds.items()}).cast(expected)
