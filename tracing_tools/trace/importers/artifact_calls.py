"""Calls and block requests of the paper artifact's bpftrace text: one event a line, header lines first."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracing_tools.trace import schema
from tracing_tools.trace.importers.assemble import CALLS, calls_table, same_label
from tracing_tools.trace.importers.text import Columns, read_columns, read_lines

_NAME = pa.dictionary(pa.int32(), pa.string())
_TRANSFER = pa.schema([
    ("end_ns", pa.int64()), ("pid", pa.int32()), ("offset", pa.int64()), ("result", pa.uint64()),
    ("duration_ns", pa.int64()), ("path", _NAME),
])  # fmt: skip
_OPEN = pa.schema([
    ("end_ns", pa.int64()), ("pid", pa.int32()), ("comm", _NAME), ("duration_ns", pa.int64()), ("path", _NAME), ("name", _NAME),
])  # fmt: skip
_CLOSE = pa.schema(
    [("end_ns", pa.int64()), ("pid", pa.int32()), ("fd", pa.int32()), ("duration_ns", pa.int64()), ("path", _NAME)]
)
_OPEN_LINE = re.compile(r"(\d+) +(\d+) +(.*?) +(\d+)(?: +(/\S*))?(?: +(\S.*?))? *")
_CREATE_LINE = re.compile(
    r"(?P<end>\d+) +(?P<pid>\d+) +(?P<op>mkdir|rmdir|unlink)\(\) +(?:(?P<mode>\d+) +(?=\d))?(?P<took>\d+) +(?P<names>\S.*?) *"
)
_BIO_HEADER = "TIMESTAMP PID COMM DISK R/W BYTES SECTOR LAT"
_BIO_TYPES = {"TIMESTAMP": pa.int64(), "PID": pa.int32(), "BYTES": pa.int64(), "SECTOR": pa.int64(), "LAT": pa.int64()}
_PLAIN_NUMBER = re.compile(r"[0-9]{1,18}")
_UNSIGNED = 1 << 64


def read_calls(directory: Path, torn: dict[str, int]) -> pa.Table:
    """Return the calls (CALLS) of the directory's files in no order; `torn` is told of torn lines by file."""
    readers: dict[str, Callable[[Path], Columns]] = {
        "trace_read.out": lambda path: _transfers(path, "read"), "trace_write.out": lambda path: _transfers(path, "write"),
        "trace_openat.out": _opens, "trace_close.out": _closes, "trace_create_del.out": _creations,
    }  # fmt: skip
    tables = [CALLS.empty_table()]
    for name, reader in readers.items():
        if (directory / name).exists():
            found = reader(directory / name)
            torn[name] = found.torn
            tables.append(found.table)
    return pa.concat_tables(tables).unify_dictionaries()


def _number(text: str) -> int:
    """Return a 64-bit number as the artifact prints it: decimal or 0x, an error as an unsigned value near 2**64; ValueError."""
    value = int(text, 16 if text.startswith("0x") else 10)
    if not -(1 << 63) <= value < _UNSIGNED or "_" in text:
        raise ValueError(text)
    return value - _UNSIGNED if value >= 1 << 63 else value


def transfer_line(line: str) -> tuple[Any, ...] | None:
    """Return (end_ns, pid, offset, result as unsigned, duration_ns, name) of a line of trace_read.out, None when it is torn."""
    parts = line.split(None, 5)
    if len(parts) < 5 or not all(_PLAIN_NUMBER.fullmatch(parts[place]) for place in (0, 1, 4)):
        return None
    try:
        end, pid, offset, result, took = map(_number, parts[:5])
    except ValueError:
        return None
    name = parts[5].strip() if len(parts) == 6 else ""
    # A number and more after it is no file name but the line of another thread, run into this one.
    if name.split()[:1] != name.split() and name.split()[0].isdigit():
        return None
    return None if pid >= 1 << 31 else (end, pid, offset, result % _UNSIGNED, took, name)


def _transfers(path: Path, op: str) -> Columns:
    found = read_columns(path, _TRANSFER, transfer_line)
    table = found.table
    end, duration = table["end_ns"].to_numpy(), table["duration_ns"].to_numpy()
    offset = table["offset"].to_numpy()
    columns = {
        "start_ns": end - duration, "duration_ns": duration, "pid": table["pid"], "path": _paths(table["path"]),
        "op": same_label(op, len(end)), "offset": pa.array(offset, mask=offset < 0),
        "result": table["result"].to_numpy().view(np.int64),
    }  # fmt: skip
    return Columns(calls_table(**columns), found.torn)


def _paths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the label column with null for no name."""
    return pa.chunked_array([_nameless(chunk) for chunk in column.chunks], column.type)


def _nameless(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    empty = pc.index(chunk.dictionary, "").as_py()
    indices = chunk.indices if empty < 0 else pc.if_else(pc.equal(chunk.indices, empty), None, chunk.indices)
    return pa.DictionaryArray.from_arrays(indices, chunk.dictionary)


def _opens(path: Path) -> Columns:
    def parse(line: str) -> tuple[Any, ...] | None:
        match = _OPEN_LINE.fullmatch(line)
        if match is None:
            return None
        return int(match[1]), int(match[2]), match[3], int(match[4]), match[5] or "", match[6] or ""

    found = read_columns(path, _OPEN, parse)
    frame = found.table.select(["path", "name"]).to_pandas().astype(object)
    whole = np.where(frame["path"].str.startswith("/").to_numpy(dtype=bool), frame["path"], frame["name"])
    return Columns(_timed(found.table, "openat", pa.array(whole, pa.string()).dictionary_encode()), found.torn)


def _closes(path: Path) -> Columns:
    def parse(line: str) -> tuple[Any, ...] | None:
        parts = line.split(None, 4)
        if len(parts) < 4 or not all(part.isdecimal() for part in parts[:4]):
            return None
        return *map(int, parts[:4]), parts[4].strip() if len(parts) == 5 else ""

    found = read_columns(path, _CLOSE, parse)
    return Columns(_timed(found.table, "close", _paths(found.table["path"]), fd=found.table["fd"]), found.torn)


def _timed(table: pa.Table, op: str, path: Any, **more: Any) -> pa.Table:
    end, duration = table["end_ns"].to_numpy(), table["duration_ns"].to_numpy()
    return calls_table(
        start_ns=end - duration, duration_ns=duration, pid=table["pid"], path=path, op=same_label(op, len(end)),
        result=np.zeros(len(end), np.int64), **more,
    )  # fmt: skip


def _creations(path: Path) -> Columns:
    rows, torn = [], 0
    for line in read_lines(path):
        match = _CREATE_LINE.fullmatch(line)
        if match:
            # unlink has NAME PATH, the others PATH.
            name = match["names"].split(None, 1)[-1] if match["op"] == "unlink" else match["names"]
            rows.append((int(match["end"]) - int(match["took"]), int(match["took"]), match["op"], int(match["pid"]), name))
        elif line[:1].isdigit():
            torn += 1
    columns = dict(zip(("start_ns", "duration_ns", "op", "pid", "path"), zip(*rows, strict=True), strict=True)) if rows else {}
    if not columns:
        return Columns(CALLS.empty_table(), torn)
    labels = {name: pa.array(columns[name]).dictionary_encode() for name in ("op", "path")}
    return Columns(calls_table(**{**columns, **labels, "result": np.zeros(len(rows), np.int64)}), torn)


def read_block(path: Path, torn: dict[str, int]) -> pa.Table:
    """Return the block requests (schema.BLOCK) of trace_bio.out in order of issue; its header says which column is which."""
    names = _bio_columns(path)
    columns = pa.schema([(name, _BIO_TYPES.get(name, _NAME)) for name in names])
    found = read_columns(path, columns, lambda line: _bio_line(line, names))
    torn[path.name] = found.torn
    table = found.table
    rw, end, duration = table["R/W"].cast(pa.string()), table["TIMESTAMP"].to_numpy(), table["LAT"].to_numpy()
    letters = {"R": "read", "W": "write", "F": "flush", "D": "discard"}
    kinds = [letters.get(text[:1], "other") for text in rw.to_pylist()]
    comm = table["COMM"].cast(pa.string())
    from_kernel = pc.match_substring_regex(comm, "^(kworker|jbd2|kswapd|ext4|xfsaild|flush)").to_numpy()
    has = {letter: pc.match_substring(pc.utf8_slice_codeunits(rw, 1), letter).to_numpy() for letter in "SMFA"}
    flags = [schema.BLOCK_SYNC, schema.BLOCK_META, schema.BLOCK_FUA, schema.BLOCK_READAHEAD]
    block = {
        "queued_ns": None, "issue_ns": end - duration, "duration_ns": duration, "op": kinds, "device": None,
        "sector": table["SECTOR"], "size_bytes": table["BYTES"], "cgroup": None, "pid": table["PID"], "comm": comm,
        "flags": sum(bit * has[letter] for bit, letter in zip(flags, "SMFA", strict=True)),
        "origin": np.where(from_kernel, "kernel", "task"),
    }  # fmt: skip
    plain = [pa.nulls(len(end), f.type) if block.get(f.name) is None else _column(block[f.name], f.type) for f in schema.BLOCK]
    return pa.table(plain, schema=schema.BLOCK).sort_by("issue_ns")


def _column(values: Any, kind: pa.DataType) -> Any:
    array = values if isinstance(values, pa.ChunkedArray) else pa.array(values)
    return array.cast(pa.string()).dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else array.cast(kind)


def _bio_columns(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line[:1].isdigit():
                break
            names = line.split()
            if set(_BIO_HEADER.split()) <= set(names):
                return names
    return _BIO_HEADER.split()


def _bio_line(line: str, names: list[str]) -> tuple[Any, ...] | None:
    """Return the fields of a line whose COMM holds blanks, None for a torn line."""
    parts, comm = line.split(), names.index("COMM")
    after = len(names) - comm - 1
    if len(parts) < len(names):
        return None
    fields = [*parts[:comm], " ".join(parts[comm : len(parts) - after]), *parts[len(parts) - after :]]
    try:
        return tuple(int(text) if name in _BIO_TYPES else text for name, text in zip(names, fields, strict=True))
    except ValueError:
        return None
