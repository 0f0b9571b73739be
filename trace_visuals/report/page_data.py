"""Convert an analysed trace into the document that the report's scripts read: packed numbers, and names as plain text."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from iotwin.common.units import counted
from iotwin.trace_visuals.bins import Grid, occupied
from iotwin.trace_visuals.call_columns import GROUPS, OPEN, READ, SYNC, WRITE, CallColumns, Ints, span_ns
from iotwin.trace_visuals.gaps import sample_gaps
from iotwin.trace_visuals.histogram import LogHistogram
from iotwin.trace_visuals.labels import loss_line, machine_line, tracing_cost_line
from iotwin.trace_visuals.report.analysis import Analysis
from iotwin.trace_visuals.report.answers import answers_to
from iotwin.trace_visuals.report.checkpoint_writes import APART, DURING, checkpoint_writes_ns
from iotwin.trace_visuals.report.diagnosis import describe, headline, moved
from iotwin.trace_visuals.report.heatmap import Heat
from iotwin.trace_visuals.report.packing import pack, pack_amount, pack_rising, pack_share, pack_whole
from iotwin.trace_visuals.report.recompute import CURVES, memory_shares, recompute_shares
from iotwin.trace_visuals.requests import pipeline_passes

_MOST_FILES, _MOST_PROCESSES, _MOST_NAMES = 400, 200, 4000
_MOST_PHASES, _MOST_PASSES, _MOST_SAMPLES, _BUDGET_BINS = 20_000, 20_000, 4096, 1000
_PER_OCTAVE = 4
_SECOND = 1e9

_OPERATION_COLUMNS = (
    "op", "where", "calls", "failures", "size_bytes", "p50_bytes", "time_ns", "p50_ns", "p90_ns", "p99_ns", "p99.9_ns", "most_ns",
)  # fmt: skip
_FILE_COLUMNS = (
    "path", "kind", "extent_bytes", "reads", "read_bytes", "sequential_share", "writes", "written_bytes", "opens", "syncs",
    "time_ns", "first_s", "last_s",
)  # fmt: skip
_PROCESS_COLUMNS = (
    "pid", "role", "comm", "command_line", "storage_calls", "read_bytes", "written_bytes", "storage_ns", "wait_ns", "calls",
    "start_s", "exit_s", "exit_status",
)  # fmt: skip
_CHECKPOINT_COLUMNS = ("path", "first_s", "written_bytes", "writes", "write_ns", "syncs", "sync_ns", "bytes_per_s", "opens")
_BLOCK_COLUMNS = (
    "op", "origin", "requests", "size_bytes", "p50_bytes", "sequential_share", "queue_ns", "p50_ns", "p90_ns", "p99_ns",
    "most_ns",
)  # fmt: skip
_CACHE_COLUMNS = (
    "phase",
    "epoch",
    "start_s",
    "read_calls_bytes",
    "read_block_bytes",
    "cached_share",
    "write_calls_bytes",
    "write_block_bytes",
)
_SLOW_COLUMNS = ("start_s", "duration_ns", "op", "pid", "path", "offset", "size_bytes", "result")


def trace_document(analysis: Analysis, verdict: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the data of one trace for the page. Times are seconds from the page's time zero, unless a key names another unit."""
    manifest = analysis.trace.manifest
    return {
        "label": analysis.label, "command": " ".join(manifest.target.command), "workload": manifest.workload,
        "machine": machine_line(manifest), "loss": loss_line(manifest), "facts": _facts(analysis),
        "span_s": [_seconds(analysis, analysis.survey.begin_ns), _seconds(analysis, analysis.survey.end_ns)],
        "headline": headline(analysis, verdict), "did": moved(analysis), "answers": answers_to(analysis, verdict),
        "findings": [{"topic": finding.topic, "text": finding.text} for finding in describe(analysis)],
        "phases": _phases(analysis), "passes": _passes(analysis), "phases_inferred": analysis.trace.inferred is not None,
        "samples": _samples(analysis), "lanes": lanes_document(analysis, lanes_shown(analysis)),
        "calls": calls_document(analysis, lanes_shown(analysis)), "block": _block(analysis),
        "processes_left_out": analysis.processes_left_out, "hosts_left_out": analysis.hosts_left_out,
        "operations": _table(_operations(analysis), _OPERATION_COLUMNS, _MOST_FILES),
        "files": _table(_files(analysis), _FILE_COLUMNS, _MOST_FILES, len(analysis.files)),
        "processes": _table(_processes(analysis), _PROCESS_COLUMNS, _MOST_PROCESSES),
        "checkpoints": _table(_checkpoints(analysis), _CHECKPOINT_COLUMNS, _MOST_FILES, len(analysis.checkpoints)),
        "slowest": _table(analysis.slowest.assign(start_s=_seconds(analysis, analysis.slowest["start_ns"])), _SLOW_COLUMNS, 1000),
        "bursts": _bursts(analysis), "histograms": _histograms(analysis), "reads_heat": _heat(analysis, analysis.reads_heat),
        "writes_heat": _heat(analysis, analysis.writes_heat),
    }  # fmt: skip


def _seconds(analysis: Analysis, time_ns: Any) -> Any:
    """Return a time in ns, or an array or column of times, in seconds from the page's time zero."""
    return (time_ns - analysis.zero_ns) / _SECOND


def _facts(analysis: Analysis) -> list[list[str]]:
    manifest = analysis.trace.manifest
    facts = {
        "command": " ".join(manifest.target.command),
        "workload": manifest.workload or "",
        "exit status": "" if manifest.exit_status is None else str(manifest.exit_status),
        "machine": machine_line(manifest),
        "architecture": manifest.host.architecture,
        "container": manifest.target.container or "",
        "image": manifest.target.image or "",
        "trace": f"{counted(analysis.survey.calls, 'call')}, status {manifest.status}, by iotwin {manifest.tool_version}, "
        f"schema {manifest.schema_version}",
        "lost": loss_line(manifest) or "nothing known to be lost",
        "cost of tracing": tracing_cost_line(manifest),
        "parameters": ", ".join(f"{key}={value}" for key, value in manifest.parameters.items()),
        "notes": "; ".join(manifest.notes),
    }
    return [[name, value] for name, value in facts.items() if value]


def _phases(analysis: Analysis) -> list[list[Any]]:
    """Return [name, epoch, step, begin, end] of each phase of the lowest rank, at most the _MOST_PHASES longest."""
    phases = analysis.phases
    if len(phases) > _MOST_PHASES:
        phases = phases.loc[(phases["end_ns"] - phases["start_ns"]).nlargest(_MOST_PHASES).index].sort_index()
    begin, end = _seconds(analysis, phases["start_ns"]), _seconds(analysis, phases["end_ns"])
    columns = (phases["phase"].astype(str), phases["epoch"], phases["step"], begin, end)
    return [list(map(_plain, row)) for row in zip(*columns, strict=True)]


def _passes(analysis: Analysis) -> dict[str, list[list[Any]]]:
    """Return [begin, end, minibatch, weight version or None] of each pass of a pipeline by the title of its row.

    Those are the first _MOST_PASSES passes.
    """
    passes = pipeline_passes(analysis.trace)
    if passes is None:
        return {}
    passes = passes.nsmallest(_MOST_PASSES, "start_ns")
    begin, end = (_seconds(analysis, time_ns) for time_ns in (passes["start_ns"], passes["start_ns"] + passes["duration_ns"]))
    found: dict[str, list[list[Any]]] = {}
    for lane, *row in zip(passes["lane"], begin, end, passes["step"], passes["version"], strict=True):
        found.setdefault(lane, []).append([_plain(value) for value in row])
    return found


def _samples(analysis: Analysis) -> list[dict[str, Any]]:
    """Return graphs of each sampled device, of logged recomputation and of memory: a time axis, and curves from 0 to 1."""
    graphs = []
    cpu = analysis.trace.samples("cpu")
    if cpu is not None and len(cpu):
        cpu = cpu.assign(job=cpu["job_cpus"] / max(analysis.trace.manifest.host.cpus, 1))
        graphs.append(_graph(analysis, f"CPU ({analysis.trace.manifest.host.cpus})", cpu, ("user", "system", "iowait"), ("job",)))
    disk = analysis.trace.samples("disk")
    if disk is not None:
        used = ((device, chosen) for device, chosen in disk.groupby("device") if chosen["busy"].any())
        graphs += [_graph(analysis, f"disk {device}", chosen, (), ("busy",)) for device, chosen in used]
    memory, total = analysis.trace.samples("memory"), analysis.trace.manifest.host.memory_bytes
    if memory is not None and len(memory) and total > 0:
        shares = memory.assign(cached=memory["page_cache_bytes"] / total, dirty=memory["dirty_bytes"] / total)
        graphs.append(_graph(analysis, "page cache, of memory", shares, (), ("cached", "dirty")))
    gpu = analysis.trace.samples("gpu")
    if gpu is not None:
        gpu = gpu.assign(SM=gpu["sm_percent"] / 100, memory=gpu["memory_percent"] / 100)
        graphs += [_graph(analysis, f"GPU {device}", chosen, (), ("SM", "memory")) for device, chosen in gpu.groupby("device")]
    grid = Grid.covering(analysis.survey.begin_ns, analysis.survey.end_ns, _BUDGET_BINS)
    recompute = recompute_shares(analysis.trace, grid)
    if recompute is not None:
        graphs.append(_graph(analysis, "recompute", recompute, CURVES, ()))
    tensors = memory_shares(analysis.trace, grid)
    if tensors is not None:
        graphs.append(_graph(analysis, *tensors, (), ("tensors",)))
    return graphs


def _graph(
    analysis: Analysis, title: str, samples: pd.DataFrame, stacked: tuple[str, ...], lines: tuple[str, ...]
) -> dict[str, Any]:
    """Return a graph of the columns `stacked` and `lines` of `samples`, averaged to at most _MOST_SAMPLES points."""
    together = -(-len(samples) // _MOST_SAMPLES)
    starts = np.arange(0, len(samples), together)
    counts = np.diff(np.append(starts, len(samples)))
    ends = samples["time_ns"].to_numpy()[starts + counts - 1]

    def mean(name: str) -> dict[str, Any]:
        values = np.nan_to_num(samples[name].to_numpy(dtype=np.float64))
        return pack_share((np.add.reduceat(values, starts) / counts).clip(0, 1))

    time_s = ((ends - analysis.zero_ns) / _SECOND).astype(np.float64)
    known = [name for name in (*stacked, *lines) if samples[name].notna().any()]
    gaps = (sample_gaps(samples["time_ns"].to_numpy(), *span_ns(analysis.trace)) - analysis.zero_ns) / _SECOND
    return {
        "title": title,
        "time_s": pack(time_s),
        "gaps": gaps.tolist(),
        "stacked": [name for name in stacked if name in known],
        "lines": [name for name in lines if name in known],
        "curves": {name: mean(name) for name in known},
    }


def lanes_document(analysis: Analysis, shown: list[int]) -> dict[str, Any]:
    """Return the lanes (rows of the timeline) with the indices `shown`. Each packed array holds one lane after another."""
    lanes = analysis.lanes
    names = [analysis.lane_names[lane] for lane in shown]
    return {
        "names": [{"section": name.section, "group": name.group, "title": name.title} for name in names],
        "origin_s": _seconds(analysis, lanes.grid.origin),
        "width_s": lanes.grid.width / _SECOND,
        "count": lanes.grid.count,
        "calls": pack_whole(lanes.calls[shown]),
        "busy": pack_share(lanes.busy[shown]),
        "in_flight": pack_amount(lanes.in_flight[shown]),
        "size_bytes": pack_whole(lanes.size_bytes[shown]),
    }


def lanes_shown(analysis: Analysis) -> list[int]:
    """Return the indices of the lanes that have a call. The lanes of reads, writes and opens of storage are always included."""
    used = np.flatnonzero(occupied(analysis.lanes).any(axis=1))
    always = (GROUPS[READ], GROUPS[WRITE], GROUPS[OPEN])
    names = enumerate(analysis.lane_names)
    return [lane for lane, name in names if lane in used or (name.section == "storage" and name.group in always)]


def calls_document(analysis: Analysis, used: list[int]) -> dict[str, Any] | None:
    """Return every call of the operation lanes among `used`; None if there are too many calls for the page."""
    if analysis.every_call is None:
        return None
    calls, lane = analysis.every_call
    shown = np.full(len(analysis.lane_names), -1, dtype=np.int64)
    shown[used] = np.arange(len(used))
    names, place = _file_names(analysis, calls)
    pids, pid = np.unique(calls.pid, return_inverse=True)
    return {
        "origin_s": _seconds(analysis, analysis.survey.begin_ns),
        "start": pack_rising(calls.start_ns - analysis.survey.begin_ns),
        "duration": pack_whole(calls.duration_ns),
        "lane": pack(shown[lane].astype(np.uint8)),
        "op": pack(calls.op.astype(np.uint16)),
        "ops": analysis.ops,
        "pid": pack(pid.astype(np.uint32)),
        "pids": pids.tolist(),
        "file": pack(place.astype(np.int32)),
        "files": names,
        "offset": pack(calls.offset.astype(np.float64)),
        "result": pack(calls.result.astype(np.float64)),
    }


def _file_names(analysis: Analysis, calls: CallColumns) -> tuple[list[str], Ints]:
    """Return the paths of the files with the most calls, and each call's index into them: -1 for no file, -2 for other files."""
    ids, place, count = np.unique(calls.file_id, return_inverse=True, return_counts=True)
    count[ids < 0] = 0
    named = np.argsort(-count, kind="stable")[:_MOST_NAMES]
    named = named[count[named] > 0]
    index = np.full(len(ids), -2, dtype=np.int64)
    index[ids < 0] = -1
    index[named] = np.arange(len(named))
    return analysis.trace.paths(ids[named]), index[place]


def _operations(analysis: Analysis) -> pd.DataFrame:
    table = analysis.operations.frame(analysis.ops)
    return table.assign(where=table["storage"].map({True: "storage", False: "other files"}))


def _files(analysis: Analysis) -> pd.DataFrame:
    table = _with_paths(analysis, analysis.files)
    return table.assign(
        first_s=_seconds(analysis, table["first_ns"]),
        last_s=_seconds(analysis, table["last_ns"]),
        sequential_share=table["sequential_reads"] / table["reads"].where(table["reads"] > 0),
    )


def _with_paths(analysis: Analysis, files: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `files` that the page shows, with their paths."""
    shown = files.head(_MOST_FILES)
    return shown.assign(path=analysis.trace.paths(shown["file_id"].to_numpy()))


def _processes(analysis: Analysis) -> pd.DataFrame:
    table = analysis.processes
    return table.assign(start_s=_seconds(analysis, table["start_ns"]), exit_s=_seconds(analysis, table["exit_ns"]))


def _checkpoints(analysis: Analysis) -> pd.DataFrame:
    table = _with_paths(analysis, analysis.checkpoints)
    rate = table["written_bytes"] / (table["write_ns"] + table["sync_ns"]).clip(lower=1) * _SECOND
    return table.assign(first_s=_seconds(analysis, table["first_ns"]), bytes_per_s=rate)


def _block(analysis: Analysis) -> dict[str, Any] | None:
    block = analysis.block
    if block is None:
        return None
    phases = block.phases.assign(start_s=_seconds(analysis, block.phases["start_ns"]))
    return {
        "requests": _table(block.requests, _BLOCK_COLUMNS, _MOST_FILES),
        "phases": _table(phases, _CACHE_COLUMNS, _MOST_FILES),
        "time_s": ((block.time_ns - analysis.zero_ns) / _SECOND).tolist(),
        "curves": {name: values.tolist() for name, values in block.curves.items()},
    }


def _table(frame: pd.DataFrame, columns: tuple[str, ...], most: int, total: int | None = None) -> dict[str, Any]:
    """Return a table for the page: the first `most` rows of the frame's `columns`, and `total`, by default its number of rows."""
    rows = [list(map(_plain, row)) for row in frame.head(most)[list(columns)].itertuples(index=False)]
    return {"columns": list(columns), "rows": rows, "total": len(frame) if total is None else total}


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: None for NaN and NaT, whole numbers as int."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    number = float(value)
    if not np.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


def _histograms(analysis: Analysis) -> list[dict[str, Any]]:
    """Return histograms of the sizes of reads and writes on storage, and of the latencies of all four operations."""
    operations = analysis.operations
    wanted = [(group, "size", operations.size_bytes) for group in (READ, WRITE)]
    wanted += [(group, "latency", operations.latency_ns) for group in (READ, WRITE, OPEN, SYNC)]
    found = ((group, what, histogram, operations.rows_of(group)) for group, what, histogram in wanted)
    return [_histogram(GROUPS[group], what, histogram, rows) for group, what, histogram, rows in found if rows]


def _bursts(analysis: Analysis) -> dict[str, Any]:
    """Return the begins of checkpoints, the times between them, and the latencies of reads during and outside of checkpoints."""
    begin_ns = checkpoint_writes_ns(analysis.trace)[:, 0]
    latency, names = analysis.reads_during_checkpoints.latency_ns, {DURING: "while a checkpoint is written", APART: "otherwise"}
    return {
        "time_s": ((begin_ns[1:] - analysis.zero_ns) / _SECOND).tolist(),
        "interval_ns": np.diff(begin_ns).tolist(),
        "reads": [_histogram(name, "latency", latency, [row]) for row, name in names.items() if latency.count(row)],
    }


def _histogram(group: str, what: str, histogram: LogHistogram, rows: list[int]) -> dict[str, Any]:
    counts, edges = histogram.coarse(rows, _PER_OCTAVE)
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1]) + 1
    percentiles = {f"p{share * 100:g}": histogram.percentile(rows, share) for share in (0.5, 0.9, 0.99)}
    return {
        "group": group,
        "what": what,
        "edges": edges[first : last + 1].tolist(),
        "counts": counts[first:last].tolist(),
        "percentiles": percentiles,
        "most": histogram.most(rows),
    }


def _heat(analysis: Analysis, heat: Heat | None) -> dict[str, Any] | None:
    if heat is None:
        return None
    few = len(heat.file_ids) <= _MOST_NAMES
    return {
        "origin_s": _seconds(analysis, heat.time.origin),
        "width_s": heat.time.width / _SECOND,
        "columns": heat.time.count,
        "row_bytes": heat.address.width,
        "rows": heat.address.count,
        "cells": pack_amount(heat.size_bytes),
        "files": analysis.trace.paths(heat.file_ids) if few else [],
        "bases": heat.bases.tolist() if few else [],
        "file_count": len(heat.file_ids),
    }
