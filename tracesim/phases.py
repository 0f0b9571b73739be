"""Divides a run into occurrences of phases (an epoch, an evaluation, ...), which cover the run without overlap."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

PHASES = ("startup", "training", "evaluation", "checkpoint", "run")
STARTUP, TRAINING, EVALUATION, CHECKPOINT, RUN = range(len(PHASES))
# The phases whose times are compared: all except start-up, which a twin does not imitate.
TIMED = (TRAINING, EVALUATION, CHECKPOINT, RUN)


@dataclass(frozen=True)
class Occurrences:
    """The n phase occurrences of a run, and the segments of time that belong to them.

    Segment i lasts from `segment_start_ns[i]` to the start of segment i + 1 and belongs to occurrence `segment_owner[i]`.
    Occurrence 0 is start-up, the time before the first phase. A gap between two phases belongs to the earlier one, which caused
    its calls. `duration_ns` is the sum of an occurrence's segments, `span_ns` the time from its first start to its last end.
    """

    phase: NDArray[np.int64]  # index into PHASES
    start_ns: NDArray[np.int64]
    span_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    segment_start_ns: NDArray[np.int64]
    segment_owner: NDArray[np.int64]

    @property
    def number(self) -> int:
        """The number of occurrences, n."""
        return len(self.phase)

    def at(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the occurrence at each time, same shape."""
        segment = np.searchsorted(self.segment_start_ns, time_ns, side="right") - 1
        return self.segment_owner[np.maximum(segment, 0)]

    def position(self, time_ns: NDArray[np.int64], occurrence: NDArray[np.int64], bins: int) -> NDArray[np.int64]:
        """Return the index of each time's bin, same shape, if each time's `occurrence` is divided into `bins` equal bins."""
        elapsed = (time_ns - self.start_ns[occurrence]) / np.maximum(self.span_ns[occurrence], 1)
        return np.clip(elapsed * bins, 0, bins - 1).astype(np.int64)


def phases_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return the training, evaluation and checkpoint phases of the first rank from a trace's phases `table`.

    Training phases are the epochs, or the blocks if there are no epochs. Rows are sorted by precedence: where phases overlap, the
    later row is valid. So a checkpoint takes precedence over an evaluation, and an evaluation over training. The result is
    empty if the trace has no training phase.
    """
    table = table[table["end_ns"] > table["start_ns"]]
    table = table[(table["rank"] == table["rank"].min()) | table["rank"].isna()]
    names = table["phase"].astype(str)
    training = "epoch" if (names == "epoch").any() else "block"
    precedence = {training: TRAINING, "evaluation": EVALUATION, "checkpoint": CHECKPOINT}
    table = table.assign(phase=names.map(precedence)).dropna(subset=["phase"])
    if not (table["phase"] == TRAINING).any():
        return table.iloc[:0]
    return table.sort_values(["phase", "start_ns"], kind="stable")


def occurrences(phases: pd.DataFrame) -> Occurrences:
    """Return the occurrences of `phases`, the result of `phases_of`, which must not be empty."""
    starts = phases["start_ns"].to_numpy(np.int64)
    ends = phases["end_ns"].to_numpy(np.int64)
    edges = np.unique(np.concatenate((starts, ends)))
    owner = np.zeros(len(edges) - 1, dtype=np.int64)
    begins, stops = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
    for number, (begin, stop) in enumerate(zip(begins, stops, strict=True), start=1):
        owner[begin:stop] = number
    # A gap has owner 0 so far; it gets the owner of the last segment before it that has one.
    owner = owner[np.maximum.accumulate(np.where(owner > 0, np.arange(len(owner)), 0))]
    count = len(phases) + 1
    lengths = np.diff(edges)
    first = np.full(count, edges[-1])
    np.minimum.at(first, owner, edges[:-1])
    last = first.copy()
    np.maximum.at(last, owner, edges[1:])
    return Occurrences(
        phase=np.concatenate(([STARTUP], phases["phase"].to_numpy(np.int64))),
        start_ns=first,
        span_ns=last - first,
        duration_ns=np.bincount(owner, weights=lengths, minlength=count).astype(np.int64),
        segment_start_ns=np.concatenate(([np.iinfo(np.int64).min], edges[:-1])),
        segment_owner=np.concatenate(([0], owner)),
    )


def whole_run(start_ns: int, end_ns: int) -> Occurrences:
    """Return two occurrences for a run without phases: a start-up of length 0, and the whole run."""
    times = np.array([start_ns, start_ns]), np.array([0, end_ns - start_ns])
    return Occurrences(
        phase=np.array([STARTUP, RUN]),
        start_ns=times[0],
        span_ns=times[1],
        duration_ns=times[1],
        segment_start_ns=np.array([np.iinfo(np.int64).min]),
        segment_owner=np.array([1]),
    )
