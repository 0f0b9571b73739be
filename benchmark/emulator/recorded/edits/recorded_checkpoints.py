"""Checkpoints of a recording: written in the background, or made durable."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.call_shapes import without_rows
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.emulator.recorded.edits.think_clock import Stretch
from iotwin.common.errors import UsageError
from iotwin.workload_yaml.recording import Op, TwinRecording

_WRITES = (Op.WRITE, Op.COPY_TO)
_SYNCS = (Op.SYNC, Op.DATASYNC)
_COPIED_BYTES = 1 << 24


def on_saved_files(recording: TwinRecording) -> NDArray[np.bool_]:
    """Return the mask of the rows on files of checkpoints that the job wrote."""
    op, subject = recording.columns["op"], recording.columns["subject"]
    saved = np.array([file.checkpoint and file.written for file in recording.header.files] or [False])
    found: NDArray[np.bool_] = (op < Op.PIPE_WRITE) & saved[np.where(op < Op.PIPE_WRITE, subject, 0)]
    return found


def check_saves(recording: TwinRecording, edits: Edits, ranks: Sequence[int]) -> None:
    """Raise UsageError if `edits` change checkpoints, but the job wrote none. The message names the key.

    `ranks`: the processes of the ranks.
    """
    columns = recording.columns
    saves = columns["thread"][on_saved_files(recording) & np.isin(columns["op"], _WRITES)]
    if edits.fsync is not None and not len(saves):
        raise UsageError("checkpoint.fsync: the recording shows no checkpoint that the job wrote; leave it out")
    if edits.asynchronous and not np.isin(saves, np.searchsorted(recording.header.threads, ranks)).any():
        raise UsageError("twin.checkpoint.asynchronous: no rank's main thread wrote a checkpoint; leave it out")


def with_syncs(recording: TwinRecording, wanted: bool) -> TwinRecording:
    """Return an edited recording that syncs each checkpoint file before the file's close or, if not `wanted`, syncs none.

    A sync is added only if the file was written and not synced since.
    """
    columns, saved = recording.columns, on_saved_files(recording)
    op = columns["op"]
    if not wanted:
        return replace(recording, columns=without_rows(columns, saved & np.isin(op, _SYNCS)))
    rows = np.flatnonzero(saved & np.isin(op, [*_WRITES, *_SYNCS, Op.CLOSE]))
    rows = rows[np.lexsort((rows, columns["subject"][rows], columns["thread"][rows]))]
    same = (columns["subject"][rows][1:] == columns["subject"][rows][:-1]) & (np.diff(columns["thread"][rows]) == 0)
    closes = rows[1:][same & (op[rows][1:] == Op.CLOSE) & np.isin(op[rows][:-1], _WRITES)]
    made = {name: column[closes] for name, column in columns.items()} | {"op": np.full(len(closes), Op.SYNC, op.dtype)}
    thinks = columns["think_ns"].copy()
    thinks[closes] = 0  # the time before the close precedes the sync
    order = np.argsort(closes)
    return replace(
        recording,
        columns={
            name: np.insert(column, closes[order], made[name][order]) for name, column in {**columns, "think_ns": thinks}.items()
        },
    )


class Saves:
    """Finds what a rank's main thread does to write a checkpoint."""

    def __init__(self, recording: TwinRecording) -> None:
        self._columns, self._saved = recording.columns, on_saved_files(recording)

    def split(self, stretch: Stretch) -> tuple[Stretch, Stretch, Stretch] | None:
        """Divide a stretch of calls at its first and its last call on a checkpoint's files. Return (before, during, after).

        Returns None if the stretch writes no checkpoint.
        """
        at = np.flatnonzero(self._saved[stretch.rows])
        if not np.isin(self._columns["op"][stretch.rows[at]], _WRITES).any():
            return None
        first, end = int(at[0]), int(at[-1]) + 1
        begins = int(stretch.at[first - 1]) if first else stretch.begin
        ends = int(stretch.at[end - 1])
        return (
            replace(stretch, rows=stretch.rows[:first], at=stretch.at[:first], end=begins, others=[]),
            replace(stretch, rows=stretch.rows[first:end], at=stretch.at[first:end], begin=begins, end=ends),
            replace(stretch, rows=stretch.rows[end:], at=stretch.at[end:], begin=ends, others=[]),
        )

    def snapshot_ns(self, stretch: Stretch) -> int:
        """Return how long (ns) this machine takes to copy as many bytes as the stretch writes."""
        rows = stretch.rows[np.isin(self._columns["op"][stretch.rows], _WRITES)]
        return int(self._columns["size"][rows].sum() * _copy_ns_per_byte())


def _copy_ns_per_byte() -> float:
    """Return the time (ns) of copying a byte to new memory. A snapshot copies the state in this way."""
    source, times = np.ones(_COPIED_BYTES, np.uint8), []
    for _ in range(3):
        begun = time.perf_counter_ns()
        source.copy()
        times.append(time.perf_counter_ns() - begun)
    return min(times) / _COPIED_BYTES
