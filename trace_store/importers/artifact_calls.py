"""Parse calls and block requests in the paper artifact's bpftrace text: header lines, then one event per line."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.untrusted_files import read_foreign_lines
from iotwin.trace_store import schema
from iotwin.trace_store.columns import column, labels, numbers
from iotwin.trace_store.importers.sorted_calls import Runs, as_type, calls_of, calls_table, same_label, sorted_by_start
from iotwin.trace_store.importers.text import TextColumns, column_blocks, read_lines

_NAME = pa.dictionary(pa.int32(), pa.string())
_TRANSFER = pa.schema(
    [
        ("end_ns", pa.int64()),
        ("pid", pa.int32()),
        ("offset", pa.int64()),
        ("result", pa.uint64()),
        ("duration_ns", pa.int64()),
        ("path", _NAME),
    ]
)
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
_KERNEL_THREAD = re.compile("kworker|jbd2|kswapd|ext4|xfsaild|flush")
_PLAIN_NUMBER = re.compile(r"[0-9]{1,18}")
_UNSIGNED = 1 << 64


def read_calls(directory: Path, torn: dict[str, int], runs: Runs) -> None:
    """Add the calls in the files of `directory` to `runs`. Set `torn` to the number of cut-off lines by file name."""
    paths = _Paths()
    readers: dict[str, Callable[[Path], Iterator[TextColumns]]] = {
        "trace_openat.out": _opens,  # read first, as only the lines of this file have whole paths
        "trace_read.out": lambda path: _transfers(path, "read", paths),
        "trace_write.out": lambda path: _transfers(path, "write", paths),
        "trace_close.out": lambda path: _closes(path, paths),
        "trace_create_del.out": _creations,
    }
    for name, reader in readers.items():
        if (directory / name).exists():
            torn[name] = 0
            for found in reader(directory / name):
                torn[name] += found.torn
                runs.add(found.table)
                if name == "trace_openat.out":
                    paths.learn(found.table["path"])


class _Paths:
    """Maps file names to whole paths. Only the recording of opens has whole paths; the other recordings have only names."""

    def __init__(self) -> None:
        self._whole: dict[str, str | None] = {}  # None if files of several folders have the name

    def learn(self, opened: pa.ChunkedArray) -> None:
        """Store the whole paths of opened files, which the column `opened` holds."""
        for path in opened.unify_dictionaries().combine_chunks().dictionary.to_pylist():
            if path.startswith("/"):
                name = path.rpartition("/")[2]
                self._whole[name] = path if self._whole.get(name, path) == path else None

    def of(self, named: pa.ChunkedArray) -> pa.Array:
        """Return the column `named` with whole paths in place of names whose path is known, and null for an empty name."""
        array = named.combine_chunks()
        names = array.dictionary.to_pylist()
        codes = numbers(array.indices)
        missing = codes == names.index("") if "" in names else None
        return labels(codes, [self._whole.get(name) or name for name in names], missing)


def _number(text: str) -> int:
    """Parse a signed 64-bit number that was printed as unsigned, decimal or 0x... (-1 as 2**64 - 1). Else raises ValueError."""
    value = int(text, 16 if text.startswith("0x") else 10)
    if not -(1 << 63) <= value < _UNSIGNED or "_" in text:
        raise ValueError(text)
    return value - _UNSIGNED if value >= 1 << 63 else value


def transfer_line(line: str) -> tuple[Any, ...] | None:
    """Parse a line of trace_read.out. Return (end_ns, pid, offset, unsigned result, duration_ns, name); None if it is cut off."""
    parts = line.split(None, 5)
    if len(parts) < 5 or not all(_PLAIN_NUMBER.fullmatch(parts[column]) for column in (0, 1, 4)):
        return None
    try:
        end, pid, offset, result, took = map(_number, parts[:5])
    except ValueError:
        return None
    name = parts[5].strip() if len(parts) == 6 else ""
    # If the name begins with a number and has more words, it is not a name, but another thread's line.
    if name.split()[:1] != name.split() and name.split()[0].isdigit():
        return None
    return None if pid >= 1 << 31 else (end, pid, offset, result % _UNSIGNED, took, name)


def _transfers(path: Path, op: str, paths: _Paths) -> Iterator[TextColumns]:
    def calls(table: pa.Table) -> pa.Table:
        offset = numbers(table["offset"])
        more = {"offset": column(offset, pa.int64(), offset < 0), "result": numbers(table["result"]).view(np.int64)}
        return _timed(table, op, paths.of(table["path"]), **more)

    return column_blocks(path, _TRANSFER, transfer_line, calls)


def _opens(path: Path) -> Iterator[TextColumns]:
    def parse(line: str) -> tuple[Any, ...] | None:
        match = _OPEN_LINE.fullmatch(line)
        if match is None:
            return None
        return int(match[1]), int(match[2]), match[3], int(match[4]), match[5] or "", match[6] or ""

    def calls(table: pa.Table) -> pa.Table:
        whole, name = (table[key].cast(pa.string()) for key in ("path", "name"))
        named = pc.if_else(pc.starts_with(whole, "/"), whole, name).dictionary_encode()
        return _timed(table, "openat", _Paths().of(named))

    return column_blocks(path, _OPEN, parse, calls)


def _closes(path: Path, paths: _Paths) -> Iterator[TextColumns]:
    def parse(line: str) -> tuple[Any, ...] | None:
        parts = line.split(None, 4)
        if len(parts) < 4 or not all(part.isdecimal() for part in parts[:4]):
            return None
        return *map(int, parts[:4]), parts[4].strip() if len(parts) == 5 else ""

    return column_blocks(path, _CLOSE, parse, lambda table: _timed(table, "close", paths.of(table["path"]), fd=table["fd"]))


def _timed(table: pa.Table, op: str, path: Any, **more: Any) -> pa.Table:
    """Convert `table`, with the end and duration of each call of `op`, to CALLS in order of start. `more`: further columns."""
    end, duration = numbers(table["end_ns"]), numbers(table["duration_ns"])
    columns = {"result": np.zeros(len(end), np.int64), **more}
    return sorted_by_start(
        calls_table(
            start_ns=end - duration, duration_ns=duration, pid=table["pid"], path=path, op=same_label(op, len(end)), **columns
        )
    )


def _creations(path: Path) -> Iterator[TextColumns]:
    rows, torn = [], 0
    for line in read_lines(path):
        match = _CREATE_LINE.fullmatch(line)
        if match:
            # The column of names holds NAME PATH for unlink, and PATH for the other calls.
            name = match["names"].split(None, 1)[-1] if match["op"] == "unlink" else match["names"]
            rows.append((int(match["end"]) - int(match["took"]), int(match["took"]), match["op"], int(match["pid"]), name, 0))
        elif line[:1].isdigit():
            torn += 1
    calls, impossible = calls_of(rows, ("start_ns", "duration_ns", "op", "pid", "path", "result"))
    yield TextColumns(sorted_by_start(calls), torn + impossible)


def read_block(path: Path, torn: dict[str, int]) -> pa.Table:
    """Return the block requests (schema.BLOCK) in trace_bio.out, whose header names the columns, in order of issue."""
    names = _bio_columns(path)
    columns = pa.schema([(name, _BIO_TYPES.get(name, _NAME)) for name in names])
    blocks = []
    for found in column_blocks(path, columns, lambda line: _bio_line(line, names), _requests):
        torn[path.name] = torn.get(path.name, 0) + found.torn
        blocks.append(found.table)
    return pa.concat_tables([schema.BLOCK.empty_table(), *blocks]).unify_dictionaries().sort_by("issue_ns")


def _requests(table: pa.Table) -> pa.Table:
    end, duration = numbers(table["TIMESTAMP"]), numbers(table["LAT"])
    rw, rw_code = _labels(table["R/W"])
    comm, comm_code = _labels(table["COMM"])
    letters = {"R": "read", "W": "write", "F": "flush", "D": "discard"}
    bits = {"S": schema.BLOCK_SYNC, "M": schema.BLOCK_META, "F": schema.BLOCK_FUA, "A": schema.BLOCK_READAHEAD}
    flags = [sum(bit for letter, bit in bits.items() if letter in text[1:]) for text in rw]
    origins = ["kernel" if _KERNEL_THREAD.match(name) else "task" for name in comm]
    block = {
        "issue_ns": end - duration,
        "duration_ns": duration,
        "op": _of_code(rw_code, [letters.get(t[:1], "other") for t in rw]),
        "sector": table["SECTOR"],
        "size_bytes": table["BYTES"],
        "pid": table["PID"],
        "comm": table["COMM"].cast(pa.string()),
        "flags": np.array(flags, np.int32)[rw_code],
        "origin": _of_code(comm_code, origins),
    }
    arrays = [as_type(block[f.name], f.type) if f.name in block else pa.nulls(len(end), f.type) for f in schema.BLOCK]
    return pa.table(arrays, schema=schema.BLOCK)


def _labels(labels: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int64]]:
    array = labels.combine_chunks()
    return array.dictionary.to_pylist(), numbers(array.indices)


def _of_code(code: NDArray[np.int64], names: list[str]) -> pa.Array:
    known = list(dict.fromkeys(names))
    codes = np.array([known.index(name) for name in names], np.int16)
    return labels(codes[code], known)


def _bio_columns(path: Path) -> list[str]:
    for line in read_foreign_lines(path, 1 << 16):
        if line[:1].isdigit():
            break
        names = line.decode("utf-8", "replace").split()
        if set(_BIO_HEADER.split()) <= set(names) and len(set(names)) == len(names):
            return names
    return _BIO_HEADER.split()


def _bio_line(line: str, names: list[str]) -> tuple[Any, ...] | None:
    """Return a trace_bio.out line's values in the columns `names`, of which COMM may hold blanks; None if it is cut off."""
    parts, comm = line.split(), names.index("COMM")
    after = len(names) - comm - 1
    if len(parts) < len(names):
        return None
    fields = [*parts[:comm], " ".join(parts[comm : len(parts) - after]), *parts[len(parts) - after :]]
    try:
        return tuple(int(text) if name in _BIO_TYPES else text for name, text in zip(names, fields, strict=True))
    except ValueError:
        return None
