"""Cgroups, by which the kernel decides which tasks are traced: existing cgroups, and new ones for one job."""

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

from iotwin.common.errors import IotwinError, UsageError
from iotwin.tracing_tools.backend_base import Scope
from iotwin.tracing_tools.targets.cgroup_mounts import NO_CGROUP2, cgroup2_mount, cgroup_mounts, v1_cgroup_of
from iotwin.tracing_tools.targets.running_processes import cgroup_of, container_id, remove_tree

_INITIAL_CGROUP_NAMESPACE = 0xEFFFFFFB  # include/linux/proc_ns.h, PROC_CGROUP_INIT_INO
_ROOT_INODE = 1  # inode of a hierarchy's real root; the root that a cgroup namespace shows has another inode
_PREFIX = "iotwin-"


def _own_cgroup() -> Path | None:
    mount, path = cgroup2_mount(), cgroup_of(os.getpid())
    return None if mount is None or path is None else mount / path.lstrip("/")


def _reason_against() -> str | None:
    """Return why this process cannot create cgroups below its own one, None if it can."""
    if cgroup2_mount() is None:
        return NO_CGROUP2
    if Path("/proc/self/ns/cgroup").stat().st_ino != _INITIAL_CGROUP_NAMESPACE:  # a namespace hides this process's cgroup
        return "this is a cgroup namespace (a container)"
    return None


class Cgroup:
    """The cgroup at `path` in the v2 hierarchy, with all cgroups below it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        mount = cgroup2_mount()
        level = len(path.relative_to(mount).parts) if mount else 0
        self.scope = Scope(cgroup_id=path.stat().st_ino, cgroup_level=level)

    @classmethod
    def find(cls, name: str) -> "Cgroup":
        """Return the cgroup `name`, a directory or a path within the v2 hierarchy. Raises UsageError if it does not exist."""
        mount = cgroup2_mount()
        if mount is None:
            raise IotwinError(f"cannot trace a cgroup: {NO_CGROUP2}")
        if mount.stat().st_ino != _ROOT_INODE:  # the filter needs the cgroup's depth below the real root
            raise IotwinError(
                f"cannot trace a cgroup: {mount} is that of a container; mount the host's /sys/fs/cgroup there instead"
            )
        for path in (Path(name), mount / name.lstrip("/")):
            resolved = path.resolve()
            if resolved.is_relative_to(mount) and (resolved / "cgroup.procs").exists():
                return cls(resolved)
        raise UsageError(f"{name} is no cgroup of the v2 hierarchy; give a directory below {mount}")

    def add(self, pid: int) -> None:
        """Move the process `pid` into the cgroup."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Return the pids of the processes in the cgroup and in all cgroups below it."""
        return pids_in(self.path)

    def cpu_ns(self) -> int | None:
        """Return the CPU time of the cgroup's tasks in nanoseconds; None if the kernel does not report it."""
        try:
            for line in (self.path / "cpu.stat").read_text().splitlines():
                if line.startswith("usage_usec "):
                    return int(line.split()[1]) * 1000
        except OSError:
            pass
        return None

    def containers(self) -> dict[int, str]:
        """Return the ids of the containers whose cgroups are this one or below it, by the cgroup's id."""
        found = {}
        for folder, _, _ in os.walk(self.path):
            if identity := container_id(folder):
                try:
                    found[Path(folder).stat().st_ino] = identity
                except OSError:
                    continue  # the cgroup was removed meanwhile
        return found


class JobCgroup(Cgroup):
    """A new cgroup for one job. Remove it when the job has ended."""

    @classmethod
    def create(cls, parent: Path | None = None) -> "JobCgroup | str":
        """Create a cgroup below `parent`, by default this process's cgroup, whose limits then also apply to the job.

        Returns the cgroup, or the reason as text if this machine or user cannot create one.
        """
        own, reason = parent or _own_cgroup(), _reason_against()
        if own is None or reason:
            return reason or NO_CGROUP2
        return cls.create_at(own / new_name())

    @classmethod
    def create_for_containers(cls, systemd: bool) -> "JobCgroup":
        """Create a cgroup that a container engine can use as the parent of its containers: a slice if `systemd` is True.

        It is at the top level, as an engine may enable controllers only there. Raises IotwinError on failure.
        """
        mount, reason = cgroup2_mount(), _reason_against()
        if mount is None or reason:
            raise IotwinError(f"cannot trace a container: {reason}")
        number = _new_number()
        # systemd takes a dash in a slice's name as nesting, so the name must have none.
        name = f"{_PREFIX.strip('-')}_{number.replace('-', '_')}.slice" if systemd else _PREFIX + number
        created = cls.create_at(mount / name)
        if isinstance(created, str):
            raise IotwinError(created)
        created.scope = replace(created.scope, entered_by_exec=True, starts_command=False)
        return created

    @classmethod
    def create_at(cls, path: Path) -> "JobCgroup | str":
        """Create a cgroup at `path`. Return it or, if it cannot be created, the reason as text."""
        try:
            path.mkdir()
        except OSError as error:
            return f"cannot make {path}: {error.strerror}"
        return cls(path)

    def remove(self) -> None:
        """Remove the cgroup. Remaining processes move to the parent cgroup."""
        remove_cgroup(self.path)
        for twin in _legacy_twins(self.path):
            remove_tree(twin)


def new_name() -> str:
    """Return a name for a new cgroup that no other recorder uses, and that `remove_stale_cgroups` recognises."""
    return _PREFIX + _new_number()


def pids_in(path: Path) -> list[int]:
    """Return the pids of the processes in the cgroup at `path`, of version 1 or 2, and in all cgroups below it."""
    pids = []
    for folder, _, _ in os.walk(path):
        try:
            pids += [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]
        except OSError:
            continue  # the cgroup was removed meanwhile
    return pids


def remove_cgroup(path: Path) -> None:
    """Remove the cgroup at `path`, of version 1 or 2. Remaining processes move to the parent cgroup."""
    for pid in pids_in(path):
        with contextlib.suppress(OSError):  # the process has ended
            (path.parent / "cgroup.procs").write_text(str(pid))
    remove_tree(path)


def _new_number() -> str:
    return f"{os.getpid()}-{_pid_namespace()}-{time.monotonic_ns()}"


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _legacy_twins(path: Path) -> list[Path]:
    mount = cgroup2_mount()
    if mount is None or not path.is_relative_to(mount):
        return []
    return [twin for root in cgroup_mounts("cgroup") if (twin := root / path.relative_to(mount)).is_dir()]


def remove_stale_cgroups() -> list[str]:
    """Remove empty cgroups that killed recorders left. Return their names.

    Cgroups of recorders in another pid namespace, as in a container, remain: nothing shows whether their recorder runs.
    """
    removed = []
    limited = (v1_cgroup_of("blkio"), v1_cgroup_of("memory"))  # parents of storage_limits.py's and block_cgroup.py's
    parents = {parent for parent in (_own_cgroup(), cgroup2_mount(), *limited) if parent}
    for path in (path for parent in parents for path in parent.glob(f"{_PREFIX.strip('-')}[-_]*")):
        _, recorder, namespace, *_ = [*path.name.replace("_", "-").split("-"), ""]
        if namespace == _pid_namespace() and not Path(f"/proc/{recorder}").exists() and not pids_in(path):
            for stale in {path, *_legacy_twins(path)}:
                remove_tree(stale)
            if not path.exists():
                removed.append(path.name)
    return removed
