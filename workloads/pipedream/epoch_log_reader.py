"""Read the lines that a training prints for each epoch, in the format of PipeDream's runtime."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign_lines

_MOST_LINE_BYTES = 1 << 16
_NUMBER = r"(-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf)"
_TEST = re.compile(rf"Test: \[(\d+)\]\[\d+/\d+\].*?\bLoss:? {_NUMBER} \({_NUMBER}\)")
_TRAIN = re.compile(r"Epoch: \[(\d+)\]\[\d+/\d+\]")
_PRECISION = re.compile(rf"\* Prec@1 {_NUMBER} Prec@5 {_NUMBER}")
_SECONDS = re.compile(rf"Epoch (\d+): {_NUMBER} seconds")


def epoch_results(logs: Iterable[Path]) -> list[dict[str, Any]]:
    """Return {"epoch", "hours", "top1", "top5", "loss", "epoch_hours"} of each epoch, in order.

    `hours` is the time since the start of the first epoch in the logs, without evaluations. `loss` is that of the evaluation,
    whose lines only the last stage prints. A value is None if no log has it. If several logs have it, the first log counts.
    Raises IotwinError if a log cannot be read, or if none has an epoch.
    """
    paths = list(logs)
    found: dict[int, dict[str, float]] = {}
    for path in sorted(paths, key=lambda path: not _is_of_last_stage(path)):
        for epoch, values in _of_log(path).items():
            found[epoch] = values | found.get(epoch, {})
    if not found:
        raise IotwinError(f"{paths[0]} has no line such as 'Epoch 0: 12.3 seconds'; give the log of a training's rank")
    rows, hours = [], 0.0
    for epoch in sorted(found):
        own = found[epoch]
        spent = own.get("seconds")
        hours += (spent or 0.0) / 3600
        rows.append({
            "epoch": epoch, "hours": hours, **{name: _finite(own.get(name)) for name in ("top1", "top5", "loss")},
            "epoch_hours": None if spent is None else spent / 3600,
        })  # fmt: skip
    return rows


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _is_of_last_stage(path: Path) -> bool:
    return any(_PRECISION.search(line) for line in _lines(path))


def _of_log(path: Path) -> dict[int, dict[str, float]]:
    """Return the values of each epoch in a log. A line of precision belongs to the epoch of the line before it."""
    found: dict[int, dict[str, float]] = {}
    epoch: int | None = None
    for line in _lines(path):
        if match := _TEST.search(line):
            epoch = int(match[1])
            found.setdefault(epoch, {})["loss"] = float(match[3])
        elif match := _TRAIN.search(line):
            epoch = int(match[1])
            found.setdefault(epoch, {})
        elif match := _SECONDS.search(line):
            epoch = int(match[1])
            found.setdefault(epoch, {})["seconds"] = float(match[2])
        elif (match := _PRECISION.search(line)) and epoch is not None:
            found[epoch] |= {"top1": float(match[1]), "top5": float(match[2])}
    return found


def _lines(path: Path) -> Sequence[str]:
    try:
        return [line.decode("utf-8", "replace") for line in read_foreign_lines(path, _MOST_LINE_BYTES)]
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror}") from None
