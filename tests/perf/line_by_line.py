"""The rival of `iotwin import`: a plain Python program that prepares the paper artifact's trace_read.out a line at a time.

`bare` is the least that any such program does: one pass. `prepare` does what the artifact's preprocessing is described to do, a
pass a step, each reading the text that the step before it wrote: (1) the clock's alignment: every call's start becomes
UTC, results printed unsigned become negative, torn lines are skipped; (2) what began before the job's init is dropped; (3) lines
are given to their processes by a regular expression each; (4) each call becomes an interval, from its start to its end in seconds
since init, with the phase it began in.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

_SECOND = 1_000_000_000


class Run(NamedTuple):
    """What the other files of the recording say: UNIX minus boot time, the start of init, the phases' starts, the processes."""

    offset_ns: int
    init_ns: int  # UNIX
    phases: list[tuple[int, str]]  # UNIX start, name; in order
    pids: list[int]


def _fields(source: Path) -> Iterator[tuple[int, int, int, int, int, str]]:
    """Yield (end, pid, offset, result, duration, name) of every whole line."""
    with source.open(encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) < 5 or not fields[0].isdigit():
                continue
            offset = int(fields[2], 16 if fields[2].startswith("0x") else 10)
            end, pid, result, took = int(fields[0]), int(fields[1]), int(fields[3]), int(fields[4])
            if result >= 2**63:
                result -= 2**64
            yield end, pid, offset, result, took, fields[5] if len(fields) > 5 else ""


def _utc(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns // _SECOND, UTC).isoformat()[:19]}.{unix_ns % _SECOND:09d}"


def _unix_ns(text: str) -> int:
    moment = datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
    return int(moment.timestamp()) * _SECOND + int(text[20:])


def bare(source: Path, offset_ns: int) -> int:
    """Prepare the file in one pass: split, check, place on the clock, write text; return the rows."""
    rows = 0
    with source.with_suffix(".bare").open("w", encoding="ascii") as prepared:
        for end, pid, offset, result, took, name in _fields(source):
            prepared.write(f"{_utc(end - took + offset_ns)} {pid} {offset} {result} {took} {name}\n")
            rows += 1
    return rows


def prepare(source: Path, run: Run) -> list[Path]:
    """Prepare the file in the artifact's steps; return the text files of intervals, one a process."""
    aligned, kept = source.with_suffix(".aligned"), source.with_suffix(".kept")
    with aligned.open("w", encoding="ascii") as out:
        for end, pid, offset, result, took, name in _fields(source):
            out.write(f"{_utc(end - took + run.offset_ns)} {pid} {offset} {result} {took} {name}\n")
    init = _utc(run.init_ns)
    with aligned.open(encoding="ascii") as lines, kept.open("w", encoding="ascii") as out:
        for line in lines:
            if line.split()[0] >= init:
                out.write(line)
    return [_intervals(path, run) for path in _by_process(kept, run.pids)]


def _by_process(source: Path, pids: list[int]) -> list[Path]:
    """Give the lines to their processes; the expression is tied to the pid's column, so that no other number matches it."""
    paths = [source.with_suffix(f".{pid}") for pid in pids]
    patterns = [re.compile(rf"^\S+ {pid} ") for pid in pids]
    files = [path.open("w", encoding="ascii") for path in paths]
    with source.open(encoding="ascii") as lines:
        for line in lines:
            for pattern, file in zip(patterns, files, strict=True):
                if pattern.search(line):
                    file.write(line)
                    break
    for file in files:
        file.close()
    return paths


def _intervals(source: Path, run: Run) -> Path:
    intervals, starts = source.with_suffix(source.suffix + ".intervals"), [start for start, _ in run.phases]
    with source.open(encoding="ascii") as lines, intervals.open("w", encoding="ascii") as out:
        for line in lines:
            time, pid, offset, result, took, *name = line.split()
            start_ns = _unix_ns(time)
            end_ns = start_ns + int(took)
            phase = run.phases[max(bisect_right(starts, start_ns) - 1, 0)][1]
            begin_s, end_s = (start_ns - run.init_ns) / _SECOND, (end_ns - run.init_ns) / _SECOND
            out.write(f"{begin_s:.9f} {end_s:.9f} {phase} {pid} {offset} {result} {''.join(name)}\n")
    return intervals
