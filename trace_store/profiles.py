"""Add the accelerator work in profiles of PyTorch (Kineto) and TensorFlow to the trace of the same run."""

import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.units import counted
from iotwin.common.untrusted_files import open_foreign_unpacked
from iotwin.trace_store import schema
from iotwin.trace_store.clocks import realtime_to_monotonic
from iotwin.trace_store.columns import plain_labels
from iotwin.trace_store.hosts.set_file import is_set
from iotwin.trace_store.importers.chrome import GPU_CATEGORIES, Event, gpu_row, is_possible
from iotwin.trace_store.importers.json_objects import object_pieces
from iotwin.trace_store.manifest import write_manifest
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_table

_HEAD_BYTES = 1 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_EPOCH_US = 1e14  # larger times in microseconds count from 1970 (this one is in 1973), smaller ones from the start of a run
_DEVICE_KINDS = ("kernel", "copy", "set")
_GPU_PROCESS = re.compile(r"(?:device:)?GPU:(\d+)", re.IGNORECASE)
_MEMORY_NAMES = (("memcpy", "copy"), ("memset", "set"))
_DECODER = msgspec.json.Decoder(list[Event])
_PLAIN_GPU = plain_labels(schema.GPU)


@dataclass
class _Reading:
    base_ns: int  # UNIX time from which the profile's times count; 0: they count from 1970
    tables: list[pa.Table] = field(default_factory=list)
    devices: dict[str, int] = field(default_factory=dict)  # index of the GPU, by the pid that TensorFlow's profile gives it
    others: int = 0  # number of events on the CPU


def attach_profiles(trace: Trace, profiles: list[Path]) -> dict[str, Any]:
    """Add the accelerator work in `profiles` to the gpu table of `trace`; return the number of rows added, by source.

    Raises UsageError if a profile is attached already. Raises IotwinError if a profile is unreadable, has no accelerator work,
    has no times that relate to the trace's clock, or is of another run. If an error is raised, nothing is written.
    """
    if is_set(trace.path):
        raise UsageError(f"{trace.path} is a set of hosts; attach the profile to the trace of its host")
    manifest = trace.manifest
    attached = [f"attached the profile {path.name}" for path in profiles]
    for note in attached:
        if any(known.startswith(note + ":") for known in manifest.notes) or attached.count(note) > 1:
            raise UsageError(f"{note.removeprefix('attached ')} is in {trace.path} already; leave it out")
    existing = trace.path / "gpu.parquet"
    tables = [pq.read_table(existing, schema=schema.GPU, partitioning=None)] if existing.exists() else []
    has_calls = bool(tables) and "uprobe" in pc.unique(tables[0]["source"].cast(pa.string())).to_pylist()
    added: dict[str, int] = {}
    for path, note in zip(profiles, attached, strict=True):
        table = _on_clock_of_trace(_read(path), path, trace)
        if has_calls:  # leave out the profile's API calls, which are in the trace already
            table = table.filter(pc.is_in(table["kind"].cast(pa.string()), pa.array(_DEVICE_KINDS)))
        source = str(table["source"][0]) if table.num_rows else "kineto"
        added[source] = added.get(source, 0) + table.num_rows
        manifest.notes.append(f"{note}: {counted(table.num_rows, 'row')} by {source}")
        tables.append(table)
    whole = pa.concat_tables([table.cast(_PLAIN_GPU) for table in tables]).sort_by("start_ns")
    write_table(trace.path, existing.name, schema.GPU, whole.cast(schema.GPU))
    manifest.notes = [note for note in manifest.notes if not note.startswith("no GPU calls")]
    write_manifest(trace.path, manifest)
    return added


def _read(path: Path) -> _Reading:
    try:
        with open_foreign_unpacked(path) as file:
            return _read_open(file, path)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise IotwinError(f"{path} cannot be read ({reason}); give a profile written by PyTorch or TensorFlow") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IotwinError(f"{path} is not a profile that can be read: {error}") from None


def _read_open(file: BinaryIO, path: Path) -> _Reading:
    head = file.read(_HEAD_BYTES)
    events = _EVENTS.search(head)
    if events is None and not head.lstrip().startswith(b"["):
        raise IotwinError(f"{path} holds no traceEvents; give a profile written by PyTorch or TensorFlow")
    base = _BASE.search(head)
    reading = _Reading(int(base[1]) if base else 0)
    file.seek(events.end() if events else head.index(b"[") + 1)
    for piece in object_pieces(file):
        rows = [row for event in _DECODER.decode(piece) if (row := _row(event, reading))]
        if rows:
            reading.tables.append(pa.Table.from_pylist(rows, schema=_PLAIN_GPU))
    if not reading.tables:
        raise IotwinError(
            f"{path} holds no work of an accelerator ({reading.others} events of the CPU); record it with the GPU's activity"
        )
    return reading


def _row(event: Event, reading: _Reading) -> dict[str, Any] | None:
    """Return `event` as a row of schema.GPU; None if it is no accelerator work. Adds devices and CPU events to `reading`."""
    category = str(event.cat).lower()
    if event.ph == "M" and event.name == "process_name" and isinstance(event.args, dict):
        device = _GPU_PROCESS.search(str(event.args.get("name")))
        if device:
            reading.devices[str(event.pid)] = int(device[1])
        return None
    if event.ph != "X" or not is_possible(event):
        return None
    if category in GPU_CATEGORIES:
        row = gpu_row(event, category)
        if row["kind"] in _DEVICE_KINDS:
            row |= {"pid": None, "tid": None}  # Kineto writes the device and the stream into pid and tid
        return row
    if str(event.pid) not in reading.devices:
        reading.others += 1
        return None
    return _tensorflow_row(event, reading.devices[str(event.pid)])


def _tensorflow_row(event: Event, device: int) -> dict[str, Any]:
    name = str(event.name)
    kind = next((kind for word, kind in _MEMORY_NAMES if word in name.lower()), "kernel")
    return gpu_row(event, "kernel") | {
        "kind": kind,
        "device": device,
        "stream": event.tid if isinstance(event.tid, int) and abs(event.tid) < 1 << 62 else None,
        "pid": None,
        "tid": None,
        "direction": gpu_row(event, "gpu_memcpy")["direction"] if kind == "copy" else None,
        "source": "tensorflow",
    }


def _on_clock_of_trace(reading: _Reading, path: Path, trace: Trace) -> pa.Table:
    table = pa.concat_tables(reading.tables)
    times = table["start_ns"].to_numpy()
    if reading.base_ns > 1 << 62:
        raise IotwinError(f"{path} has an impossible begin, {reading.base_ns} ns after 1970; record the profile again")
    if not reading.base_ns and times.min() < _EPOCH_US * 1000:
        raise IotwinError(f"{path} has no begin time (its times count from its start), so it cannot be placed in the trace")
    if not trace.manifest.clock:
        raise IotwinError(f"{trace.path} holds no reading of the clocks, so a profile cannot be placed in it")
    placed = realtime_to_monotonic(trace.manifest.clock)(times + reading.base_ns)
    if placed.max() < trace.manifest.start_ns or placed.min() > trace.manifest.end_ns:
        apart_s = (placed.min() - trace.manifest.start_ns) / 1e9
        raise IotwinError(f"{path} is of another run: it begins {apart_s:+.1f} s from the trace's start")
    return table.set_column(0, "start_ns", pa.array(placed))
