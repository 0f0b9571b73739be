"""Parses the options of `iotwin detrain run`, and refuses contradictory ones."""

import re
from argparse import Namespace
from dataclasses import dataclass
from typing import NamedTuple

from iotwin.common.errors import UsageError
from iotwin.common.ranks import launched_by_torchrun
from iotwin.workloads.policies.cadence import Cadence, Policy
from iotwin.workloads.policies.checkpoint_frequency import Frequency, MeasuredPolicy

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_EVERY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(epochs?|batch(?:es)?|s|min|h)")


@dataclass
class CheckFreqSettings:
    """The settings of --policy checkfreq. Scripts may be short, so fewer steps are timed than in CheckFreq (100)."""

    overhead: float = 0.05
    mtbf: float | None = None
    profile_steps: int = 10


class Every(NamedTuple):
    """How often to save: every `amount` of `unit` (epochs, batches, or seconds as s)."""

    amount: float
    unit: str


def every(text: str) -> Every:
    """Parse an interval such as 2epochs, 100batches or 5min. Raises UsageError if `text` is none."""
    match = _EVERY.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--every '{text}' is no period; give one such as 2epochs, 100batches, 5min or 30s")
    count, unit = float(match[1]), match[2]
    if unit in _SECONDS:
        return Every(count * _SECONDS[unit], "s")
    if not count.is_integer():
        raise UsageError(f"--every '{text}' is no whole number of {unit}")
    return Every(count, "epochs" if unit.startswith("epoch") else "batches")


def points(text: str) -> list[tuple[int, int]]:
    """Parse a list such as 0:3,1:6 into pairs (epoch, batch), both from 0. Raises UsageError if `text` is none."""
    found = [re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", part) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"--at '{text}' lists no batches; give EPOCH:BATCH,... such as 0:3,1:6, both from 0")
    return [(int(match[1]), int(match[2])) for match in found if match]


def check_options(options: Namespace) -> None:
    """Raise UsageError if options contradict one another, are out of range, or name files that cannot exist."""
    if not options.script.is_file():
        raise UsageError(f"{options.script}: is no file; name a training script")
    if options.output is None and saves(options):
        raise UsageError("--every, --at, --policy: name a directory for the checkpoints: -o DIR")
    if options.every and options.policy:
        raise UsageError("--every and --policy both decide when to save; give one of them")
    for name, number in (("--keep", options.keep), ("--workers", options.workers or 0)):
        if number < 0:
            raise UsageError(f"{name} must be at least 0 (got {number})")
    if options.steps_log and (options.steps_log.is_dir() or not options.steps_log.absolute().parent.is_dir()):
        raise UsageError(f"--steps-log {options.steps_log}: name a file in a folder that exists")
    launched_by_torchrun()
    policy_of(options, 0.0)


def saves(options: Namespace) -> bool:
    """Return whether the run saves checkpoints."""
    return bool(options.every or options.at or options.policy)


def check_one_process(command: str) -> None:
    """Raise UsageError if this process is one of several ranks: `command` starts all ranks by itself."""
    if (ranks := launched_by_torchrun().size) != 1:
        raise UsageError(f"WORLD_SIZE is {ranks}: iotwin detrain {command} starts the ranks itself; start it once, with --ranks")


def policy_of(options: Namespace, now: float) -> Policy:
    """Return the policy by which checkpoints are due. Raises UsageError for an invalid interval or list of batches."""
    listed = points(options.at) if options.at else ()
    if options.policy:
        return MeasuredPolicy(Frequency(CheckFreqSettings(), in_flight=1), listed)
    period = every(options.every) if options.every else None
    count = int(period.amount) if period and period.unit != "s" else 0
    return Policy(
        epochs=Cadence(count, count).due if period and period.unit == "epochs" else None,
        steps=Cadence(count, count) if period and period.unit == "batches" else None,
        seconds=period.amount if period and period.unit == "s" else None,
        listed=listed,
        now=now,
    )
