"""Import the paper artifact's directory of recordings: bpftrace text, samples and the job's log, converted to one clock."""

import datetime
import re
import zoneinfo
from pathlib import Path

import pyarrow.compute as pc

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.units import counted
from iotwin.trace_store.clocks import one_by_one, realtime_to_monotonic
from iotwin.trace_store.importers import artifact_samples as samples
from iotwin.trace_store.importers.artifact_calls import read_block, read_calls
from iotwin.trace_store.importers.assemble import Imported
from iotwin.trace_store.importers.text import read_lines
from iotwin.trace_store.logs.dlio_log import parse_edge
from iotwin.trace_store.logs.job_log import read_log
from iotwin.trace_store.manifest import ClockPair

_SECOND = 1_000_000_000
_DAY_S = 86_400
_SLACK_S = 900  # seconds that the log may extend beyond the calls. A wrong time zone shifts it by at least 15 minutes


def recognises(source: Path) -> bool:
    """Return True if `source` is a directory with at least one of the artifact's recordings."""
    return source.is_dir() and any((source / f"trace_{name}.out").exists() for name in ("read", "write", "openat", "bio"))


def read(source: Path, timezone: str | None) -> Imported:
    """Return the recording in the directory `source`. `timezone`: IANA name of the traced machine's time zone, by default UTC.

    As in the artifact's plots, events before the log's phase init are left out. Raises IotwinError if the log, read in that time
    zone, lies outside the recorded calls. Raises UsageError for an unknown time zone.
    """
    if not source.is_dir():
        raise UsageError(f"{source} is not a directory: the artifact's recordings are; choose another --format")
    imported = Imported(processes=samples.container_processes(sorted(source.glob("pids_*.out"))))
    torn = imported.torn
    read_calls(source, torn, imported.calls)
    bio = source / "trace_bio.out"
    if bio.exists():
        imported.block = read_block(bio, torn)
    align = source / "trace_time_align.out"
    if not align.exists():
        imported.notes.append("no trace_time_align.out: phases and samples cannot be placed on the calls' clock and are left out")
        return imported
    clock, torn[align.name] = samples.read_local_clock(align)
    _add_samples(imported, source, clock)
    _add_phases(imported, source, clock, _zone(timezone))
    return _from_init(imported)


def _zone(timezone: str | None) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(timezone or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        raise UsageError(f"--timezone '{timezone}' is no IANA time zone; write for example America/Toronto") from None


def _add_samples(imported: Imported, source: Path, clock: samples.LocalClock) -> None:
    readers = {
        "cpu": ("cpu.out", samples.cpu_samples),
        "gpu_process": ("gpu.out", samples.gpu_samples),
        "disk": ("iostat.json", samples.disk_samples),
    }
    for kind, (name, reader) in readers.items():
        if (source / name).exists():
            imported.samples[kind] = reader(source / name, clock)
    if imported.samples.get("gpu_process"):
        imported.samples["gpu"] = samples.gpu_of_job(imported.samples["gpu_process"])


def _add_phases(imported: Imported, source: Path, clock: samples.LocalClock, zone: zoneinfo.ZoneInfo) -> None:
    logs = sorted(source.glob("*.log"))
    unix = _log_times_ns(logs)
    if not unix:
        imported.notes.append("no MLLOG or DLIO log: phases are not known")
        return
    realtime_ns = _date_of(clock.second, unix, zone)
    imported.clock = [ClockPair(clock.tick_ns, realtime_ns, clock.uncertainty_ns)]
    _check_zone(imported, unix, clock.tick_ns - realtime_ns, zone)
    logged = read_log(logs, one_by_one(realtime_to_monotonic(imported.clock)))
    imported.phases, imported.parts, imported.torn["MLLOG"] = logged.phases, logged.parts, logged.torn


def _log_times_ns(logs: list[Path]) -> list[int]:
    times = []
    for log in logs:
        for line in read_lines(log):
            if log.name == "dlio.log" and (edge := parse_edge(line)):
                times.append(edge.time_ns)
            elif ":::MLLOG" in line and (found := re.search(r'"time_ms": *(\d+)', line)):
                times.append(int(found[1]) * 1_000_000)
    return [min(times), max(times)] if times else []


def _date_of(second: int, unix: list[int], zone: zoneinfo.ZoneInfo) -> int:
    """Return the UNIX time in ns of the local time `second`, counted from midnight, on the day closest to the log's start.

    `unix`: UNIX time in ns of the log's start and end.
    """
    day = datetime.datetime.fromtimestamp(unix[0] / _SECOND, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    candidates = []
    for shift in (-1, 0, 1):
        local = day.replace(tzinfo=None) + datetime.timedelta(days=shift, seconds=second % _DAY_S)
        candidates.append(round(local.replace(tzinfo=zone).timestamp()) * _SECOND)
    return min(candidates, key=lambda time_ns: abs(time_ns - unix[0]))


def _check_zone(imported: Imported, unix: list[int], offset_ns: int, zone: zoneinfo.ZoneInfo) -> None:
    if not imported.calls.rows:
        return
    begin, end = imported.calls.span()
    away_s = max(begin - (unix[0] + offset_ns), unix[1] + offset_ns - end) / _SECOND
    if away_s > _SLACK_S:
        raise IotwinError(
            f"in time zone {zone.key} the job's log lies {away_s / 3600:.2g} hours outside the recorded calls; "
            "give the --timezone of the machine that recorded them"
        )


def _from_init(imported: Imported) -> Imported:
    starts = [row["start_ns"] for row in imported.phases if row["phase"] == "init"]
    if starts:
        dropped = imported.calls.drop_before(min(starts))
        if imported.block is not None:
            imported.block = imported.block.filter(pc.greater_equal(imported.block["issue_ns"], min(starts)))
        if dropped:
            imported.notes.append(f"left out: {counted(dropped, 'call')} before the log's init")
    return imported
