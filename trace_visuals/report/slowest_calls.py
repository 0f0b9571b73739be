"""Collect single calls for the report: the slowest, and all calls if there are few."""

import numpy as np
import pandas as pd

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.call_columns import CallColumns, Ints


def _joined(batches: list[CallColumns]) -> CallColumns:
    return CallColumns(
        *(np.concatenate([getattr(batch, name) for batch in batches]) for name in CallColumns.__dataclass_fields__)
    )


class SlowestCalls:
    """Collects the `most` longest calls on storage."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: CallColumns | None = None

    def add(self, calls: CallColumns) -> None:
        """Add a batch of calls."""
        # Once `most` calls are collected, only a call that is longer than the shortest of these can replace one.
        full = self._kept is not None and len(self._kept) == self._most
        limit = int(self._kept.duration_ns.min()) if self._kept is not None and full else -1
        chosen = calls.pick(calls.storage & (calls.duration_ns > limit))
        chosen = chosen if self._kept is None else _joined([self._kept, chosen])
        if len(chosen) > self._most:
            # The sort is stable: of equally long calls the earliest are collected, independently of batches.
            chosen = chosen.pick(np.argsort(-chosen.duration_ns, kind="stable")[: self._most])
        self._kept = chosen

    def later(self, other: "SlowestCalls") -> None:
        """Add the calls that `other` collected."""
        if other._kept is not None:
            self.add(other._kept)

    def frame(self, ops: list[str], trace: Trace) -> pd.DataFrame:
        """Return a row for each collected call, the longest first, with the names of its operation and its file."""
        if self._kept is None:
            return pd.DataFrame(columns=["start_ns", "duration_ns", "pid", "offset", "size_bytes", "result", "op", "path"])
        kept = self._kept.pick(np.argsort(-self._kept.duration_ns, kind="stable"))
        columns = ("start_ns", "duration_ns", "pid", "offset", "size_bytes", "result")
        names = {"op": [ops[code] for code in kept.op], "path": trace.paths(kept.file_id)}
        return pd.DataFrame({name: getattr(kept, name) for name in columns} | names)


class EveryCall:
    """Collects all calls that belong to a lane (a row of the timeline), with the lane of each."""

    def __init__(self) -> None:
        self._batches: list[CallColumns] = []
        self._lanes: list[Ints] = []

    def add(self, calls: CallColumns, lane: Ints) -> None:
        """Add a batch. `lane`: lane of each call, negative if it belongs to none."""
        self._batches.append(calls.pick(lane >= 0))
        self._lanes.append(lane[lane >= 0])

    def later(self, other: "EveryCall") -> None:
        """Append the calls of `other`."""
        self._batches += other._batches
        self._lanes += other._lanes

    def result(self) -> tuple[CallColumns, Ints] | None:
        """Return (all collected calls in order of start, lane of each); None if there are none."""
        return (_joined(self._batches), np.concatenate(self._lanes)) if self._batches else None
