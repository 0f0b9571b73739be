"""Options of ``iotwin detrain run``, which its command line and the process that runs the script share."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

REPLAYS = ("restore", "skip-reads", "replay-data", "full")
PROFILES = ("off", "seeded", "strict")
DROPS = ("rng", "scaler")
POLICIES = ("checkfreq",)


def add_run_options(parser: ArgumentParser) -> None:
    """Add the options of iotwin detrain run and the argument SCRIPT to `parser`, without the script's arguments."""
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a training script; its files remain as they are")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for checkpoints and run.json")
    parser.add_argument("--every", metavar="PERIOD", help="save every 2epochs, 100batches, 5min or 30s")
    parser.add_argument("--at", metavar="E:B,...", help="save before these batches, as EPOCH:BATCH, both from 0")
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        help="checkfreq: save so often that checkpoints add at most 5 %% to the time of training",
    )
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="keep the N newest checkpoints (default: all)")
    parser.add_argument("--resume", default="auto", metavar="NAME", help="auto (default: the newest), never, or a checkpoint")
    parser.add_argument(
        "--replay",
        choices=REPLAYS,
        default="restore",
        help="whether a resumed run reads earlier batches again (default restore: it does not)",
    )
    parser.add_argument(
        "--determinism",
        choices=PROFILES,
        default="off",
        help="seeded: seed all generators; strict: and fix operations (default off)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed for --determinism and --fix-entropy (default 0)")
    parser.add_argument(
        "--fix-entropy", action="store_true", help="seed the random generators that the script leaves unseeded, too"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes of all data loaders, instead of the script's")
    parser.add_argument("--inst", type=Path, metavar="FILE", help="the script's loops, as iotwin detrain discover writes them")
    parser.add_argument(
        "--steps-log", type=Path, metavar="FILE", help="write samples, losses and digests of each step to FILE, as JSON lines"
    )
    parser.add_argument(
        "--log-phases", action="store_true", help="print epochs, steps, checkpoints and the resumption for iotwin trace"
    )
    parser.add_argument("--force", action="store_true", help="run even if it is uncertain which lines are the training loops")
    parser.add_argument(
        "--drop",
        choices=DROPS,
        action="append",
        default=[],
        help="leave out this part of the state when resuming, to show that it is needed",
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
