"""Read phases and parts of steps from MLLOG lines (`:::MLLOG {json}`, mlcommons/logging), and phases from DLIO's log.

iotwin's workloads and emulator log `time_ns` (UNIX ns) in addition to `time_ms`, which is too coarse for short phases.
"""

import contextlib
import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.mllog import JUMPS, PHASE_OF_KEY
from iotwin.common.untrusted_files import read_foreign_lines
from iotwin.trace_store.logs.dlio_log import Edge, parse_edge, zone_of

_LINE = re.compile(r"(?:\[?(?P<rank>\d+)\]?:?\s+)?:::MLLOG\s+(?P<json>\{.*\})\s*$")

_LOG_OF_RANK = re.compile(r"(?:^|\.)rank-(\d{1,9})\.std(?:out|err)$")  # the logs of a task that a launcher started
_LAST_NS = 1 << 62  # in the year 2116
_SAME_TIME_NS = 1_000_000_000  # if a line's CLOCK_MONOTONIC differs from its wall time by more, it was read from another clock
_MOST_JUMPS = 1 << 21
_SAME_CLOCK_NS = 3_600_000_000_000  # if a part ends an hour or more before or after its log line, its times are of another clock
_PART_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")
_MOST_PART_NAMES = 1000
_STEP_KEYS = ("step_num", "first_step_num", "minibatch")
_MOST_LINE_BYTES = 1 << 20  # the rest of a longer line is ignored

PhaseRow = dict[str, Any]


@dataclass
class JobLog:
    """Rows of schema.PHASES and schema.PARTS read from a job's logs, in order of start, and the number of cut-off lines.

    `jumps`: (real CLOCK_MONOTONIC in ns, length in ns) of each jump of an emulated run's virtual clock. All other times are real.
    """

    phases: list[PhaseRow] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    torn: int = 0
    jumps: list[tuple[int, int]] = field(default_factory=list)


def log_lines(log: Path) -> Iterator[str]:
    """Yield the lines of the file `log`, each cut at 1 MiB, with bytes that are not UTF-8 replaced.

    Yields nothing if the file cannot be read or is not regular.
    """
    with contextlib.suppress(IotwinError, OSError):
        for line in read_foreign_lines(log, _MOST_LINE_BYTES):
            yield line.decode("utf-8", "replace")


def read_log(logs: Iterable[Path], to_monotonic_ns: Callable[[int], int], span_ns: tuple[int, int] | None = None) -> JobLog:
    """Return the phases and parts of steps in the log files.

    `to_monotonic_ns` converts UNIX ns to CLOCK_MONOTONIC ns. DLIO's lines count only if no MLLOG line has a phase. Their times
    are in UTC, or in this machine's time zone if they are within `span_ns` (UNIX ns) only in that zone.
    """
    found = JobLog()
    dlio_rows: list[PhaseRow] = []
    names: set[str] = set()
    for log in logs:
        open_phases: dict[tuple[str, int], PhaseRow] = {}
        dlio: list[str] = []
        for line in log_lines(log):
            if ":::MLLOG" not in line:
                if parse_edge(line):
                    dlio.append(line)
                continue
            event = _parse(line, rank_of_log(log))
            if event is None:
                found.torn += 1
            elif part := _part(event, to_monotonic_ns):
                names.add(part["name"])
                if len(names) <= _MOST_PART_NAMES:
                    found.parts.append(part)
            elif event["_key"] == JUMPS:
                jumps = _jumps(event.get("value"))
                found.torn += jumps is None
                found.jumps += (jumps or [])[: _MOST_JUMPS - len(found.jumps)]
            else:
                _apply(event, open_phases, found.phases, to_monotonic_ns)
        zone = zone_of(dlio, *span_ns) if span_ns else datetime.UTC
        dlio_rows += _dlio_phases(dlio, to_monotonic_ns, zone, rank_of_log(log))
    if sum(length for _, length in found.jumps) > _LAST_NS >> 1:
        found.jumps, found.torn = [], found.torn + 1
    found.phases = found.phases or dlio_rows
    found.phases.sort(key=lambda row: (row["start_ns"], -row["end_ns"]))
    found.parts.sort(key=lambda row: (row["start_ns"], -row["duration_ns"]))
    return found


def phase_edge(line: str) -> tuple[str, bool, int, int | None] | None:
    """Parse a line of MLLOG or DLIO. Return (phase, True if it starts, rank, step or epoch); None if the line has no phase."""
    if ":::MLLOG" not in line:
        begun = parse_edge(line)
        return None if begun is None else (begun.phase, begun.starts, 0, begun.number)
    event = _parse(line)
    edge = None if event is None else _edge(event)
    if event is None or edge is None:
        return None
    return *edge, event["_rank"], event["_epoch"] if event["_step"] is None else event["_step"]


def read_values(logs: Iterable[Path]) -> dict[str, Any]:
    """Return, from the MLLOG lines of rank 0, the first value of each key, and the sum of `step_count` over all phases."""
    values: dict[str, Any] = {}
    for log in logs:
        rank = rank_of_log(log)
        parsed = [event for line in log_lines(log) if ":::MLLOG" in line and (event := _parse(line, rank))]
        events = [event for event in parsed if not event["_rank"]]
        for event in events:
            if event.get("value") is not None:
                values.setdefault(event["_key"], event["value"])
            steps = (event.get("metadata") or {}).get("step_count")
            if isinstance(steps, int) and (_edge(event) or ("", False))[1]:
                values["step_count"] = values.get("step_count", 0) + steps
    return values


def read_points(logs: Iterable[Path], key: str) -> list[tuple[int, int]]:
    """Return (CLOCK_MONOTONIC in ns, value) of each point of the quantity `key`, in order of time.

    Only points with the metadata `at_ns` count, whose value is a whole number.
    """
    points: list[tuple[int, int]] = []
    for log in logs:
        for line in log_lines(log):
            event = _parse(line) if ":::MLLOG" in line and key in line else None
            if event is None or event["_key"] != key:
                continue
            at_ns, value = (event.get("metadata") or {}).get("at_ns"), event.get("value")
            if type(at_ns) is int and type(value) is int and 0 <= at_ns <= _LAST_NS and 0 <= value <= _LAST_NS:
                points.append((at_ns, value))
    return sorted(points)


def read_parts(logs: Iterable[Path], names: Iterable[str]) -> list[tuple[str, int, int, int]]:
    """Return (name, start in CLOCK_MONOTONIC ns, duration in ns, rank) of each part of a step whose name is in `names`.

    A part is logged by `iotwin.workloads.common.parts`, as a line with the value {"start": NS, "duration": NS}.
    """
    parts = []
    for log in logs:
        for line in log_lines(log):
            event = _parse(line, rank_of_log(log)) if ":::MLLOG" in line and '"duration"' in line else None
            if event is None or event["_key"] not in names or not isinstance(value := event.get("value"), dict):
                continue
            start, duration = value.get("start"), value.get("duration")
            if isinstance(start, int) and isinstance(duration, int) and 0 <= start <= _LAST_NS and 0 <= duration <= _LAST_NS:
                parts.append((event["_key"], start, duration, event["_rank"]))
    return parts


def _dlio_phases(lines: list[str], to_monotonic_ns: Callable[[int], int], zone: datetime.tzinfo, rank: int) -> Iterator[PhaseRow]:
    begun: dict[str, Edge] = {}
    for edge in filter(None, (parse_edge(line, zone) for line in lines)):
        if edge.starts:
            begun[edge.phase] = edge
        elif edge.phase in begun:
            first = begun.pop(edge.phase)
            start_ns = to_monotonic_ns(first.time_ns)
            end_ns = max(to_monotonic_ns(edge.time_ns), start_ns)
            yield {"phase": edge.phase, "start_ns": start_ns, "end_ns": end_ns, "rank": rank, "epoch": first.number, "step": None}


def rank_of_log(log: Path) -> int:
    """Return the rank of lines without a rank in the file `log`: that of the task whose output it is, by its name; else 0."""
    match = _LOG_OF_RANK.search(log.name)
    return int(match[1]) if match else 0


def _parse(line: str, rank: int = 0) -> dict[str, Any] | None:
    """Return the event that `line` logs, None if the line is damaged. `rank`: the rank if the line has none."""
    match = _LINE.search(line)
    if match is None:
        return None
    try:
        event = json.loads(match["json"])
        logged = match["rank"] or event.get("metadata", {}).get("rank")
        event["_rank"] = _int32(rank if logged in (None, "") else logged)
        event["_time_ns"] = int(event["time_ns"]) if "time_ns" in event else int(event["time_ms"]) * 1_000_000
        if not 0 <= event["_time_ns"] <= _LAST_NS:
            return None
        event["_key"] = str(event["key"]).lower()
        event["_epoch"], event["_step"] = _numbers(event.get("metadata") or {})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _edge(event: dict[str, Any]) -> tuple[str, bool] | None:
    """Return (phase, True) if `event` starts a phase, (phase, False) if it ends a phase, else None."""
    key: str = event["_key"]
    base, _, ending = key.rpartition("_")
    kind = event.get("event_type")
    if ending in ("start", "stop", "end") and base in PHASE_OF_KEY:
        return PHASE_OF_KEY[base], ending == "start"
    if key in PHASE_OF_KEY and kind in ("INTERVAL_START", "INTERVAL_END"):
        return PHASE_OF_KEY[key], kind == "INTERVAL_START"
    return None


def _jumps(value: Any) -> list[tuple[int, int]] | None:
    """Return the jumps of a line with the key JUMPS; None if the line is damaged."""
    try:
        pairs = [(int(at), int(length)) for at, length in (word.split(",") for word in value.split())]
    except (ValueError, AttributeError):
        return None
    return pairs if all(0 <= at <= _LAST_NS and 0 < length <= _LAST_NS for at, length in pairs) else None


def _monotonic_ns(event: dict[str, Any], clock: Callable[[int], int]) -> int:
    """Return the line's time in CLOCK_MONOTONIC ns, by the line itself or else by `clock` from its UNIX ns."""
    own_ns, converted_ns = event.get("monotonic_ns"), clock(event["_time_ns"])
    return own_ns if type(own_ns) is int and abs(own_ns - converted_ns) < _SAME_TIME_NS else converted_ns


def _part(event: dict[str, Any], clock: Callable[[int], int]) -> dict[str, Any] | None:
    """Return the part of a step that `event` logs, as a row of schema.PARTS; None if it logs no part.

    The logged start is CLOCK_MONOTONIC. If it is far from the log line's time, as in a container with a separate clock, the part
    is assumed to end at that time. `clock` converts UNIX ns to CLOCK_MONOTONIC ns.
    """
    value = event.get("value")
    if not isinstance(value, dict) or not _PART_NAME.fullmatch(event["_key"]):
        return None
    start_ns, duration_ns = value.get("start"), value.get("duration")
    if type(start_ns) is not int or type(duration_ns) is not int or not 0 <= duration_ns <= _LAST_NS:
        return None
    logged_ns = _monotonic_ns(event, clock)
    if abs(start_ns + duration_ns - logged_ns) > _SAME_CLOCK_NS:
        start_ns = logged_ns - duration_ns
    if start_ns < 0:
        return None
    return {
        "name": event["_key"],
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "rank": event["_rank"],
        "epoch": event["_epoch"],
        "step": event["_step"],
        **{name: _optional_int32((event.get("metadata") or {}).get(name)) for name in ("stage", "version")},
    }


def _numbers(metadata: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (epoch, step) from a line's `metadata`, None for a missing number. Raises ValueError if a number exceeds 32 bits."""
    epoch, step = metadata.get("epoch_num"), next((metadata[key] for key in _STEP_KEYS if key in metadata), None)
    return None if epoch is None else _int32(epoch), None if step is None else _int32(step)


def _optional_int32(value: Any) -> int | None:
    return value if type(value) is int and -(1 << 31) <= value < 1 << 31 else None


def _int32(value: Any) -> int:
    number = int(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(value)
    return number


def _apply(
    event: dict[str, Any], open_phases: dict[tuple[str, int], PhaseRow], rows: list[PhaseRow], clock: Callable[[int], int]
) -> None:
    edge = _edge(event)
    if edge is None:
        return
    phase, starts = edge
    time_ns = _monotonic_ns(event, clock)
    where = (phase, event["_rank"])
    if starts:
        open_phases[where] = {
            "phase": phase,
            "start_ns": time_ns,
            "end_ns": time_ns,
            "rank": event["_rank"],
            "epoch": event["_epoch"],
            "step": event["_step"],
        }
    elif where in open_phases:
        row = open_phases.pop(where)
        row["end_ns"] = max(time_ns, row["start_ns"])
        rows.append(row)
