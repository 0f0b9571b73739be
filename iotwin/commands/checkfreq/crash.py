"""``iotwin checkfreq crash``: whether kills lose checkpoints, and what unsafe ways of writing lose."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.errors import IotwinError, UsageError


class CheckFreqCrashCommand(Command):
    """Kill jobs in the middle of writing."""

    name = "crash"
    help = "kill jobs while they write checkpoints and check what remains; needs PyTorch"
    epilog = "example: iotwin checkfreq crash -o crashed --kills 100 --unsafe overwrite,no-fsync"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the directory and the kills."""
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory for the jobs' store")
        parser.add_argument("--kills", type=int, default=1000, metavar="N", help="jobs to kill (default 1000)")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the kills (default 1)")
        parser.add_argument("--unsafe", default="", metavar="WAYS", help="also judge overwrite, no-fsync or both, by commas")

    def run(self, args: Namespace) -> Outcome:
        """Kill and count; exit status 1 when anything was lost."""
        if args.kills < 1:
            raise UsageError(f"--kills {args.kills} kills nothing; give at least 1")
        try:
            from iotwin.workloads.checkfreq.crash import crash
        except ModuleNotFoundError as error:
            raise IotwinError(
                f"the jobs to kill need the Python package {error.name}; install it with: pip install iotwin[torch]"
            ) from None
        found = crash(args.output, args.kills, args.seed, tuple(filter(None, args.unsafe.split(","))))
        return Outcome(found, 1 if found["lost"] else 0)

    def show(self, document: dict[str, Any]) -> None:
        """Print what was lost."""
        points = ", ".join(f"{name} {count}" for name, count in document["points"].items())
        print(f"{document['kills']} kills ({points}): {document['lost']} lost a checkpoint")
        print(f"at most {document['most_steps_lost']} steps to do again, of {document['bound_steps']} that may be")
        for name, found in document["unsafe"].items():
            print(f"{name}: nothing loads in {found['unloadable']} of {found['states']} states that a crash may leave")
