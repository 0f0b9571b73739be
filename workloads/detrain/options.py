"""The options of a run of a script, for the command line and for the process that runs the script."""

import os
import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import NamedTuple

from iotwin.common.errors import UsageError
from iotwin.workloads.policies.cadence import Cadence, Policy

REPLAYS = ("restore", "skip-reads", "replay-data", "full")
PROFILES = ("off", "seeded", "strict")
DROPS = ("rng", "loader", "scaler", "all")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_EVERY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(epochs?|batch(?:es)?|s|min|h)")


class Every(NamedTuple):
    """How often to save: every `amount` of `unit` (epochs, batches, or seconds as s)."""

    amount: float
    unit: str


def every(text: str) -> Every:
    """Return what a text such as 2epochs, 100batches or 5min means. Raises UsageError if it is no period."""
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
    """Return the (epoch, batch) that a text such as 0:3,1:6 lists, both from 0. Raises UsageError if it lists none."""
    found = [re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", part) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"--at '{text}' lists no batches; give EPOCH:BATCH,... such as 0:3,1:6, both from 0")
    return [(int(match[1]), int(match[2])) for match in found if match]


def add_run_options(parser: ArgumentParser) -> None:
    """Add the options of a run, and the script; the caller adds the script's own `arguments`."""
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a training script; its files remain as they are")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for checkpoints and run.json")
    parser.add_argument("--every", metavar="PERIOD", help="save every 2epochs, 100batches, 5min or 30s")
    parser.add_argument("--at", metavar="E:B,...", help="save before these batches; both count from 0")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="keep the N newest checkpoints (default: all)")
    parser.add_argument("--resume", default="auto", metavar="NAME", help="auto (default: the newest), never, or a checkpoint")
    parser.add_argument(
        "--replay", choices=REPLAYS, default="restore", help="how earlier batches are passed over (default restore)"
    )
    parser.add_argument("--determinism", choices=PROFILES, default="off", help="how far randomness is fixed (default off)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed for --determinism (default 0)")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes of all data loaders, instead of the script's")
    parser.add_argument("--inst", type=Path, metavar="FILE", help="the script's loops, as iotwin detrain discover writes them")
    parser.add_argument("--steps-log", type=Path, metavar="FILE", help="write what each step took and computed, as JSON lines")
    parser.add_argument("--force", action="store_true", help="run although it is unsure which lines are the script's loops")
    parser.add_argument(
        "--drop", choices=DROPS, action="append", default=[], help="do not restore this, to show that it is needed"
    )


def as_arguments(options: Namespace) -> list[str]:
    """Return the command line of a run with these options."""
    parser = ArgumentParser(add_help=False)
    add_run_options(parser)
    found: list[str] = []
    for action in parser._actions:
        value = getattr(options, action.dest)
        if action.option_strings and value != action.default:
            for each in value if isinstance(value, list) else [value]:
                found += [action.option_strings[-1], *([] if each is True else [str(each)])]
    return [*found, str(options.script), *options.arguments]


def check_options(options: Namespace) -> None:
    """Raise UsageError if options contradict one another, or a script is none."""
    if not options.script.is_file():
        raise UsageError(f"{options.script}: is no file; name a training script")
    if options.output is None and (options.every or options.at):
        raise UsageError("--every, --at: name a directory for the checkpoints: -o DIR")
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise UsageError(f"WORLD_SIZE is {ranks}: a script of several ranks cannot be saved; run it as one process")
    policy_of(options, 0.0)


def policy_of(options: Namespace, now: float) -> Policy:
    """Return when checkpoints are due. Raises UsageError for a text that is no period or no list of batches."""
    period = every(options.every) if options.every else None
    count = int(period.amount) if period and period.unit != "s" else 0
    return Policy(
        epochs=Cadence(count, count) if period and period.unit == "epochs" else None,
        steps=Cadence(count, count) if period and period.unit == "batches" else None,
        seconds=period.amount if period and period.unit == "s" else None,
        listed=points(options.at) if options.at else (),
        now=now,
    )
