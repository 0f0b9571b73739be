"""The rows of the report's timeline: storage, what the ranks wait for, other files, and the busiest processes."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from iotwin.trace_store.figures.process_ranks import process_title
from iotwin.trace_visuals.call_columns import GROUPS, OPEN, OTHER, READ, SYNC, WAIT, WRITE, CallColumns, Ints

_STORAGE = (READ, WRITE, OPEN, SYNC)
_ELSEWHERE = (READ, WRITE, OPEN, OTHER)
_MOST_PROCESSES = 12


@dataclass(frozen=True)
class LaneName:
    """The names of a lane (a row of the timeline): its section on the page, its group of operations and its title."""

    section: str  # storage | wait | other | process
    group: str
    title: str


class LanePlan:
    """Assigns calls to lanes, the rows of a timeline. A call on storage belongs to the lanes of its operation and its process."""

    def __init__(self, processes: pd.DataFrame, busiest: list[int]) -> None:
        known = processes.drop_duplicates("pid", keep="last").set_index("pid")
        self._ranks = np.array(sorted(known.index[known["role"] == "rank"]), dtype=np.int64)
        started = known["start_ns"].to_dict()
        # Processes older than the trace have null as start, and come first.
        self._shown = np.array(
            sorted(busiest[:_MOST_PROCESSES], key=lambda p: (np.nan_to_num(started.get(p, 0)), p)), dtype=np.int64
        )
        self.left_out = max(0, len(busiest) - _MOST_PROCESSES)
        self.names = [LaneName("storage", GROUPS[group], GROUPS[group]) for group in _STORAGE]
        self.names.append(LaneName("wait", GROUPS[WAIT], "rank in poll, select"))
        self.names += [LaneName("other", GROUPS[group], f"other files: {GROUPS[group]}") for group in _ELSEWHERE]
        self.names += [LaneName("process", "", process_title(known, pid)) for pid in self._shown.tolist()]

    @property
    def process_base(self) -> int:
        """Index of the first process lane."""
        return len(_STORAGE) + 1 + len(_ELSEWHERE)

    def by_operation(self, calls: CallColumns) -> Ints:
        """Return the index of the lane of each call's operation; -1 if the operation has no lane."""
        lane = np.full(len(calls), -1, dtype=np.int64)
        for index, group in enumerate(_STORAGE):
            lane[calls.storage & (calls.group == group)] = index
        lane[(calls.group == WAIT) & np.isin(calls.pid, self._ranks)] = len(_STORAGE)
        elsewhere = ~calls.storage & (calls.group != WAIT)
        for index, group in enumerate(_ELSEWHERE):
            chosen = calls.group == group if group != OTHER else ~np.isin(calls.group, _ELSEWHERE[:-1])
            lane[elsewhere & chosen] = len(_STORAGE) + 1 + index
        return lane

    def by_process(self, calls: CallColumns) -> Ints:
        """Return the index of the lane of each call's process; -1 if the process has no lane, or the call is not on storage."""
        if not len(self._shown):
            return np.full(len(calls), -1, dtype=np.int64)
        order = np.argsort(self._shown)
        place = np.minimum(np.searchsorted(self._shown[order], calls.pid), len(order) - 1)
        chosen = calls.storage & (self._shown[order][place] == calls.pid)
        return np.where(chosen, self.process_base + order[place], -1)
