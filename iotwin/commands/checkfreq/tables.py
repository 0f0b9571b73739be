"""Read the CSV tables and the durations that the commands of ``iotwin checkfreq`` take."""

import csv
import io
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.untrusted_files import read_foreign_text

if TYPE_CHECKING:
    from iotwin.workloads.policies.adaptive_interval import MeasuredStep


def seconds(text: str, option: str) -> float:
    """Return a duration such as 0.2, 200ms or 1h in seconds. Raises UsageError, which names the `option`, for other text."""
    from iotwin.common.units import parse_duration

    try:
        return parse_duration(text) / 1e9
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def read_steps(path: Path) -> "list[MeasuredStep]":
    """Return the steps in a CSV file with columns seconds, checkpoint, stall_s and, optionally, writing."""
    from iotwin.workloads.policies.adaptive_interval import MeasuredStep

    rows = _read(path, ("seconds", "checkpoint", "stall_s"), ("writing",))
    for line, (duration_s, checkpoint, stall_s, writing) in enumerate(rows, 2):
        if not 0 <= stall_s <= duration_s or duration_s == 0:
            raise IotwinError(f"{path}:{line}: seconds must be above 0 and hold stall_s, which is 0 or more")
        if {checkpoint, writing} - {0.0, 1.0}:
            raise IotwinError(f"{path}:{line}: checkpoint and writing are 0 or 1")
    return [
        MeasuredStep(duration_s, bool(checkpoint), stall_s, bool(writing)) for duration_s, checkpoint, stall_s, writing in rows
    ]


def read_failures(path: Path) -> tuple[int, float]:
    """Return the number of failures in a CSV file with the columns Time (seconds) and GPUs (in use), and the seconds it covers.

    A change by four GPUs counts as one failure, as in PCcheck's evaluation, whose machines have four.
    """
    rows = _read(path, ("time", "gpus"))
    times, gpus = [time_s for time_s, _ in rows], [count for _, count in rows]
    if len(rows) < 2 or times != sorted(times) or times[0] == times[-1]:
        raise IotwinError(f"{path}: Time must rise over two rows or more, in seconds")
    return int(sum(abs(after - before) // 4 for before, after in itertools.pairwise(gpus))), times[-1] - times[0]


def _read(path: Path, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> list[list[float]]:
    """Return the numbers of each row in the columns `needed` and `others`; 0 if the file lacks a column of `others`."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    try:
        lines = io.StringIO(read_foreign_text(path).removeprefix("\ufeff"), newline="")
        header, *rows = [row for row in csv.reader(lines) if row] or [[]]
    except csv.Error as error:
        raise IotwinError(f"{path} is no table of comma-separated values: {error}") from None
    names = [name.strip().lower() for name in header]
    missing = [name for name in needed if name not in names]
    if missing:
        raise IotwinError(f"{path} has no column {missing[0]}; it needs {', '.join(needed)}")
    columns = [names.index(name) if name in names else None for name in needed + others]
    return [_numbers(path, line, row, columns) for line, row in enumerate(rows, 2)]


def _numbers(path: Path, line: int, row: list[str], columns: list[int | None]) -> list[float]:
    try:
        found = [0.0 if column is None else float(row[column]) for column in columns]
    except (ValueError, IndexError):
        raise IotwinError(f"{path}:{line}: '{','.join(row)}' has not a number in each column") from None
    if not all(map(math.isfinite, found)):
        raise IotwinError(f"{path}:{line}: '{','.join(row)}' has a number that is not finite")
    return found
