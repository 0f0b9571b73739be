"""Chrome's JSON trace events: those of profilers (PyTorch's Kineto), and of DFTracer, which writes one event a line."""

import gzip
import re
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa

from common.errors import IotwinError
from tracing_tools.trace import schema
from tracing_tools.trace.importers.assemble import Imported
from tracing_tools.trace.importers.runs import Runs, calls_of

_NANOSECONDS = 1000  # Chrome's times are microseconds
_CALL_CATEGORIES = ("posix", "stdio", "syscall", "io")
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
_PIECE_BYTES = 1 << 24
_LAST_NS, _INT32 = 1 << 62, (1 << 31) - 1
_MOST_BYTES = 1 << 33  # of a decompressed file: what a small bomb may become


class Event(msgspec.Struct):
    """A trace event; what other keys it has does not matter."""

    name: Any = ""
    cat: Any = ""
    ph: str = ""
    ts: int | float = 0  # whole numbers stay exact, which times since 1970 need
    dur: int | float = 0
    pid: Any = 0
    tid: Any = 0
    args: Any = None


class _Document(msgspec.Struct):
    """The object form of a trace."""

    traceEvents: list[Event] = []


_LINE = msgspec.json.Decoder(Event)
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def recognises(source: Path) -> bool:
    """Return whether the file begins as trace events do."""
    if not source.is_file():
        return False
    try:
        with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file:
            head = file.read(4096)
    except (OSError, EOFError, zlib.error):
        return False
    return head.lstrip()[:1] in (b"[", b"{") and (b'"traceEvents"' in head or b'"ph"' in head or b'"cat"' in head)


def read(source: Path, timezone: str | None) -> Imported:
    """Return the calls on files, accelerator activity and profiler steps of the trace; times are its own, microseconds to ns."""
    content = _content(source)
    torn = {source.name: 0}
    try:
        events = _whole(content)
    except _NO_JSON:
        events, torn[source.name] = _by_line(content)
    return _imported(_paired(events), torn)


def _content(source: Path) -> bytes:
    try:
        with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file:
            content = _at_most(cast(BinaryIO, file), _MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise IotwinError(f"{source} cannot be read ({error}): it is cut off or damaged; copy it again") from None
    if len(content) > _MOST_BYTES:
        raise IotwinError(f"{source} holds more than {_MOST_BYTES >> 30} GiB; split it")
    return content


def _at_most(file: BinaryIO, most_bytes: int) -> bytes:
    """Return what the file holds, up to a limit; in pieces, as one read of it would take that much memory at once."""
    pieces, left = [], most_bytes
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _whole(content: bytes) -> list[Event]:
    if content.lstrip()[:1] == b"[":
        return msgspec.json.decode(content, type=list[Event])
    document = msgspec.json.decode(content, type=_Document)
    if not document.traceEvents:
        raise msgspec.DecodeError("no traceEvents: one event a line, perhaps")
    return document.traceEvents


def _by_line(content: bytes) -> tuple[list[Event], int]:
    """Return the events of one a line, as DFTracer writes them, and how many lines were torn."""
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
    """Return the events with a duration; pairs of begin and end become one."""
    whole, begun = [], dict[tuple[str, str], list[Event]]()
    for event in events:
        thread = str(event.pid), str(event.tid)  # which may be anything, lists too
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
        elif category in _CALL_CATEGORIES:
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
    notes = [f"{others} events that are neither calls on files nor accelerator work were left out"] if others else []
    table, impossible = calls_of(calls, _CALL_COLUMNS)
    torn[next(iter(torn))] += impossible
    return Imported(Runs.of(table), torn, notes, phases=phases, gpu=_gpu_table(gpu) if gpu else None)


def is_possible(event: Event) -> bool:
    """Whether the event's times are such that they can be added up in 64 bits, as nanoseconds."""
    most = _LAST_NS / 2 / _NANOSECONDS
    return abs(event.ts) <= most and abs(event.dur) <= most


def _ns(microseconds: float) -> int:
    return round(microseconds * _NANOSECONDS)


def _integer(value: Any, missing: int | None = None, most: int = _LAST_NS) -> int | None:
    """Return the value as a whole number; `missing` when it is none, or one that its column could not hold."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return missing
    return number if abs(number) <= most else missing


def _as_int32(number: int) -> int:
    """Return the number as the lowest 32 bits of it read: a thread may be numbered by its address."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _call(event: Event, names: dict[str, str]) -> tuple[Any, ...]:
    args = event.args if isinstance(event.args, dict) else {}
    op = _OPS.get(str(event.name), str(event.name))
    path = args.get("fname") or args.get("filename") or args.get("path") or names.get(str(args.get("fhash")))
    size = _integer(args.get("count", args.get("size", args.get("image_size"))))
    moves = op in schema.READ_OPS or op in schema.WRITE_OPS
    result = _integer(args.get("ret"), size if moves else 0)
    offset = _integer(args.get("offset")) if moves else None
    pid, tid = (_as_int32(_integer(number, 0) or 0) for number in (event.pid, event.tid))
    path = None if path is None else str(path)
    return _ns(event.ts), max(_ns(event.dur), 0), op, pid, tid, path, offset, size if moves else None, result or 0


def gpu_row(event: Event, category: str) -> dict[str, Any]:
    """Return the row of schema.GPU of an event of one of GPU_CATEGORIES; its times are microseconds to ns."""
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


def _gpu_table(rows: list[dict[str, Any]]) -> pa.Table:
    rows.sort(key=lambda row: row["start_ns"])
    return pa.Table.from_pylist(rows, schema=schema.GPU)
