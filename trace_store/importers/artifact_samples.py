"""Parse the paper artifact's samples of CPU, GPU and disks, one per second of local time, and the container's processes."""

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.trace_store.importers.text import read_lines

_SECOND = 1_000_000_000
_DAY_S = 86_400
_TIME = re.compile(r"(?P<h>\d{1,2}):(?P<m>\d\d):(?P<s>\d\d)(?: *(?P<half>[AaPp][Mm]))?")
_MIB = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,9}")


def seconds_of_day(text: str) -> int | None:
    """Return the first time HH:MM:SS (12- or 24-hour clock) in `text` as seconds since midnight; None if there is none."""
    match = _TIME.search(text)
    if match is None:
        return None
    hour = int(match["h"])
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"].lower() == "pm")
    return hour * 3600 + int(match["m"]) * 60 + int(match["s"])


@dataclass(frozen=True)
class LocalClock:
    """Relates local time to CLOCK_MONOTONIC: the local second `second`, counted from the first midnight, began at `tick_ns`."""

    tick_ns: int
    second: int
    uncertainty_ns: int

    def monotonic_ns(self, second: int) -> int:
        """Return the CLOCK_MONOTONIC ns at which the local `second` began."""
        return self.tick_ns + (second - self.second) * _SECOND

    def unwrap(self, seconds: list[int]) -> list[int]:
        """Return `seconds`, ordered times of day, as seconds since the first midnight, which grow past later midnights."""
        result: list[int] = []
        before = self.second - _DAY_S // 2
        for second in seconds:
            while second < before - 60:
                second += _DAY_S
            before = max(second, before)
            result.append(second)
        return result


def read_local_clock(path: Path) -> tuple[LocalClock, int]:
    """Read trace_time_align.out, lines of CLOCK_MONOTONIC and local time. Return (clock, number of cut-off lines).

    A second begins between two successive lines with different seconds. The two lines that are closest in time determine the
    clock. Raises IotwinError if the second never changes.
    """
    rows, torn = [], 0
    for line in read_lines(path):
        match = re.fullmatch(r"(\d+)\s+(\d{1,2}:\d\d:\d\d(?: *[AP]M)?)\s*", line)
        if match:
            rows.append((int(match[1]), seconds_of_day(match[2]) or 0))
        elif line[:1].isdigit():
            torn += 1
    days, best, gap = 0, (0, 0), 0
    for (before_ns, before), (time_ns, second) in itertools.pairwise(rows):
        days += second < before
        if second != before and (not gap or time_ns - before_ns < gap):
            gap, best = time_ns - before_ns, ((before_ns + time_ns) // 2, second + days * _DAY_S)
    if not gap:
        raise IotwinError(f"{path}: the second never changes in it, so local times cannot be placed; leave the file out")
    return LocalClock(*best, gap // 2), torn


def cpu_samples(path: Path, clock: LocalClock) -> list[dict[str, Any]]:
    """Parse the output of `mpstat 1` by the names of its columns. Return rows of schema.CPU_SAMPLES."""
    names: list[str] = []
    rows, seconds = [], []
    for line in read_lines(path):
        if "%usr" in line and "CPU" in line:
            names = line.split("CPU", 1)[1].split()
            continue
        fields = line.split()
        if "all" not in fields or line.startswith("Average") or (second := seconds_of_day(line)) is None:
            continue
        values = fields[fields.index("all") + 1 :]
        if len(values) != len(names) or not all(re.fullmatch(r"[0-9]{1,4}[.,][0-9]{1,9}", value) for value in values):
            continue
        if "%usr" not in names:
            continue
        share = {name: float(value.replace(",", ".")) / 100 for name, value in zip(names, values, strict=True)}
        seconds.append(second)
        system = share.get("%sys", 0) + share.get("%irq", 0) + share.get("%soft", 0)
        rows.append({"user": share["%usr"] + share.get("%nice", 0), "system": system, "iowait": share.get("%iowait", 0),
                     "idle": share.get("%idle", 0), "interval_ns": _SECOND})  # fmt: skip
    return _with_times(rows, seconds, clock)


def gpu_samples(path: Path, clock: LocalClock) -> list[dict[str, Any]]:
    """Parse the output of `nvidia-smi pmon -s um -o DT`. Return rows of schema.GPU_PROCESS_SAMPLES."""
    rows, seconds = [], []
    for line in read_lines(path):
        fields = line.split(None, 10)
        second = seconds_of_day(line)
        if line.startswith("#") or len(fields) < 10 or second is None or not _NUMBER.fullmatch(fields[2]):
            continue
        if not all(text == "-" or re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) for text in fields[5:10]):
            continue
        percents = [None if text == "-" else float(text) for text in fields[5:10]]
        names = ("sm_percent", "mem_percent", "enc_percent", "dec_percent")
        used = None if percents[4] is None else int(percents[4] * _MIB)
        seconds.append(second)
        rows.append(
            {
                "device": int(fields[2]),
                "pid": int(fields[3]) if _NUMBER.fullmatch(fields[3]) else None,
                "memory_used_bytes": used,
                "command": fields[10].strip() if len(fields) > 10 else "",
                **dict(zip(names, percents, strict=False)),
            }
        )
    return _with_times(rows, seconds, clock)


def gpu_of_job(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of schema.GPU_SAMPLES from `processes`: for each device, the samples of the pid that is listed first for it."""
    first: dict[int, int] = {}
    rows = []
    for row in processes:
        if row["pid"] is not None and first.setdefault(row["device"], row["pid"]) != row["pid"]:
            continue
        rows.append(
            {
                "time_ns": row["time_ns"],
                "device": row["device"],
                "sm_percent": row["sm_percent"] or 0.0,
                "memory_percent": row["mem_percent"] or 0.0,
                "memory_used_bytes": row["memory_used_bytes"],
            }
        )
    return rows


def disk_samples(path: Path, clock: LocalClock) -> list[dict[str, Any]]:
    """Parse the output of `iostat -mdxty -o JSON 1`, which a kill may have cut off. Return rows of schema.DISK_SAMPLES."""
    rows, seconds = [], []
    for statistics in _iostat_documents(path):
        second = seconds_of_day(str(statistics.get("timestamp", "")))
        disks = statistics.get("disk")
        for disk in disks if second is not None and isinstance(disks, list) else []:
            if not isinstance(disk, dict):
                continue
            reads, writes, read_mib, written_mib, util = (_rate(disk.get(k, 0)) for k in ("r/s", "w/s", "rMB/s", "wMB/s", "util"))
            seconds.append(second)
            rows.append(
                {
                    "interval_ns": _SECOND,
                    "device": str(disk.get("disk_device", "")),
                    "reads": round(reads),
                    "writes": round(writes),
                    "read_bytes": round(read_mib * _MIB),
                    "written_bytes": round(written_mib * _MIB),
                    "busy": min(util / 100, 1.0),
                }
            )
    return _with_times(rows, [second for second in seconds if second is not None], clock)


def _rate(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def _iostat_documents(path: Path) -> list[dict[str, Any]]:
    text = "\n".join(read_lines(path))
    begin = text.find("[", text.find('"statistics"'))
    decoder, found = json.JSONDecoder(), []
    at = begin + 1
    while 0 < at < len(text):
        at = text.find("{", at)
        try:
            document, at = decoder.raw_decode(text, at) if at >= 0 else (None, -1)
        except (ValueError, RecursionError):
            break
        if isinstance(document, dict):
            found.append(document)
    return found


def _with_times(rows: list[dict[str, Any]], seconds: list[int], clock: LocalClock) -> list[dict[str, Any]]:
    return [row | {"time_ns": clock.monotonic_ns(second)} for row, second in zip(rows, clock.unwrap(seconds), strict=True)]


def container_processes(paths: list[Path]) -> list[dict[str, Any]]:
    """Parse listings of `docker top -efT` (UID PID SPID PPID C STIME TTY TIME CMD). Return a row per process, not per thread."""
    found: dict[int, dict[str, Any]] = {}
    for path in paths:
        for line in read_lines(path):
            fields = line.split(None, 8)
            if len(fields) == 9 and _NUMBER.fullmatch(fields[1]) and _NUMBER.fullmatch(fields[3]):
                pid, command = int(fields[1]), fields[8].strip()
                row = {"pid": pid, "ppid": int(fields[3]), "comm": Path(command.split()[0]).name[:15], "command_line": command}
                found.setdefault(pid, row)
    return list(found.values())
