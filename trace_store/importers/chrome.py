"""Import Chrome's JSON trace events, as profilers (PyTorch's Kineto) and DFTracer (one event per line) write them."""

import re
import zlib
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted
from iotwin.common.untrusted_files import open_foreign_unpacked
from iotwin.trace_store import schema
from iotwin.trace_store.importers.assemble import Imported, sorted_table
from iotwin.trace_store.importers.sorted_calls import Runs, calls_of
from iotwin.trace_store.importers.text import read_unpacked

_NANOSECONDS = 1000  # Chrome's times are microseconds
_CALL_CATEGORIES = ("posix", "stdio", "syscall", "io")
_OWN_CATEGORIES = {*schema.GROUP_OF_OP.values(), "other"}  # categories in iotwin's exports
_TRAINING_CATEGORIES = {"ai_root", "pipeline", "dataloader", "compute", "data", "checkpoint"}  # categories in DFTracer's .pfw
GPU_CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "set",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
_RUNTIME_KINDS = (("memcpy", "memcpy"), ("memset", "memset"), ("malloc", "malloc"), ("free", "free"), ("synchronize", "sync"))
_DIRECTIONS = {
    "HtoH": "host_to_host",
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "PtoP": "peer",
}
_OPS = {"open64": "open", "pread": "pread64", "pwrite": "pwrite64", "creat64": "creat", "fopen": "open", "fopen64": "open",
        "fread": "read", "fwrite": "write", "fclose": "close"}  # fmt: skip
_CALL_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "tid", "path", "offset", "requested", "result")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_LAST_NS, _INT32 = 1 << 62, (1 << 31) - 1


class Event(msgspec.Struct):
    """A trace event of Chrome's format; `ts` (start) and `dur` (duration) are microseconds. Other keys are ignored."""

    name: Any = ""
    cat: Any = ""
    ph: str = ""
    ts: int | float = 0  # an int stays exact in nanoseconds; a float of a time since 1970 would be rounded there
    dur: int | float = 0
    pid: Any = 0
    tid: Any = 0
    args: Any = None


class _TraceDocument(msgspec.Struct):
    traceEvents: list[Event] = []


_LINE = msgspec.json.Decoder(Event)
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def recognises(source: Path) -> bool:
    """Return True if `source` begins like a JSON file with trace events."""
    try:
        with open_foreign_unpacked(source) as file:
            head = file.read(4096)
    except (IotwinError, OSError, EOFError, zlib.error):
        return False
    return head.lstrip()[:1] in (b"[", b"{") and (b'"traceEvents"' in head or b'"ph"' in head or b'"cat"' in head)


def read(source: Path, timezone: str | None) -> Imported:
    """Return the calls on files, accelerator activity and profiler steps in `source`, with times converted to ns."""
    content = read_unpacked(source)
    torn = {source.name: 0}
    try:
        events = _from_document(content)
    except _NO_JSON:
        events, torn[source.name] = _by_line(content)
    if events and all(event.ph == "M" or str(event.cat) in _TRAINING_CATEGORIES for event in events):
        raise IotwinError(
            f"{source} holds parts of training and no calls on files, as iotwin emulate logs them with DFTRACER_ENABLE=1; "
            "trace the run (iotwin trace), or import DFTracer's own file"
        )
    return _imported(_paired(events), torn)


def _from_document(content: bytes) -> list[Event]:
    if content.lstrip()[:1] == b"[":
        return msgspec.json.decode(content, type=list[Event])
    document = msgspec.json.decode(content, type=_TraceDocument)
    if not document.traceEvents:
        raise msgspec.DecodeError("no traceEvents: one event a line, perhaps")
    return document.traceEvents


def _by_line(content: bytes) -> tuple[list[Event], int]:
    events, torn = [], 0
    for line in content.split(b"\n"):
        line = line.strip().rstrip(b",")
        if line in (b"", b"[", b"]"):
            continue
        try:
            events.append(_LINE.decode(line.removeprefix(b"[")))
        except _NO_JSON:
            torn += 1
    return events, torn


def _paired(events: list[Event]) -> list[Event]:
    """Return `events` with each pair of a begin event (B) and an end event (E) joined into one event with a duration."""
    whole, begun = [], dict[tuple[str, str], list[Event]]()
    for event in events:
        thread = str(event.pid), str(event.tid)  # texts, as pid and tid may be of any JSON type, even lists
        if event.ph == "B":
            begun.setdefault(thread, []).append(event)
        elif event.ph == "E" and begun.get(thread):
            start = begun[thread].pop()
            start.dur = event.ts - start.ts
            whole.append(start)
        else:
            whole.append(event)
    return whole


def _imported(events: list[Event], torn: dict[str, int]) -> Imported:
    names = {
        str(event.args.get("value")): str(event.args.get("name"))
        for event in events
        if event.ph == "M" and event.name == "FH" and isinstance(event.args, dict)
    }
    calls, gpu, phases, others = [], [], [], 0
    for event in events:
        category = str(event.cat).lower()
        if event.ph == "M":
            continue
        if not is_possible(event):
            torn[next(iter(torn))] += 1
        elif category in _CALL_CATEGORIES or _is_own(event, category):
            calls.append(_call(event, names))
        elif category in GPU_CATEGORIES:
            gpu.append(gpu_row(event, category))
        elif step := _STEP.fullmatch(str(event.name)):
            start_ns = _ns(event.ts)
            phases.append(
                {
                    "phase": "step",
                    "start_ns": start_ns,
                    "end_ns": start_ns + _ns(event.dur),
                    "rank": 0,
                    "step": _integer(step[1], None, _INT32),
                }
            )
        else:
            others += 1
    notes = [f"left out: {counted(others, 'event')} of other kinds than calls on files and accelerator work"] if others else []
    table, impossible = calls_of(calls, _CALL_COLUMNS)
    torn[next(iter(torn))] += impossible
    return Imported(Runs.of(table), torn, notes, phases=phases, gpu=sorted_table(gpu, schema.GPU, "start_ns"))


def _is_own(event: Event, category: str) -> bool:
    return category in _OWN_CATEGORIES and isinstance(event.args, dict) and "result" in event.args


def is_possible(event: Event) -> bool:
    """Return True if the end of `event`, its start plus its duration, fits in 64 bits in ns."""
    most = _LAST_NS / 2 / _NANOSECONDS
    return abs(event.ts) <= most and abs(event.dur) <= most


def _ns(microseconds: float) -> int:
    return round(microseconds * _NANOSECONDS)


def _integer(value: Any, missing: int | None = None, most: int = _LAST_NS) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return missing
    return number if abs(number) <= most else missing


def _as_int32(number: int) -> int:
    """Return the lowest 32 bits of `number` as a signed number, because some tools write a thread's address as its id."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _call(event: Event, names: dict[str, str]) -> tuple[Any, ...]:
    args = event.args if isinstance(event.args, dict) else {}
    op = _OPS.get(str(event.name), str(event.name))
    named = (args.get(key) for key in ("fname", "filename", "path", "file"))
    path = next(filter(None, named), None) or names.get(str(args.get("fhash")))
    size = _integer(args.get("count", args.get("size", args.get("image_size", args.get("requested")))))
    moves = op in schema.READ_OPS or op in schema.WRITE_OPS
    result = _integer(args.get("ret", args.get("result")), size if moves else 0)
    offset = _integer(args.get("offset")) if moves else None
    pid, tid = (_as_int32(_integer(number, 0) or 0) for number in (event.pid, event.tid))
    path = None if path is None else str(path)
    return _ns(event.ts), max(_ns(event.dur), 0), op, pid, tid, path, offset, size if moves else None, result or 0


def gpu_row(event: Event, category: str) -> dict[str, Any]:
    """Return `event`, of a `category` in GPU_CATEGORIES, as a row of schema.GPU, with times converted to ns."""
    args = event.args if isinstance(event.args, dict) else {}
    kind, name = GPU_CATEGORIES[category], str(event.name)
    if category.startswith("cuda"):
        kind = next(
            (kind for word, kind in _RUNTIME_KINDS if word in name.lower()), "launch" if "launch" in name.lower() else "other"
        )
    direction = next((full for short, full in _DIRECTIONS.items() if short in name), None) if kind == "copy" else None
    return {
        "start_ns": _ns(event.ts), "duration_ns": max(_ns(event.dur), 0), "kind": kind,
        "device": _integer(args.get("device"), None, _INT32),
        "stream": _integer(args.get("stream")), "size_bytes": _integer(args.get("bytes")), "direction": direction,
        "pid": _integer(event.pid, 0, _INT32), "tid": _integer(event.tid, 0, _INT32), "name": name, "source": "kineto",
    }  # fmt: skip
