"""Calls by which a rank without loaders reads its batches ahead, in threads other than its main thread."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.think_clock import ProcessRows, Stretch
from iotwin.workload_yaml.recording import Label, Op, TwinRecording

_Ints = NDArray[np.int64]


class TakenBatches(NamedTuple):
    """The batches of a pass, when the rank took each batch (ns), and when it requested the first batch (ns)."""

    batches: _Ints
    taken_ns: _Ints
    begin_ns: int


def read_ahead_rows(recording: TwinRecording, process: int) -> NDArray[np.bool_]:
    """Return the mask of the calls that other threads of the rank `process` made for its batches."""
    columns, header = recording.columns, recording.header
    others = np.flatnonzero(np.array(header.threads) == process)[1:]
    served = (columns["op"] < Op.PIPE_WRITE) & (columns["label"] == Label.STREAMED) & (columns["batch"] >= 0)
    found: NDArray[np.bool_] = np.isin(columns["thread"], others) & served
    return found


class ReadAhead:
    """Calls of a rank's other threads, by batch and by part of the batch.

    From when the rank takes one batch until it takes the next one, the threads read for the next one. `rows`: mask of the calls,
    as returned by `read_ahead_rows`. `parts`: returns the number of parts of a batch. Parts get equally many calls, in order of
    time.
    """

    def __init__(
        self,
        recording: TwinRecording,
        process: int,
        rows: NDArray[np.bool_],
        passes: list[TakenBatches],
        parts: Callable[[int], int],
    ) -> None:
        self._columns, self._rows = recording.columns, rows
        self._firsts = np.array([int(each.batches[0]) for each in passes], np.int64)
        self._parts: dict[int, list[Stretch]] = {}
        own = ProcessRows(recording, process, rows)
        for each in passes:
            cut = own.cut(np.maximum.accumulate(np.append(each.begin_ns, each.taken_ns)))
            for batch, stretch in zip(each.batches.tolist(), cut, strict=True):
                self._parts[batch] = self._in_parts(stretch, parts(batch))

    def _in_parts(self, stretch: Stretch, count: int) -> list[Stretch]:
        at_ns = [self._columns["at_ns"][rows] for _, rows, _ in stretch.others]
        every = np.sort(np.concatenate([np.zeros(0, np.int64), *at_ns]))
        begins = every[np.arange(1, count) * len(every) // count] if len(every) else every
        of_row = [np.searchsorted(begins, own, side="right") for own in at_ns]
        found = []
        for part in range(count):
            own = zip(stretch.others, of_row, strict=True)
            others = [(place, rows[of == part], thinks[of == part]) for (place, rows, thinks), of in own if (of == part).any()]
            found.append(replace(stretch, others=others))
        return found

    def of(self, batch: int, part: int) -> Stretch | None:
        """Return the calls of threads other than the main thread for a part of a batch; None if there are none."""
        parts = self._parts.get(batch, [])
        return parts[part] if part < len(parts) and parts[part].others else None

    def is_streamed(self) -> bool:
        """Return True if most files are read for several successive batches of a pass."""
        subject, batch = self._columns["subject"][self._rows], self._columns["batch"][self._rows]
        of_pass = np.searchsorted(self._firsts, batch, side="right")
        files = np.unique(np.stack([of_pass, subject, batch]), axis=1)[:2]
        return bool(len(subject) and np.median(np.unique(files, axis=1, return_counts=True)[1]) > 1)
