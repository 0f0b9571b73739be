"""A fresh cgroup for one traced job, so that the kernel can tell the job's tasks from all others."""

import os
import time
from pathlib import Path

from tracing_tools.backends.base import Scope

_INITIAL_CGROUP_NAMESPACE = 0xEFFFFFFB  # include/linux/proc_ns.h, PROC_CGROUP_INIT_INO
_PREFIX = "iotwin-"


def _own_cgroup() -> Path | None:
    """The directory of this process's cgroup in the v2 hierarchy, or None where there is no such hierarchy."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    mount = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
    if mount is None:
        return None
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), None)
    return None if path is None else Path(mount) / path.lstrip("/")


class JobCgroup:
    """A cgroup below the caller's own, so that the job keeps the limits it would have had. Remove it when the job has ended."""

    def __init__(self, path: Path, level: int) -> None:
        self.path = path
        self.scope = Scope(cgroup_id=path.stat().st_ino, cgroup_level=level)

    @classmethod
    def create(cls) -> "JobCgroup | str":
        """Return a new cgroup, or the reason why this machine or user cannot have one."""
        own = _own_cgroup()
        if own is None:
            return "no cgroup2 hierarchy is mounted"
        # The filter compares cgroups at a depth counted from the real root, which a cgroup namespace hides.
        if Path("/proc/self/ns/cgroup").stat().st_ino != _INITIAL_CGROUP_NAMESPACE:
            return "this is a cgroup namespace (a container)"
        path = own / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        try:
            path.mkdir()
        except OSError as error:
            return f"cannot make {path}: {error.strerror}"
        own_path = next(
            line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
        )
        return cls(path, len([part for part in own_path.split("/") if part]) + 1)

    def add(self, pid: int) -> None:
        """Move a process into the cgroup."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Return the processes in the cgroup itself and in any below it."""
        return [int(pid) for procs in self.path.rglob("cgroup.procs") for pid in procs.read_text().split()]

    def cpu_ns(self) -> int | None:
        """Return the CPU time its tasks have used, nanoseconds; None where the kernel does not say."""
        try:
            for line in (self.path / "cpu.stat").read_text().splitlines():
                if line.startswith("usage_usec "):
                    return int(line.split()[1]) * 1000
        except OSError:
            pass
        return None

    def remove(self) -> None:
        """Remove the cgroup; processes that are still in it move to the caller's own."""
        for pid in self.pids():
            try:
                (self.path.parent / "cgroup.procs").write_text(str(pid))
            except OSError:
                continue  # it ended meanwhile
        for _ in range(50):
            try:
                for child in sorted(self.path.rglob("*/"), reverse=True):
                    child.rmdir()
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)  # a task that has exited leaves its cgroup a moment later


def remove_stale_cgroups() -> list[str]:
    """Remove empty cgroups that killed recorders left behind; return their names."""
    own = _own_cgroup()
    removed = []
    for path in own.glob(f"{_PREFIX}*") if own else []:
        recorder = path.name.removeprefix(_PREFIX).split("-")[0]
        if not Path(f"/proc/{recorder}").exists() and not (path / "cgroup.procs").read_text():
            try:
                path.rmdir()
            except OSError:
                continue
            removed.append(path.name)
    return removed
