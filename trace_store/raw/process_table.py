"""Build the table of processes from the records of forks, execs and exits."""

from typing import Any

import numpy as np
import pyarrow as pa

from iotwin.trace_store import schema
from iotwin.trace_store.columns import rows_table
from iotwin.trace_store.process_roles import process_roles
from iotwin.trace_store.raw.file_table import readable
from iotwin.trace_store.raw.records import NAME_EXEC, NAME_EXIT, NAME_FORK, NameRecord


def process_table(
    names: list[NameRecord],
    dataset_bytes: dict[int, int],
    root_pid: int | None,
    containers: dict[int, str],
    since_ns: int = 0,
) -> pa.Table:
    """Return the processes table (schema.PROCESSES) in order of start, from `names`: records of forks, execs and exits.

    `dataset_bytes`: number of data-set bytes that each process read, by pid. `containers`: names of containers, by cgroup id.
    Processes that ended before `since_ns` are left out, and the start of those that began before it is null.
    """
    lives: list[dict[str, Any]] = []  # a row per process, several for a reused pid
    latest: dict[int, dict[str, Any]] = {}
    own_program: set[int] = set()  # id() of the rows of processes that executed a program

    def begin(row: dict[str, Any]) -> dict[str, Any]:
        latest[row["pid"]] = row
        lives.append(row)
        return row

    for record in sorted(names, key=lambda record: record.time_ns):
        if record.type == NAME_FORK and _is_listed_twice(latest.get(record.pid)):
            latest[record.pid]["start_ns"] = record.time_ns or None
        elif record.type == NAME_FORK:
            begin(_started(record, latest.get(record.parent)))
            latest[record.pid]["container"] = containers.get(record.inode)
        elif record.type == NAME_EXEC:
            row = latest.get(record.pid) or begin(_started(record, None))
            row["container"] = containers.get(record.inode, row["container"])
            row["command_line"] = readable(record.text.replace(b"\0", b" "))
            row["comm"] = readable(record.text.split(b"\0")[0].rpartition(b"/")[2][:15])
            # A spawned worker of Python's multiprocessing runs exec, too, but counts as a fork of its parent.
            if "multiprocessing" not in row["command_line"]:
                own_program.add(id(row))
        elif record.type == NAME_EXIT:
            _ended(latest.get(record.pid) or begin(_started(record, None) | {"start_ns": None}), record)
    for pid in dataset_bytes.keys() - latest.keys():
        begin(_unseen(pid))
    sizes = np.array([dataset_bytes.get(row["pid"], 0) for row in lives], np.int64)
    parents = [row["ppid"] for row in lives]
    for row, role in zip(
        lives,
        process_roles([row["pid"] for row in lives], parents, [id(row) in own_program for row in lives], sizes),
        strict=True,
    ):
        row["role"] = role
    lives = [row for row in lives if row["exit_ns"] is None or row["exit_ns"] >= since_ns]
    for row in lives:
        row["start_ns"] = None if (row["start_ns"] or 0) < since_ns else row["start_ns"]
    lives.sort(key=lambda row: row["start_ns"] or 0)
    if lives and not any(row["role"] == "rank" for row in lives):
        latest.get(root_pid or 0, lives[0])["role"] = "rank"
    return rows_table(lives, schema.PROCESSES)


def _is_listed_twice(row: dict[str, Any] | None) -> bool:
    """Return True if `row` is a process that was found in /proc, and whose fork was recorded, too, at about the same time."""
    return row is not None and row["start_ns"] is None and row["exit_ns"] is None and row["ppid"] is not None


def _ended(row: dict[str, Any], record: NameRecord) -> None:
    signal, status = record.result & 0x7F, record.result >> 8 & 0xFF
    row["exit_ns"] = record.time_ns
    row["comm"] = readable(record.text) or row["comm"]
    row["exit_status"] = -signal if signal else status


def _started(record: NameRecord, parent: dict[str, Any] | None) -> dict[str, Any]:
    return _unseen(record.pid) | {
        "ppid": record.parent,
        "namespace_pid": record.result or None,
        "comm": readable(record.text.split(b"\0")[0]),
        "command_line": parent["command_line"] if parent else None,
        "start_ns": record.time_ns or None,
    }


def _unseen(pid: int) -> dict[str, Any]:
    return dict.fromkeys(schema.PROCESSES.names) | {"pid": pid, "comm": "", "role": "helper"}
