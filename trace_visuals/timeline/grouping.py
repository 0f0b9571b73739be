"""Group processes into sets of rows: all processes, by role, by rank with its loaders, or each process separately."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import PROCESS_ROLES
from iotwin.trace_visuals.call_columns import Ints


@dataclass(frozen=True)
class Grouping:
    """A division of the processes into groups. If there is one group, of all processes, its title is empty."""

    titles: list[str]
    note: str  # a note on the groups that are left out; may be empty
    _pids: Ints  # all grouped processes, sorted
    _groups: Ints  # index of the group of each of _pids

    def of(self, pid: Ints) -> Ints:
        """Return the index of each process's group; -1 for a process in no group."""
        if not self.titles[0]:
            return np.zeros(len(pid), dtype=np.int64)
        place = np.minimum(np.searchsorted(self._pids, pid), len(self._pids) - 1)
        return np.where(self._pids[place] == pid, self._groups[place], -1)


_ALL = Grouping([""], "", np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def group_processes(trace: Trace, how: str, busiest: list[int], limit: int) -> Grouping:
    """Group the processes by `how` (all, role, rank or process), into at most `limit` groups.

    `busiest` lists the processes with storage calls, the most time in calls first. Other processes belong to no group.
    """
    if how == "all" or not busiest:
        return _ALL
    processes = trace.processes().drop_duplicates("pid", keep="last").set_index("pid")
    if how == "role":
        return _by_role(processes, busiest)
    parent = dict(zip(processes.index.tolist(), processes["ppid"].tolist(), strict=True))
    ranks = set(processes.index[processes["role"] == "rank"].tolist())
    owner = {pid: (_rank_of(pid, parent, ranks) if how == "rank" else pid) for pid in busiest}
    owners = list(dict.fromkeys(owner.values()))
    shown = sorted(owners[:limit], key=lambda pid: (_started(processes, pid), pid))
    note = f"{len(owners) - limit} more with less time in calls are left out" if len(owners) > limit else ""
    members = sorted((pid, shown.index(group)) for pid, group in owner.items() if group in shown)
    titles = [_title(processes, pid, how) for pid in shown]
    return Grouping(titles, note, *(np.array(column, dtype=np.int64) for column in zip(*members, strict=True)))


def _by_role(processes: pd.DataFrame, busiest: list[int]) -> Grouping:
    role = processes["role"].astype(object).reindex(busiest).fillna("helper")
    shown = [name for name in PROCESS_ROLES if (role == name).any()]
    pids = np.array(sorted(busiest), dtype=np.int64)
    groups = np.array([shown.index(role[pid]) for pid in pids], dtype=np.int64)
    return Grouping([f"{name}s ({int((role == name).sum())})" for name in shown], "", pids, groups)


def _started(processes: pd.DataFrame, pid: int) -> float:
    started = processes["start_ns"].get(pid)
    return 0.0 if started is None or pd.isna(started) else float(started)


def _rank_of(pid: int, parent: dict[int, int], ranks: set[int]) -> int:
    """Return the pid of the nearest rank among process `pid` and its ancestors; `pid` if there is none."""
    seen: set[int] = set()
    current = pid
    while current in parent and current not in seen:
        if current in ranks:
            return current
        seen.add(current)
        current = parent[current]
    return pid


def _title(processes: pd.DataFrame, pid: int, how: str) -> str:
    if pid not in processes.index:
        return f"pid {pid}"
    role = processes.at[pid, "role"]
    role = role if isinstance(role, str) else "process"
    return f"{role} {pid} with its processes" if how == "rank" and role == "rank" else f"{role} {pid}"
