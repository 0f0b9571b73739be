"""Sample CPU, memory, disks and pressure from /proc, as rows of schema.SAMPLES."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_SECTOR_BYTES = 512  # the unit of /proc/diskstats for all devices (Documentation/admin-guide/iostats.rst)

Row = dict[str, Any]


class MachineSampler:
    """Measures how the machine was used since the previous sample.

    `job_cpu_ns` returns the CPU time of the traced job so far, or None.
    """

    def __init__(self, job_cpu_ns: Callable[[], int | None]) -> None:
        self._job_cpu_ns = job_cpu_ns
        self._disks = {path.name for path in Path("/sys/block").iterdir() if not path.name.startswith(("loop", "ram"))}
        self._last_ns = time.monotonic_ns()
        self._last_cpu = _cpu_ticks()
        self._last_disks = dict(self._disk_counters())
        self._last_job = job_cpu_ns()
        self._last_stalls = _stall_totals()

    def sample(self) -> Iterator[tuple[str, Row]]:
        """Yield (key of schema.SAMPLES, row) for CPU, memory, each disk and each kind of pressure."""
        now = time.monotonic_ns()
        interval = now - self._last_ns
        yield "cpu", self._cpu_row(now, interval)
        yield "memory", _memory_row(now)
        yield from (("disk", row) for row in self._disk_rows(now, interval))
        yield from (("pressure", row) for row in self._pressure_rows(now, interval))
        self._last_ns = now

    def _cpu_row(self, now: int, interval: int) -> Row:
        ticks, job = _cpu_ticks(), self._job_cpu_ns()
        spent = [new - old for new, old in zip(ticks, self._last_cpu, strict=True)]
        total = max(sum(spent), 1)
        job_cpus = None if job is None or self._last_job is None else (job - self._last_job) / interval
        self._last_cpu, self._last_job = ticks, job
        user, system, iowait, idle = (part / total for part in spent)
        states = {"user": user, "system": system, "iowait": iowait, "idle": idle}
        return {"time_ns": now, "interval_ns": interval, **states, "job_cpus": job_cpus}

    def _disk_counters(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for line in Path("/proc/diskstats").read_text().splitlines():
            fields = line.split()
            if fields[2] in self._disks:
                reads, read_sectors, writes, written_sectors, busy_ms = (int(fields[i]) for i in (3, 5, 7, 9, 12))
                yield fields[2], (reads, read_sectors, writes, written_sectors, busy_ms)

    def _disk_rows(self, now: int, interval: int) -> Iterator[Row]:
        for device, counters in self._disk_counters():
            before = self._last_disks.get(device, counters)
            reads, read_sectors, writes, written_sectors, busy_ms = (new - old for new, old in zip(counters, before, strict=True))
            self._last_disks[device] = counters
            yield {
                "time_ns": now,
                "interval_ns": interval,
                "device": device,
                "read_bytes": read_sectors * _SECTOR_BYTES,
                "written_bytes": written_sectors * _SECTOR_BYTES,
                "reads": reads,
                "writes": writes,
                "busy": min(busy_ms * 1e6 / interval, 1.0),
            }

    def _pressure_rows(self, now: int, interval: int) -> Iterator[Row]:
        stalls = _stall_totals()
        for resource, totals in stalls.items():
            before = self._last_stalls.get(resource, totals)
            shares = {kind: min((total - before.get(kind, total)) * 1000 / interval, 1.0) for kind, total in totals.items()}
            yield {
                "time_ns": now,
                "interval_ns": interval,
                "resource": resource,
                "some": shares.get("some"),
                "full": shares.get("full"),
            }
        self._last_stalls = stalls


def _stall_totals() -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for resource in ("cpu", "memory", "io"):
        try:
            lines = Path("/proc/pressure", resource).read_text().splitlines()
        except OSError:
            continue  # a kernel without PSI (Documentation/accounting/psi.rst)
        totals[resource] = {line.split()[0]: int(line.rpartition("total=")[2]) for line in lines}
    return totals


def _cpu_ticks() -> tuple[int, int, int, int]:
    """Return the ticks that all CPUs spent as (user, system, iowait, idle). Interrupts count as system, guests as user."""
    with Path("/proc/stat").open() as stat:
        user, nice, system, idle, iowait, irq, softirq, steal = (int(field) for field in stat.readline().split()[1:9])
    return user + nice, system + irq + softirq + steal, iowait, idle


def _memory_row(now: int) -> Row:
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, rest = line.partition(":")
        values[key] = int(rest.split()[0]) * 1024 if rest.strip().endswith("kB") else 0
    return {
        "time_ns": now,
        "available_bytes": values["MemAvailable"],
        "page_cache_bytes": values["Cached"],
        "dirty_bytes": values["Dirty"],
    }
