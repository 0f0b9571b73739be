"""Import MLCommons Chakra execution traces (.et): storage nodes, phases and accelerator work.

Nodes are decoded without protobuf's generated classes: a message is a sequence of fields with a number and a wire type
(https://protobuf.dev/programming-guides/encoding/). tracing_tools/exports/chakra.py writes .et files.
"""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted
from iotwin.common.untrusted_files import open_foreign_unpacked
from iotwin.trace_store import chakra as et
from iotwin.trace_store import schema
from iotwin.trace_store.importers.assemble import Imported, sorted_table
from iotwin.trace_store.importers.sorted_calls import Runs, calls_of
from iotwin.trace_store.importers.text import read_unpacked

_NANOSECONDS = 1000  # in a microsecond
_NAME_OF_BLOCK_OP = {number: name for name, number in et.BLOCK_OPS.items()}
_PHASE_OF_NODE = {number: name for name, number in et.PHASE_NODES.items()}
_CALL_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "tid", "path", "fd", "offset", "requested", "result", "flags")
_ATTRIBUTE_NUMBERS = (7, 9, 11, 13, 27)  # AttributeProto's fields for int32, int64, uint32, uint64 and bool
_ATTRIBUTE_TEXT = 29

Fields = dict[int, list[Any]]  # maps a field's number to its values: integers, or bytes for wire types with a length


def recognises(source: Path) -> bool:
    """Return True if the file `source` begins with a GlobalMetadata message: a version and optional attributes."""
    try:
        with open_foreign_unpacked(source) as file:
            head = file.read(4096)
        length, begin = _varint(head, 0)
        fields = _fields(head[begin : begin + length])
    except (IotwinError, OSError, EOFError, zlib.error, ValueError):
        return False
    version = fields.get(1, [b""])[0]
    return set(fields) <= {1, 2} and isinstance(version, bytes) and version[:1].isdigit() and version.isascii()


def read(source: Path, timezone: str | None) -> Imported:
    """Return the calls, block requests, phases and accelerator work in `source`.

    Times are exact to 1 us, or to 1 ns if iotwin exported the file. Raises IotwinError if `source` is cut off or not Chakra's.
    """
    try:
        return _imported(source)
    except (OSError, EOFError, zlib.error, ValueError, OverflowError, TypeError, pa.ArrowException) as error:
        problem = " ".join(str(error).split())
        raise IotwinError(f"{source} cannot be read as a Chakra trace ({problem}): it is damaged; copy it again") from None


def _imported(source: Path) -> Imported:
    imported = Imported()
    calls: list[tuple[Any, ...]] = []
    block: list[dict[str, Any]] = []
    gpu: list[dict[str, Any]] = []
    others = 0
    for index, node in enumerate(_nodes(source)):
        if index == 0:
            continue  # skip the first message, GlobalMetadata
        attributes = dict(_attributes(node))
        storage = _fields(node[11][0]) if 11 in node else {}
        kind = _integer(node, 3)
        if 10 in storage:
            calls.append(_call(node, attributes, _fields(storage[10][0])))
        elif 12 in storage:
            block.append(_request(node, attributes, _fields(storage[12][0])))
        elif kind in _PHASE_OF_NODE or (kind == et.METADATA_NODE and _text(node, 2) in schema.PHASE_NAMES):
            imported.phases.append(_phase(node, attributes, _PHASE_OF_NODE.get(kind)))
        elif kind == et.COMP_NODE and "kind" in attributes:
            gpu.append(_work(node, attributes))
        else:
            others += 1
    if others:
        imported.notes.append(
            f"left out: {counted(others, 'node')} of other kinds than storage, phases and known accelerator work"
        )
    table, impossible = calls_of(calls, _CALL_COLUMNS)
    imported.calls = Runs.of(table)
    if impossible:
        imported.notes.append(f"left out: {counted(impossible, 'call')} with numbers that no call has")
    imported.block = sorted_table(block, schema.BLOCK, "issue_ns")
    imported.gpu = sorted_table(gpu, schema.GPU, "start_ns")
    return imported


def _nodes(source: Path) -> Iterator[Fields]:
    content = read_unpacked(source)
    position = 0
    while position < len(content):
        length, position = _varint(content, position)
        if position + length > len(content):
            raise ValueError("the last node is cut off")
        yield _fields(content[position : position + length])
        position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if position >= len(content):
            raise ValueError("a number is cut off")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value & (1 << 64) - 1, position
    raise ValueError("a number is longer than 64 bits")


def _fields(content: bytes) -> Fields:
    found: Fields = {}
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        kind = key & 7
        value: Any
        if kind == 0:
            value, position = _varint(content, position)
        else:
            length = {1: 8, 5: 4}.get(kind)
            if length is None:
                if kind != 2:
                    raise ValueError(f"wire type {kind} is unknown")
                length, position = _varint(content, position)
            value, position = content[position : position + length], position + length
            if position > len(content):
                raise ValueError("a field is cut off")
        found.setdefault(key >> 3, []).append(value)
    return found


def _integer(fields: Fields, number: int, signed: bool = False) -> int:
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value - (1 << 64) if signed and value >> 63 else value


def _text(fields: Fields, number: int) -> str:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no text")
    return value.decode("utf-8", "surrogatepass")


def _attributes(node: Fields) -> Iterator[tuple[str, Any]]:
    for content in node.get(10, []):
        fields = _fields(content)
        number = next((number for number in _ATTRIBUTE_NUMBERS if number in fields), None)
        if number is not None:
            yield _text(fields, 1), _integer(fields, number, signed=True)
        elif _ATTRIBUTE_TEXT in fields:
            yield _text(fields, 1), _text(fields, _ATTRIBUTE_TEXT)


def _times(node: Fields, attributes: dict[str, Any]) -> tuple[int, int]:
    start_ns = attributes.get("start_ns", _integer(node, 6) * _NANOSECONDS)
    return start_ns, attributes.get("duration_ns", _integer(node, 7) * _NANOSECONDS)


def _call(node: Fields, attributes: dict[str, Any], detail: Fields) -> tuple[Any, ...]:
    name, op = _text(node, 2), _integer(detail, 1)
    call = name if et.FS_OPS.get(name) == op else et.CALL_OF_FS_OP.get(op, name)
    pid = attributes.get("pid", 0)
    offset = _integer(detail, 4) if 4 in detail else None
    size = _integer(detail, 5) if 5 in detail else None
    path = _text(detail, 2) if 2 in detail else None
    fd = np.int32(_integer(detail, 3, signed=True)).item()
    # If a read or write has no result, assume that it moved all requested bytes.
    result = attributes.get("result", size if call in schema.READ_OPS or call in schema.WRITE_OPS else 0)
    flags = int(et.event_flags(np.array([_integer(detail, 6)]))[0])
    return *_times(node, attributes), call, pid, attributes.get("tid", pid), path, fd, offset, size, result or 0, flags


def _request(node: Fields, attributes: dict[str, Any], detail: Fields) -> dict[str, Any]:
    issue_ns, duration_ns = _times(node, attributes)
    major, _, minor = _text(detail, 3).partition(":")
    numbers = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
    return {
        "queued_ns": attributes.get("queued_ns"),
        "issue_ns": issue_ns,
        "duration_ns": None if "unfinished" in attributes else duration_ns,
        "op": _NAME_OF_BLOCK_OP.get(_integer(detail, 1), "other"),
        "device": os.makedev(*numbers),
        "sector": _integer(detail, 4),
        "size_bytes": attributes.get("size_bytes", _integer(detail, 5) * et.SECTOR_BYTES),
        "flags": int(et.block_flags(np.array([_integer(detail, 6)]))[0]),
        "cgroup": attributes.get("cgroup"),
        "origin": attributes.get("origin"),
        "pid": attributes.get("pid"),
        "comm": attributes.get("comm"),
    }


def _phase(node: Fields, attributes: dict[str, Any], name: str | None) -> dict[str, Any]:
    start_ns, duration_ns = _times(node, attributes)
    numbers = {key: attributes.get(key) for key in ("rank", "epoch", "step")}
    return {"phase": name or _text(node, 2), "start_ns": start_ns, "end_ns": start_ns + duration_ns, **numbers}


def _work(node: Fields, attributes: dict[str, Any]) -> dict[str, Any]:
    start_ns, duration_ns = _times(node, attributes)
    columns = ("kind", "device", "stream", "size_bytes", "direction", "pid", "tid", "source")
    known = {key: attributes.get(key) for key in columns}
    return {"start_ns": start_ns, "duration_ns": duration_ns, "name": _text(node, 2), **known}
