"""The rows of the report's timeline: storage, what the ranks wait for, other files, the busiest processes, and hosts."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from iotwin.trace_store.figures.process_ranks import process_title
from iotwin.trace_visuals.call_columns import GROUPS, OPEN, OTHER, READ, SYNC, WAIT, WRITE, CallColumns, Ints

_STORAGE = (READ, WRITE, OPEN, SYNC)
_ELSEWHERE = (READ, WRITE, OPEN, OTHER)
_MOST_PROCESSES = _MOST_HOSTS = 12


@dataclass(frozen=True)
class LaneName:
    """The names of a lane (a row of the timeline): its section on the page, its group of operations and its title."""

    section: str  # storage | wait | other | process | host
    group: str
    title: str


class LanePlan:
    """Assigns calls to lanes, the rows of a timeline.

    A call on storage belongs to the lanes of its operation, its process and, in a trace of several hosts, its host.
    """

    def __init__(self, processes: pd.DataFrame, busiest: list[int]) -> None:
        known = processes.drop_duplicates("pid", keep="last").set_index("pid")
        self._ranks = np.array(sorted(known.index[known["role"] == "rank"]), dtype=np.int64)
        started = known["start_ns"].to_dict()
        # Processes older than the trace have null as start, and come first.
        shown = sorted(busiest[:_MOST_PROCESSES], key=lambda p: (np.nan_to_num(started.get(p, 0)), p))
        self.processes_left_out = max(0, len(busiest) - _MOST_PROCESSES)
        self.names = [LaneName("storage", GROUPS[group], GROUPS[group]) for group in _STORAGE]
        self.names.append(LaneName("wait", GROUPS[WAIT], "rank in poll, select"))
        self.names += [LaneName("other", GROUPS[group], f"other files: {GROUPS[group]}") for group in _ELSEWHERE]
        self._processes = _LaneOfProcess({pid: len(self.names) + index for index, pid in enumerate(shown)})
        self.names += [LaneName("process", "", process_title(known, pid)) for pid in shown]
        located = known["host"].dropna()
        host_of = dict(zip(located.index.tolist(), located.tolist(), strict=True))
        hosts = list(dict.fromkeys(host_of[pid] for pid in [*busiest, *host_of] if pid in host_of))
        self.hosts_left_out = max(0, len(hosts) - _MOST_HOSTS)
        lane_of = {host: len(self.names) + index for index, host in enumerate(sorted(hosts[:_MOST_HOSTS]))}
        self._hosts = _LaneOfProcess({pid: lane_of[host] for pid, host in host_of.items() if host in lane_of})
        self.names += [LaneName("host", "", f"host {host}") for host in lane_of]

    def lanes(self, calls: CallColumns) -> tuple[Ints, Ints, Ints]:
        """Return the index of the lane of each call's operation, of its process and of its host; -1 if there is no such lane."""
        return self._by_operation(calls), self._processes.of(calls), self._hosts.of(calls)

    def _by_operation(self, calls: CallColumns) -> Ints:
        lane = np.full(len(calls), -1, dtype=np.int64)
        for index, group in enumerate(_STORAGE):
            lane[calls.storage & (calls.group == group)] = index
        lane[(calls.group == WAIT) & np.isin(calls.pid, self._ranks)] = len(_STORAGE)
        elsewhere = ~calls.storage & (calls.group != WAIT)
        for index, group in enumerate(_ELSEWHERE):
            chosen = calls.group == group if group != OTHER else ~np.isin(calls.group, _ELSEWHERE[:-1])
            lane[elsewhere & chosen] = len(_STORAGE) + 1 + index
        return lane


class _LaneOfProcess:
    """The lanes of calls on storage, by process."""

    def __init__(self, lane_of: dict[int, int]) -> None:
        self._pids = np.array(sorted(lane_of), dtype=np.int64)
        self._lane = np.array([lane_of[pid] for pid in self._pids.tolist()], dtype=np.int64)

    def of(self, calls: CallColumns) -> Ints:
        """Return the index of the lane of each call; -1 if its process has none, or the call is not on storage."""
        if not len(self._pids):
            return np.full(len(calls), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self._pids, calls.pid), len(self._pids) - 1)
        return np.where(calls.storage & (self._pids[index] == calls.pid), self._lane[index], -1)
