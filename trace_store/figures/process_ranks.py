"""Assign processes to the ranks that they are or work for."""

from collections.abc import Collection, Mapping

import pandas as pd

from iotwin.trace_store.hosts.set_file import PIDS_PER_HOST
from iotwin.trace_store.reader import Trace


def rank_process(pid: int, parents: Mapping[int, int], ranks: Collection[int]) -> int | None:
    """Return `pid` if it is one of `ranks`, else the pid of its nearest ancestor in `ranks`; None if there is none."""
    seen: set[int] = set()
    while pid not in ranks:
        seen.add(pid)
        if pid not in parents or parents[pid] in seen:
            return None
        pid = int(parents[pid])
    return pid


def process_title(processes: pd.DataFrame, pid: int) -> str:
    """Return a process's role and pid. In a set, its host comes first, and the pid is the one on that host.

    `processes`: a trace's processes with their pids as index.
    """
    known = pid in processes.index
    role, host = (processes.at[pid, name] if known else None for name in ("role", "host"))
    title = role if isinstance(role, str) else "process"
    return f"{host} {title} {pid % PIDS_PER_HOST}" if isinstance(host, str) else f"{title} {pid}"


def hosts_and_ranks(trace: Trace) -> pd.DataFrame:
    """Return the host and the rank of each process by pid. The rank is null for a process that works for no rank.

    Ranks are those of launched tasks or of the set. If neither exists, ranks count from 0 in order of their processes' starts.
    """
    own = trace.manifest.host.hostname
    processes = trace.processes().drop_duplicates("pid", keep="last").set_index("pid")
    host = processes["host"].fillna(own)
    with_parent = processes["ppid"].dropna()
    parents = dict(zip(with_parent.index.tolist(), with_parent.astype(int).tolist(), strict=True))
    starts = processes[processes["role"] == "rank"].sort_values("start_ns", kind="stable", na_position="first")
    numbers: dict[int, int] = {}
    tasks = {task.pid: task.rank for task in trace.manifest.target.tasks}
    known = {each.name: each.ranks for each in trace.manifest.hosts} or {own: sorted(tasks.values()) or list(range(len(starts)))}
    for name, mine in starts.groupby(host.reindex(starts.index), sort=False):
        ranks = known.get(name, [])
        launched = {pid: rank for pid, rank in tasks.items() if host.get(pid) == name and rank in ranks}
        numbers |= launched if len(launched) == len(ranks) else dict(zip(mine.index, ranks, strict=False))
    owners = [rank_process(pid, parents, numbers) for pid in processes.index.tolist()]
    rank = [None if owner is None else numbers[owner] for owner in owners]
    return pd.DataFrame({"host": host, "rank": pd.Series(rank, processes.index, "Int64")})
