"""Cgroups, by which the kernel tells the traced tasks from all others: those that exist, and a fresh one for one traced job."""

import os
import time
from dataclasses import replace
from pathlib import Path

from common.errors import IotwinError, UsageError
from tracing_tools.protocols import Scope
from tracing_tools.targets.mounts import cgroup2_mount, cgroup_mounts, v1_cgroup_of
from tracing_tools.targets.processes import cgroup_of, container_id, remove_tree

_INITIAL_CGROUP_NAMESPACE = 0xEFFFFFFB  # include/linux/proc_ns.h, PROC_CGROUP_INIT_INO
_PREFIX = "iotwin-"


def _own_cgroup() -> Path | None:
    """The directory of this process's cgroup in the v2 hierarchy, or None where there is no such hierarchy."""
    mount, path = cgroup2_mount(), cgroup_of(os.getpid())
    return None if mount is None or path is None else mount / path.lstrip("/")


def _reason_against() -> str | None:
    """Why the kernel cannot filter by cgroup for us, or None."""
    if cgroup2_mount() is None:
        return "no cgroup2 hierarchy is mounted"
    # The filter compares cgroups at a depth counted from the real root, which a cgroup namespace hides.
    if Path("/proc/self/ns/cgroup").stat().st_ino != _INITIAL_CGROUP_NAMESPACE:
        return "this is a cgroup namespace (a container)"
    return None


class Cgroup:
    """A cgroup of the v2 hierarchy at `path`, with all cgroups below it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        mount = cgroup2_mount()
        level = len(path.relative_to(mount).parts) if mount else 0
        self.scope = Scope(cgroup_id=path.stat().st_ino, cgroup_level=level)

    @classmethod
    def find(cls, name: str) -> "Cgroup":
        """Return the cgroup called `name`: a directory, or a path within the v2 hierarchy; UsageError when it is no such."""
        mount, reason = cgroup2_mount(), _reason_against()
        if mount is None or reason:
            raise IotwinError(f"cannot trace a cgroup: {reason}")
        for path in (Path(name), mount / name.lstrip("/")):
            resolved = path.resolve()
            if resolved.is_relative_to(mount) and (resolved / "cgroup.procs").exists():
                return cls(resolved)
        raise UsageError(f"{name} is no cgroup of the v2 hierarchy; give a directory below {mount}")

    def add(self, pid: int) -> None:
        """Move a process into the cgroup."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Return the processes in the cgroup itself and in any below it."""
        return pids_in(self.path)

    def cpu_ns(self) -> int | None:
        """Return the CPU time its tasks have used, nanoseconds; None where the kernel does not say."""
        try:
            for line in (self.path / "cpu.stat").read_text().splitlines():
                if line.startswith("usage_usec "):
                    return int(line.split()[1]) * 1000
        except OSError:
            pass
        return None

    def containers(self) -> dict[int, str]:
        """Return the ids of the containers in it, by cgroup id."""
        found = {}
        for folder, _, _ in os.walk(self.path):
            if identity := container_id(folder):
                try:
                    found[Path(folder).stat().st_ino] = identity
                except OSError:
                    continue  # removed meanwhile
        return found


class JobCgroup(Cgroup):
    """A fresh cgroup for one job. Remove it when the job has ended."""

    @classmethod
    def create(cls, parent: Path | None = None) -> "JobCgroup | str":
        """Return a new cgroup below `parent`; by default the caller's own, so that the job keeps the limits it would have had.

        Or the reason why this machine or user cannot have one.
        """
        own, reason = parent or _own_cgroup(), _reason_against()
        if own is None or reason:
            return reason or "no cgroup2 hierarchy is mounted"
        return cls.create_at(own / new_name())

    @classmethod
    def create_for_containers(cls, systemd: bool) -> "JobCgroup":
        """Return a new cgroup to give to a container engine as the parent of its containers; IotwinError when there can be none.

        It lies at the top, where alone an engine may turn controllers on below us. Under systemd it has to be a slice.
        """
        mount, reason = cgroup2_mount(), _reason_against()
        if mount is None or reason:
            raise IotwinError(f"cannot tell the container's processes from others: {reason}")
        number = _new_number()
        # A dash in a slice's name means a slice within a slice.
        name = f"{_PREFIX.strip('-')}_{number.replace('-', '_')}.slice" if systemd else _PREFIX + number
        created = cls.create_at(mount / name)
        if isinstance(created, str):
            raise IotwinError(created)
        created.scope = replace(created.scope, entered_by_exec=True, starts_command=False)
        return created

    @classmethod
    def create_at(cls, path: Path) -> "JobCgroup | str":
        """Return a new cgroup at `path`, or the reason why it cannot be made."""
        try:
            path.mkdir()
        except OSError as error:
            return f"cannot make {path}: {error.strerror}"
        return cls(path)

    def remove(self) -> None:
        """Remove the cgroup; processes that are still in it move to the one above."""
        remove_cgroup(self.path)
        for twin in _legacy_twins(self.path):
            remove_tree(twin)


def new_name() -> str:
    """Return a name for a cgroup that no other recorder gives, and by which `remove_stale_cgroups` knows it."""
    return _PREFIX + _new_number()


def pids_in(path: Path) -> list[int]:
    """Return the processes in the cgroup at `path`, of either version, and in any below it."""
    pids = []
    for folder, _, _ in os.walk(path):
        try:
            pids += [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]
        except OSError:
            continue  # removed meanwhile
    return pids


def remove_cgroup(path: Path) -> None:
    """Remove the cgroup at `path`, of either version; processes that are still in it move to the one above."""
    for pid in pids_in(path):
        try:
            (path.parent / "cgroup.procs").write_text(str(pid))
        except OSError:
            continue  # it ended meanwhile
    remove_tree(path)


def _new_number() -> str:
    """What tells a recorder's cgroups from all others: its process, the namespace that numbers it, and the time."""
    return f"{os.getpid()}-{_pid_namespace()}-{time.monotonic_ns()}"


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _legacy_twins(path: Path) -> list[Path]:
    """The cgroups of that path in the v1 hierarchies, which a container engine makes where both versions are mounted."""
    mount = cgroup2_mount()
    if mount is None or not path.is_relative_to(mount):
        return []
    return [twin for root in cgroup_mounts("cgroup") if (twin := root / path.relative_to(mount)).is_dir()]


def remove_stale_cgroups() -> list[str]:
    """Remove empty cgroups that killed recorders left behind; return their names.

    Those of another pid namespace, such as a container's, are left: here nobody can tell whether their recorder lives.
    """
    removed = []
    limited = (v1_cgroup_of("blkio"), v1_cgroup_of("memory"))  # limits.py
    parents = {parent for parent in (_own_cgroup(), cgroup2_mount(), *limited) if parent}
    for path in (path for parent in parents for path in parent.glob(f"{_PREFIX.strip('-')}[-_]*")):
        _, recorder, namespace, *_ = [*path.name.replace("_", "-").split("-"), ""]
        if namespace == _pid_namespace() and not Path(f"/proc/{recorder}").exists() and not pids_in(path):
            for stale in {path, *_legacy_twins(path)}:
                remove_tree(stale)
            if not path.exists():
                removed.append(path.name)
    return removed
