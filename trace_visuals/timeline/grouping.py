"""Group processes into sets of rows: all processes, by role, by host, by rank with its loaders, or each process separately."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from iotwin.trace_store.figures.process_ranks import process_title, rank_process
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
    """Group the processes by `how` (all, role, host, rank or process), into at most `limit` groups.

    `busiest` lists the processes with storage calls, the most time in calls first. Other processes belong to no group.
    """
    if how == "all" or not busiest:
        return _ALL
    processes = trace.processes().drop_duplicates("pid", keep="last").set_index("pid")
    if how in ("role", "host"):
        labels = processes["role"] if how == "role" else processes["host"].fillna(trace.manifest.host.hostname)
        return _by_label(labels.astype(object).reindex(busiest), PROCESS_ROLES if how == "role" else (), limit)
    parent = dict(zip(processes.index.tolist(), processes["ppid"].tolist(), strict=True))
    ranks = set(processes.index[processes["role"] == "rank"].tolist())
    owner = {pid: ((rank_process(pid, parent, ranks) or pid) if how == "rank" else pid) for pid in busiest}
    owners = list(dict.fromkeys(owner.values()))
    shown = sorted(owners[:limit], key=lambda pid: (_started(processes, pid), pid))
    note = f"{len(owners) - limit} more with less time in calls are left out" if len(owners) > limit else ""
    members = sorted((pid, shown.index(group)) for pid, group in owner.items() if group in shown)
    titles = [_title(processes, pid, how) for pid in shown]
    return Grouping(titles, note, *(np.array(column, dtype=np.int64) for column in zip(*members, strict=True)))


def _by_label(labels: pd.Series, known: tuple[str, ...], limit: int) -> Grouping:
    """Group the processes, which are the index of `labels`, by label: a role of `known`, or without these a host."""
    labels = labels.fillna("helper" if known else labels.dropna().min())
    shown = [name for name in known or sorted(labels.unique())[:limit] if (labels == name).any()]
    labels = labels[labels.isin(shown)].sort_index()
    groups = np.array([shown.index(label) for label in labels], dtype=np.int64)
    titles = [f"{name}s ({(labels == name).sum()})" if known else name for name in shown]
    return Grouping(titles, "", labels.index.to_numpy(np.int64), groups)


def _started(processes: pd.DataFrame, pid: int) -> float:
    started = processes["start_ns"].get(pid)
    return 0.0 if started is None or pd.isna(started) else float(started)


def _title(processes: pd.DataFrame, pid: int, how: str) -> str:
    is_rank = pid in processes.index and processes.at[pid, "role"] == "rank"
    return process_title(processes, pid) + (" with its processes" if how == "rank" and is_rank else "")
