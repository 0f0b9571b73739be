"""Limit the reads and the memory of one run of a job, to emulate slower storage, by cgroups that exist only during the run.

The kernel offers each limit either in the cgroup v2 hierarchy or in a separate v1 hierarchy.
"""

import contextlib
import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from iotwin.common.errors import IotwinError
from iotwin.common.signals import interrupts_held
from iotwin.tracing_tools.targets.cgroup import new_name, remove_cgroup
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount, v1_cgroup_of

READS, MEMORY = "reads", "memory"
_V2_CONTROLLERS, _V1_CONTROLLERS = {READS: "io", MEMORY: "memory"}, {READS: "blkio", MEMORY: "memory"}
_V2_KERNEL_MEMORY = ("kernel_stack", "pagetables", "percpu", "sock", "slab_unreclaimable")
_MEMORY_EVERY_S = 0.02  # time between two readings of the memory in use
_MORE = 1.1  # ratio above which one memory use is clearly more than another


@dataclass(frozen=True)
class Limits:
    """Limits of a run: bytes and requests per second read from each device, and bytes of memory. None means unlimited."""

    read_bytes_per_s: int | None = None
    read_requests_per_s: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class DeviceReads:
    """Number of bytes and number of requests that the tasks of a cgroup have read from disks."""

    size_bytes: int
    requests: int


def reason_against(what: str) -> str | None:
    """Return why `what`, READS or MEMORY, cannot be limited on this machine, None if it can."""
    if _version_of(what):
        return None
    if os.geteuid() != 0:
        return "it needs root; run under sudo"
    return f"no cgroup hierarchy here has the controller {_V2_CONTROLLERS[what]} (v2) or {_V1_CONTROLLERS[what]} (v1)"


def _version_of(what: str) -> int | None:
    if os.geteuid() != 0:
        return None
    mount = cgroup2_mount()
    if mount is not None and _V2_CONTROLLERS[what] in (mount / "cgroup.controllers").read_text().split():
        return 2
    return 1 if v1_cgroup_of(_V1_CONTROLLERS[what]) is not None else None


def device_below(path: Path) -> str:
    """Return the disk that holds the file or folder `path`, as MAJOR:MINOR. Raises IotwinError if no disk holds it."""
    number = path.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        raise IotwinError(f"{path} is on no block device (tmpfs, overlay, btrfs, NFS): its reads cannot be capped")
    if (device / "partition").exists():
        device = device.resolve().parent
    return (device / "dev").read_text().strip()


class LimitedCgroups:
    """The cgroups of one run, which exist during a `with` block. The job's v2 cgroup must be below `parent` (None: anywhere).

    `add` moves the job into the v1 cgroups. `most_memory_bytes` is the job's peak memory without the page cache. `device_reads`
    counts the job's reads from `devices` (MAJOR:MINOR), whether reads are limited or not.
    """

    def __init__(self, limits: Limits, devices: Collection[str]) -> None:
        self._limits, self._devices = limits, devices
        self.parent: Path | None = None
        self._own_memory = _OwnMemory()
        self._joined: list[Path] = []  # v1 cgroups to which the job belongs, each in a different hierarchy
        self._enabled: list[str] = []
        self._memory: Path | None = None
        self._reads: tuple[int, Path] | None = None  # (version, cgroup) that counts reads
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Create the cgroups. If this machine cannot, remove what was created, and raise IotwinError."""
        try:
            with interrupts_held():
                self._limit(new_name(), self._limits, self._devices)
                self._watcher.start()
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, OSError):
                raise IotwinError(f"the kernel does not take a limit on storage: {error.strerror}: {error.filename}") from None
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove the cgroups. Remaining processes move to the parent cgroup, without limits."""
        with interrupts_held():
            self._over.set()
            if self._watcher.is_alive():
                self._watcher.join()
            self._remove()

    def _limit(self, name: str, limits: Limits, devices: Collection[str]) -> None:
        if limits.read_bytes_per_s or limits.read_requests_per_s or (devices and reason_against(READS) is None):
            self._reads = version, cgroup = self._make(READS, name)
            for device in devices:
                _cap_reads(version, cgroup, device, limits)
        if limits.memory_bytes or reason_against(MEMORY) is None:
            version, self._memory = self._make(MEMORY, name)
            if limits.memory_bytes:
                # Without swap, the limit shrinks the page cache instead of swapping out the job's memory.
                swap, most = ("swap.max", "max") if version == 2 else ("swappiness", "limit_in_bytes")
                for file, value in ((swap, 0), (most, limits.memory_bytes)):
                    (self._memory / f"memory.{file}").write_text(str(value))

    def _make(self, what: str, name: str) -> tuple[int, Path]:
        version, mount, own = _version_of(what), cgroup2_mount(), v1_cgroup_of(_V1_CONTROLLERS[what])
        if version == 2 and mount is not None:
            self._enable(mount, _V2_CONTROLLERS[what])
            self.parent = mount / name
            self.parent.mkdir(exist_ok=True)
            return 2, self.parent
        if version == 1 and own is not None:
            cgroup = own / name
            cgroup.mkdir(exist_ok=True)
            if cgroup not in self._joined:
                self._joined.append(cgroup)
            return 1, cgroup
        raise IotwinError(f"this machine cannot limit a job's {what}: {reason_against(what)}")

    def _enable(self, mount: Path, controller: str) -> None:
        control = mount / "cgroup.subtree_control"
        if controller not in control.read_text().split():
            control.write_text(f"+{controller}")
            self._enabled.append(controller)

    def device_reads(self) -> DeviceReads | None:
        """Return the job's reads from `devices` so far, None if this machine cannot count them. Call this in the `with` block."""
        return None if self._reads is None else _counted_reads(*self._reads, self._devices)

    @property
    def most_memory_bytes(self) -> int:
        """The job's peak memory use without the page cache."""
        return self._own_memory.total_bytes()

    def add(self, pid: int) -> None:
        """Move the process `pid` into the v1 cgroups, which its children inherit."""
        for cgroup in self._joined:
            (cgroup / "cgroup.procs").write_text(str(pid))

    def _watch(self) -> None:
        while self._memory is not None and not self._over.wait(_MEMORY_EVERY_S):
            with contextlib.suppress(OSError, ValueError):
                self._own_memory.add(*_found_memory(self._memory), _count_processes(self._memory))

    def _remove(self) -> None:
        for cgroup in [*self._joined, *([self.parent] if self.parent else [])]:
            remove_cgroup(cgroup)
        mount = cgroup2_mount()
        for controller in self._enabled:
            if mount is not None:
                with contextlib.suppress(OSError):  # fails if another cgroup uses the controller by now
                    (mount / "cgroup.subtree_control").write_text(f"-{controller}")


def _cap_reads(version: int, cgroup: Path, device: str, limits: Limits) -> None:
    caps = {"bps": limits.read_bytes_per_s, "iops": limits.read_requests_per_s}
    if version == 2:
        if rules := " ".join(f"r{unit}={cap}" for unit, cap in caps.items() if cap):
            (cgroup / "io.max").write_text(f"{device} {rules}")
        return
    for unit, cap in caps.items():  # any rule makes the kernel count reads, even a rule of 0, which means unlimited
        (cgroup / f"blkio.throttle.read_{unit}_device").write_text(f"{device} {cap or 0}")


def _counted_reads(version: int, cgroup: Path, devices: Collection[str]) -> DeviceReads:
    if version == 2:
        lines = (line.split() for line in (cgroup / "io.stat").read_text().splitlines())
        found = [dict(word.split("=") for word in words[1:]) for words in lines if words and words[0] in devices]
        return DeviceReads(*(sum(int(each.get(key, 0)) for each in found) for key in ("rbytes", "rios")))
    return DeviceReads(
        *(_v1_reads(cgroup / f"blkio.throttle.{name}_recursive", devices) for name in ("io_service_bytes", "io_serviced"))
    )


def _v1_reads(counter: Path, devices: Collection[str]) -> int:
    if not counter.exists():  # before Linux 5.5, only the cgroup itself is counted
        counter = counter.with_name(counter.name.removesuffix("_recursive"))
    lines = (line.split() for line in counter.read_text().splitlines())
    return sum(int(words[2]) for words in lines if len(words) == 3 and words[0] in devices and words[1] == "Read")


class _OwnMemory:
    """The peak memory of the tasks in a memory cgroup, plus the memory that the kernel uses for them.

    The kernel's memory includes data about cached pages (buffer heads, 2.6 % of the pages). To exclude these data, the smallest
    value of the kernel's memory is taken that was read while the tasks used about their peak. Only readings with the largest
    number of processes are used, since each has page tables and stacks: a job may reach its peak before it starts loaders.
    """

    def __init__(self) -> None:
        self._most_bytes = self._kernel_bytes = self._processes = 0

    def add(self, own_bytes: int, kernel_bytes: int, processes: int) -> None:
        is_peak = own_bytes * _MORE > self._most_bytes
        if own_bytes > _MORE * self._most_bytes or (is_peak and processes > self._processes):
            self._kernel_bytes, self._processes = kernel_bytes, processes
        elif is_peak and processes == self._processes:
            self._kernel_bytes = min(self._kernel_bytes, kernel_bytes)
        self._most_bytes = max(self._most_bytes, own_bytes)

    def total_bytes(self) -> int:
        return self._most_bytes + self._kernel_bytes


def _count_processes(memory: Path) -> int:
    return sum(len(path.read_text().split()) for path in memory.rglob("cgroup.procs"))


def _found_memory(memory: Path) -> tuple[int, int]:
    stat = {name: int(value) for name, value in (line.split() for line in (memory / "memory.stat").read_text().splitlines())}
    if "total_rss" in stat:
        kernel = memory / "memory.kmem.usage_in_bytes"  # does not exist if the kernel does not count its memory
        return stat["total_rss"] + stat.get("total_shmem", 0), int(kernel.read_text()) if kernel.exists() else 0
    return stat["anon"] + stat["shmem"], sum(stat.get(name, 0) for name in _V2_KERNEL_MEMORY)
