"""Other storage for one run of a job: cgroups in which its reads are capped and its memory is short, gone with the run.

The kernel offers each of them in one of two versions: as files of the v2 hierarchy, or in a v1 hierarchy of its own.
"""

import contextlib
import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from common.errors import IotwinError
from common.signals import interrupts_held
from tracing_tools.targets.cgroup import new_name, remove_cgroup
from tracing_tools.targets.mounts import cgroup2_mount, v1_cgroup_of

READS, MEMORY = "reads", "memory"
_V2_CONTROLLERS, _V1_CONTROLLERS = {READS: "io", MEMORY: "memory"}, {READS: "blkio", MEMORY: "memory"}
_V2_KERNEL_MEMORY = ("kernel_stack", "pagetables", "percpu", "sock", "slab_unreclaimable")
_LOOK_EVERY_S = 0.02  # at the memory in use
_MORE = 1.1  # times as much memory is more, not about as much


@dataclass(frozen=True)
class Limits:
    """What a run may have: bytes and requests read from a device a second, bytes of memory; None: all it asks for."""

    read_bytes_per_s: int | None = None
    read_requests_per_s: int | None = None
    memory_bytes: int | None = None


def reason_against(what: str) -> str | None:
    """Say why READS or MEMORY cannot be limited here, or None."""
    return None if _version_of(what) else _reason(what)


def _reason(what: str) -> str:
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
    """Return the whole disk that the file or folder is on, as MAJOR:MINOR; IotwinError where there is none to cap."""
    number = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not place.exists():
        raise IotwinError(f"{path} is on no block device of its own (tmpfs, overlay, btrfs, NFS): its reads cannot be capped")
    if (place / "partition").exists():
        place = place.resolve().parent
    return (place / "dev").read_text().strip()


class LimitedCgroups:
    """The cgroups of one run: `parent` is where a v2 cgroup of the job belongs (None: anywhere); `add` puts it into the others.

    Within the block it also looks how much memory the job needs besides the page cache: `most_memory_bytes`.
    """

    def __init__(self, limits: Limits, devices: Collection[str]) -> None:
        self._limits, self._devices = limits, devices
        self.parent: Path | None = None
        self._own_memory = _OwnMemory()
        self._joined: list[Path] = []  # of v1, each in another hierarchy
        self._enabled: list[str] = []
        self._memory: Path | None = None
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Make them; IotwinError in one line when this machine cannot, and nothing is left then."""
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
        """Undo all of it; a process that is left goes back where it came from, without limits."""
        with interrupts_held():
            self._over.set()
            if self._watcher.is_alive():
                self._watcher.join()
            self._remove()

    def _limit(self, name: str, limits: Limits, devices: Collection[str]) -> None:
        if limits.read_bytes_per_s or limits.read_requests_per_s:
            version, place = self._place(READS, name)
            for device in devices:
                _cap_reads(version, place, device, limits)
        if limits.memory_bytes or reason_against(MEMORY) is None:
            version, self._memory = self._place(MEMORY, name)
            if limits.memory_bytes:
                # The page cache is to be short, not what the job has for itself: that must not go to swap.
                swap, most = ("swap.max", "max") if version == 2 else ("swappiness", "limit_in_bytes")
                for file, value in ((swap, 0), (most, limits.memory_bytes)):
                    (self._memory / f"memory.{file}").write_text(str(value))

    def _place(self, what: str, name: str) -> tuple[int, Path]:
        """Return the version and the new cgroup in which `what` can be limited."""
        version, mount, own = _version_of(what), cgroup2_mount(), v1_cgroup_of(_V1_CONTROLLERS[what])
        if version == 2 and mount is not None:
            self._enable(mount, _V2_CONTROLLERS[what])
            self.parent = mount / name
            self.parent.mkdir(exist_ok=True)
            return 2, self.parent
        if version == 1 and own is not None:
            place = own / name
            place.mkdir(exist_ok=True)
            if place not in self._joined:
                self._joined.append(place)
            return 1, place
        raise IotwinError(f"this machine cannot limit a job's {what}: {_reason(what)}")

    def _enable(self, mount: Path, controller: str) -> None:
        """Have the hierarchy's top hand the controller down; undone at the end where it did not before."""
        control = mount / "cgroup.subtree_control"
        if controller not in control.read_text().split():
            control.write_text(f"+{controller}")
            self._enabled.append(controller)

    @property
    def most_memory_bytes(self) -> int:
        """What the job had for itself at its most, without any page cache."""
        return self._own_memory.total_bytes()

    def add(self, pid: int) -> None:
        """Put a process, with all that it will start, under the limits of v1."""
        for place in self._joined:
            (place / "cgroup.procs").write_text(str(pid))

    def _watch(self) -> None:
        while self._memory is not None and not self._over.wait(_LOOK_EVERY_S):
            with contextlib.suppress(OSError, ValueError):
                self._own_memory.see(*_found_memory(self._memory))

    def _remove(self) -> None:
        for place in [*self._joined, *([self.parent] if self.parent else [])]:
            remove_cgroup(place)
        mount = cgroup2_mount()
        for controller in self._enabled:
            if mount is not None:
                with contextlib.suppress(OSError):  # another's cgroup has come to use it
                    (mount / "cgroup.subtree_control").write_text(f"-{controller}")


def _cap_reads(version: int, place: Path, device: str, limits: Limits) -> None:
    caps = {"bps": limits.read_bytes_per_s, "iops": limits.read_requests_per_s}
    if version == 2:
        told = " ".join(f"r{unit}={cap}" for unit, cap in caps.items() if cap)
        (place / "io.max").write_text(f"{device} {told}")
        return
    for unit, cap in caps.items():
        if cap:
            (place / f"blkio.throttle.read_{unit}_device").write_text(f"{device} {cap}")


class _OwnMemory:
    """The most that the tasks of a memory cgroup had for themselves, the kernel's memory for them with it.

    What the kernel keeps beside cached pages (buffer heads: 26 bytes of 1000) goes with them, so that of its memory the least
    counts that was seen while the tasks had about their most.
    """

    def __init__(self) -> None:
        self._most_bytes = self._kernel_bytes = 0

    def see(self, own_bytes: int, kernel_bytes: int) -> None:
        """Take what was found at one moment."""
        if own_bytes > _MORE * self._most_bytes:
            self._kernel_bytes = kernel_bytes
        elif own_bytes * _MORE > self._most_bytes:
            self._kernel_bytes = min(self._kernel_bytes, kernel_bytes)
        self._most_bytes = max(self._most_bytes, own_bytes)

    def total_bytes(self) -> int:
        return self._most_bytes + self._kernel_bytes


def _found_memory(memory: Path) -> tuple[int, int]:
    """Return the bytes that a memory cgroup's tasks have for themselves, and those that the kernel has for them."""
    stat = {name: int(value) for name, value in (line.split() for line in (memory / "memory.stat").read_text().splitlines())}
    if "total_rss" in stat:
        kernel = memory / "memory.kmem.usage_in_bytes"  # kernels built without it count none
        return stat["total_rss"] + stat.get("total_shmem", 0), int(kernel.read_text()) if kernel.exists() else 0
    return stat["anon"] + stat["shmem"], sum(stat.get(name, 0) for name in _V2_KERNEL_MEMORY)
