"""Merge the traces that the hosts of one job recorded into one trace. Wall time relates their times to the first host's clock.

Two hosts may use the same process ids, so the ids of host n are increased by n * PIDS_PER_HOST. A file has one row per host.
Samples are stored per host, under hosts/NAME/samples.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, open_new
from iotwin.common.foreign_files import open_foreign
from iotwin.trace_store import schema
from iotwin.trace_store.clocks import between_hosts, summarise_clock
from iotwin.trace_store.columns import plain_labels
from iotwin.trace_store.manifest import Cost, Manifest, MergedHost, write_manifest
from iotwin.trace_store.raw.recording import refuse_unusable
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.trace_directory import made_trace
from iotwin.trace_store.writer import write_events, write_table

PIDS_PER_HOST = 1 << 22  # the kernel's greatest pid_max (include/linux/threads.h)
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")
MAX_HOSTS = (1 << 31) // PIDS_PER_HOST

Shift = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def merge_traces(traces: Sequence[Trace], directory: Path, force: bool = False) -> Manifest:
    """Merge all `traces` into one at `directory` and return its manifest. Holds a few batches of each trace in memory.

    Raises UsageError for too few or too many traces or a `directory` in use, IotwinError if a trace has no clock readings.
    """
    if not 1 < len(traces) < MAX_HOSTS:
        raise UsageError(f"give 2 to {MAX_HOSTS - 1} traces to merge, not {len(traces)}")
    refuse_unusable(directory, force)
    names = _unique([trace.manifest.host.hostname for trace in traces])
    if unread := next((trace for trace in traces if not trace.manifest.clock), None):
        raise IotwinError(f"{unread.path} holds no reading of the clocks, so the traces cannot be aligned; record again")
    shifts = [between_hosts(trace.manifest.clock, traces[0].manifest.clock) for trace in traces]
    with made_trace(directory) as made:
        rows = write_events(made / "events.parquet", _events(traces, shifts))
        _write_tables(made, traces, names, shifts)
        for index, (trace, name, shift) in enumerate(zip(traces, names, shifts, strict=True)):
            own = _file_name(name, index)
            _write_samples(made, f"hosts/{own}/samples", trace, shift)
            _copy_logs(trace.path / "logs", made, own)
        manifest = _manifest(traces, names, shifts, rows)
        write_manifest(made, manifest)
    return manifest


def _unique(names: list[str]) -> list[str]:
    unique: list[str] = []
    for name in names:
        taken = sum(other == name or other.startswith(f"{name}-") for other in unique)
        unique.append(f"{name}-{taken + 1}" if taken else name)
    return unique


def _file_name(host: str, number: int) -> str:
    """Return `host` if it is a safe file name, else host_NUMBER, which cannot be the name of a host."""
    return host if _HOST_NAME.fullmatch(host) else f"host_{number}"


def _events(traces: Sequence[Trace], shifts: Sequence[Shift]) -> Iterator[pa.Table]:
    """Yield the events of all traces, merged in order of start. Each table ends at a time that the reading of all has passed."""
    file_bases = np.cumsum([0, *(len(trace.files()) for trace in traces)])
    streams = [
        _moved(trace, shift, index, int(base))
        for index, (trace, shift, base) in enumerate(zip(traces, shifts, file_bases[:-1], strict=True))
    ]
    waiting: list[pa.Table | None] = [next(stream, None) for stream in streams]
    while any(table is not None for table in waiting):
        bound = min(table["start_ns"][-1].as_py() for table in waiting if table is not None)
        ready = []
        for index, table in enumerate(waiting):
            if table is None:
                continue
            count = int(np.searchsorted(table["start_ns"].to_numpy(), bound, side="right"))
            ready.append(table.slice(0, count))
            waiting[index] = table.slice(count) if count < table.num_rows else next(streams[index], None)
        yield pa.concat_tables(ready).unify_dictionaries().combine_chunks().sort_by("start_ns")


def _moved(trace: Trace, shift: Shift, number: int, file_base: int) -> Iterator[pa.Table]:
    """Yield the events of `trace` with the times, pids and file ids of the merged trace. `number`: the host's index."""
    for batch in trace.events():
        if batch.num_rows == 0:
            continue
        table = pa.Table.from_batches([batch])
        columns: dict[str, Any] = {"start_ns": np.maximum.accumulate(shift(batch.column("start_ns").to_numpy()))}
        columns["file_id"] = pc.add(batch.column("file_id"), pa.scalar(file_base, pa.int32()))
        for name in ("pid", "tid"):
            columns[name] = pc.add(batch.column(name), pa.scalar(number * PIDS_PER_HOST, pa.int32()))
        for name, values in columns.items():
            table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(values))
        yield table


def _write_tables(directory: Path, traces: Sequence[Trace], names: list[str], shifts: Sequence[Shift]) -> None:
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in schema.TABLES}
    file_base = 0
    for index, (trace, name, shift) in enumerate(zip(traces, names, shifts, strict=True)):
        files = trace.files()
        frames = {
            "files": files.assign(host=name),
            "processes": trace.processes().assign(host=name),
            "phases": trace.phases(),
            "parts": trace.step_parts(),
            "block": trace.block(),
            "gpu": trace.gpu(),
        }
        for table, frame in frames.items():
            if frame is not None:
                parts[table].append(_moved_frame(frame, shift, index * PIDS_PER_HOST, file_base))
        file_base += len(files)
    first_column = {"files": "file_id", "block": "issue_ns"}
    for table, frames_of in parts.items():
        if frames_of:
            plain = [frame.astype(dict.fromkeys(frame.select_dtypes("category"), object)) for frame in frames_of]
            whole = pd.concat(plain, ignore_index=True).sort_values(
                first_column.get(table, "start_ns"), kind="stable", na_position="first"
            )
            arrow = pa.Table.from_pandas(whole, schema=plain_labels(schema.TABLES[table]), preserve_index=False)
            write_table(directory, f"{table}.parquet", schema.TABLES[table], arrow)


def _moved_frame(frame: pd.DataFrame, shift: Shift, pid_base: int, file_base: int) -> pd.DataFrame:
    moved = frame.copy()
    for column in moved.columns:
        if column.endswith("_ns") and column not in ("duration_ns", "interval_ns"):
            moved[column] = _shifted(moved[column], shift)
    for column, base in (("pid", pid_base), ("tid", pid_base), ("ppid", pid_base), ("file_id", file_base)):
        if column in moved.columns:
            moved[column] = moved[column] + base
    return moved


def _shifted(times: pd.Series, shift: Shift) -> pd.Series:
    known = times.notna().to_numpy()
    values = np.zeros(len(times), np.int64)
    values[known] = shift(times[known].to_numpy().astype(np.int64)) if known.any() else 0
    return pd.Series(pd.arrays.IntegerArray(values, ~known), index=times.index)


def _write_samples(directory: Path, folder: str, trace: Trace, shift: Shift) -> None:
    for kind, expected in schema.SAMPLES.items():
        frame = trace.samples(kind)
        if frame is not None:
            moved = _moved_frame(frame, shift, 0, 0)
            table = pa.Table.from_pandas(moved, schema=expected, preserve_index=False)
            write_table(directory, f"{folder}/{kind}.parquet", expected, table)


def _copy_logs(source: Path, directory: Path, name: str) -> None:
    make_folder(directory / "logs")
    for log in sorted(source.iterdir()) if source.is_dir() else []:
        if log.is_file() and not log.is_symlink():
            with open_foreign(log, follow=False) as content, open_new(directory / "logs" / f"{name}.{log.name}") as copy:
                shutil.copyfileobj(content, copy)


def _manifest(traces: Sequence[Trace], names: list[str], shifts: Sequence[Shift], rows: int) -> Manifest:
    manifests = [trace.manifest for trace in traces]
    first = manifests[0]
    hosts = [_host(trace, name, shift, first) for trace, name, shift in zip(traces, names, shifts, strict=True)]
    starts = [int(shift(np.array([m.start_ns]))[0]) for m, shift in zip(manifests, shifts, strict=True)]
    ends = [int(shift(np.array([m.end_ns]))[0]) for m, shift in zip(manifests, shifts, strict=True)]
    labels = {m.workload for m in manifests}
    statuses = [m.exit_status for m in manifests if m.exit_status is not None]
    merged = Manifest(
        status="complete" if all(m.status == "complete" for m in manifests) else "recovered",
        backend="+".join(dict.fromkeys(m.backend for m in manifests)), host=first.host, target=first.target,
        tool_version=first.tool_version, probes=list(dict.fromkeys(probe for m in manifests for probe in m.probes)),
        notes=[f"{name}: {text}" for m, name in zip(manifests, names, strict=True) for text in m.notes], clock=first.clock,
        start_ns=min(starts), end_ns=max(ends), events=rows, counts=_sum([m.counts for m in manifests]),
        lost=_sum([m.lost for m in manifests]), exit_status=next((s for s in statuses if s), 0 if statuses else None),
        workload=first.workload if len(labels) == 1 else None, parameters=first.parameters, hosts=hosts,
    )  # fmt: skip
    seen = [m.seen for m in manifests if m.seen is not None]
    merged.seen = sum(seen) if len(seen) == len(manifests) else None
    wall_ns = merged.end_ns - merged.start_ns
    job_cpu = [m.cost.job_cpu_ns for m in manifests if m.cost.job_cpu_ns is not None]
    merged.cost = Cost(
        wall_ns,
        sum(m.cost.tracer_cpu_ns for m in manifests),
        sum(job_cpu) if len(job_cpu) == len(manifests) else None,
        round(rows / max(wall_ns, 1) * 1e9, 1),
    )
    return merged


def _host(trace: Trace, name: str, shift: Shift, first: Manifest) -> MergedHost:
    start_ns = trace.manifest.start_ns
    own, reference = summarise_clock(trace.manifest.clock), summarise_clock(first.clock)
    uncertainty_ns = (own.uncertainty_ns or 0) + (0 if trace.manifest is first else reference.uncertainty_ns or 0)
    return MergedHost(
        name,
        str(trace.path),
        trace.manifest.host,
        int(shift(np.array([start_ns]))[0]) - start_ns,
        uncertainty_ns,
        trace.manifest.events,
        trace.manifest.lost_events,
    )


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)
