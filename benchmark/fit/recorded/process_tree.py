"""The processes and threads of a recording, numbered."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from iotwin.benchmark.fit.traced_job import Job


@dataclass(frozen=True)
class Tree:
    """The processes of a recording and their threads, by number.

    * of processes: `parents`, `begin_ns` and `end_ns`
    * of threads: `process` and `tid`
    """

    pids: list[int]
    parents: list[int]
    begin_ns: list[int]
    end_ns: list[int]
    process: list[int]
    tid: list[int]

    def main(self, process: int) -> int:
        """Return the number of a process's main thread."""
        return int(np.searchsorted(self.process, process))


def grow(job: Job, calls: pd.DataFrame) -> Tree:
    """Return the tree of the processes that made `calls`, and of their parents."""
    manifest, table = job.trace.manifest, job.processes
    parent = dict(zip(table["pid"].astype(int), table["ppid"].fillna(-1).astype(int), strict=True))
    begin = dict(zip(table["pid"].astype(int), table["start_ns"].fillna(manifest.start_ns).astype(int), strict=True))
    end = dict(zip(table["pid"].astype(int), table["exit_ns"].fillna(manifest.end_ns).astype(int), strict=True))
    wanted = set(calls["pid"].unique().tolist())
    lines = {pid: _line(pid, parent) for pid in wanted}
    # The first process of all: the traced one if the others descend from it, otherwise an added one that only starts the others.
    common = [pid for pid in lines[min(wanted, key=lambda p: len(lines[p]))] if all(pid in line for line in lines.values())]
    root = common[0] if common else -1
    kept = {pid for line in lines.values() for pid in (line[: line.index(root)] if root in line else line)} - {root}
    depth = {pid: len(_line(pid, parent)) for pid in kept}
    pids = [root, *sorted(kept, key=lambda pid: (depth[pid], begin.get(pid, 0), pid))]
    number = {pid: i for i, pid in enumerate(pids)}
    parents = [-1, *(number.get(parent.get(pid, -1), 0) for pid in pids[1:])]
    tids = calls.groupby("pid")["tid"].unique()
    process, tid = [], []
    for pid in pids:
        others = sorted(set(tids.get(pid, np.zeros(0, np.int64)).tolist()) - {pid})
        process += [number[pid]] * (1 + len(others))
        tid += [pid, *others]
    # The command began when the tracer started it, even if its process was created earlier.
    begins = [manifest.start_ns, *(max(begin.get(pid, manifest.start_ns), manifest.start_ns) for pid in pids[1:])]
    return Tree(pids, parents, begins, [end.get(pid, manifest.end_ns) for pid in pids], process, tid)


def _line(pid: int, parent: dict[int, int]) -> list[int]:
    """Return the process and its traced ancestors, itself first."""
    line = [pid]
    while (above := parent.get(line[-1], -1)) in parent and above not in line:
        line.append(above)
    return line
