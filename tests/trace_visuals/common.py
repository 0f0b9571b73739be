"""Calls made from plain lists, and what a test says about them."""

import numpy as np
import pyarrow.parquet as pq

from iotwin.trace_store import schema
from iotwin.trace_store.writer import write_table
from iotwin.trace_visuals.call_columns import GROUPS, READ, WRITE, CallColumns


def make_calls(start, duration, group=READ, size=0, pid=1, file_id=0, offset=0, result=None, storage=True, op=None):
    count = len(start)

    def column(value, dtype=np.int64):
        return np.broadcast_to(np.asarray(value, dtype=dtype), (count,)).copy()

    start, group = np.asarray(start, dtype=np.int64), column(group)
    size = np.where((group == READ) | (group == WRITE), column(size), 0)
    return CallColumns(
        start, start + column(duration), column(group if op is None else op), group, column(pid), column(file_id), column(offset),
        column(size if result is None else result), size, column(storage, bool),
    )  # fmt: skip


def group_code(name):
    return GROUPS.index(name)


def jagged(path, count=20_000):
    """Give the trace samples of the CPU that are 0 and 100 % in turn."""
    table = pq.read_table(path / "samples" / "cpu.parquet").to_pandas()
    ends = np.linspace(table["time_ns"].min(), table["time_ns"].max(), count).astype(np.int64)
    turn = np.arange(count) % 2
    columns = {"time_ns": ends, "interval_ns": np.diff(ends, prepend=ends[0] - (ends[1] - ends[0])), "user": 1.0 * turn,
               "system": 0.0 * turn, "iowait": 0.0 * turn, "idle": 1.0 - turn, "job_cpus": 2.0 * turn}  # fmt: skip
    write_table(path, "samples/cpu.parquet", schema.CPU_SAMPLES, columns)
    return path


def stall(path, kind):
    """Take the middle half of the samples of a kind out of the trace, as if their sampler had stalled."""
    table = pq.read_table(path / "samples" / f"{kind}.parquet")
    rows = table.num_rows
    pq.write_table(table.filter(np.abs(np.arange(rows) - rows // 2) > rows // 4), path / "samples" / f"{kind}.parquet")
