"""Import fio's I/O logs (write_iolog), versions 2 and 3, which hold calls and their files, but no durations."""

import re
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.common.untrusted_files import open_foreign
from iotwin.trace_store.importers.assemble import Imported
from iotwin.trace_store.importers.sorted_calls import Runs, calls_of
from iotwin.trace_store.importers.text import read_lines

_HEADER = re.compile(r"fio version (\d+) iolog")
_FILE_ACTIONS = {"add": None, "open": "openat", "close": "close"}
_TRANSFERS = {"read": "read", "write": "write", "sync": "fsync", "datasync": "fdatasync", "trim": "trim"}


def recognises(source: Path) -> bool:
    """Return True if the first line of `source` is the header of an I/O log of fio."""
    with open_foreign(source) as file:
        return _HEADER.match(file.read(64).decode("utf-8", "replace")) is not None


def read(source: Path, timezone: str | None) -> Imported:
    """Return the calls in the log `source`. Durations are 0, since fio does not log them.

    In version 3, each line has the start of its call in milliseconds. In version 2, lines between calls have waits in
    microseconds. Calls without a wait in between start a nanosecond apart, which preserves their order.
    """
    lines = read_lines(source)
    match = _HEADER.match(lines[0]) if lines else None
    if match is None or match[1] not in ("2", "3"):
        raise UsageError(f"{source} does not begin with 'fio version 2 iolog' or 3; choose another --format")
    stamped = match[1] == "3"
    rows, torn, now_ns = [], 0, 0
    for line in lines[1:]:
        fields = line.split()
        if stamped and fields[:1] and fields[0].isdecimal():
            now_ns, fields = max(int(fields[0]) * 1_000_000, now_ns), fields[1:]
        if len(fields) == 2 and fields[1] in _FILE_ACTIONS:
            op, offset, length = _FILE_ACTIONS[fields[1]], None, 0
        elif len(fields) == 4 and fields[1] == "wait" and fields[2].isdecimal():
            now_ns += int(fields[2]) * 1000
            continue
        elif len(fields) == 4 and fields[1] in _TRANSFERS and fields[2].isdecimal() and fields[3].isdecimal():
            op, offset, length = _TRANSFERS[fields[1]], int(fields[2]), int(fields[3])
        else:
            torn += bool(fields)
            continue
        now_ns += 1
        if op is not None:
            moved = length if op in ("read", "write") else None
            rows.append((now_ns, 0, op, 1, fields[0], None if moved is None else offset, moved, moved or 0))
    notes = ["fio logs no durations and no processes: calls take 0 ns, all by pid 1"]
    names = ("start_ns", "duration_ns", "op", "pid", "path", "offset", "requested", "result")
    calls, impossible = calls_of(rows, names)
    return Imported(Runs.of(calls), {source.name: torn + impossible}, notes)
