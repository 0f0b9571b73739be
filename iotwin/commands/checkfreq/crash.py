"""``iotwin checkfreq crash``: kill jobs while they write checkpoints, and count the checkpoints that are lost."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.errors import IotwinError
from iotwin.common.units import counted


class CheckFreqCrashCommand(Command):
    name = "crash"
    help = "kill jobs while they write checkpoints and check what remains; needs PyTorch"
    epilog = "example: iotwin checkfreq crash -o crashed --kills 100 --unsafe overwrite,no-fsync"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory for the jobs' store")
        parser.add_argument("--kills", type=at_least(1), default=1000, metavar="N", help="jobs to kill (default 1000)")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the kills (default 1)")
        parser.add_argument("--unsafe", default="", metavar="WAYS", help="also judge overwrite, no-fsync or both, by commas")

    def run(self, args: Namespace) -> Outcome:
        try:
            from iotwin.workloads.checkfreq.crash import crash
        except ModuleNotFoundError as error:
            raise IotwinError(
                f"the jobs to kill need the Python package {error.name}; install it with: pip install iotwin[torch]"
            ) from None
        found = crash(args.output, args.kills, args.seed, tuple(filter(None, args.unsafe.split(","))))
        return Outcome(found, 1 if found["lost"] else 0)

    def show(self, document: dict[str, Any]) -> None:
        points = ", ".join(f"{name} {count}" for name, count in document["points"].items())
        print(f"{counted(document['kills'], 'kill')} ({points}): {document['lost']} lost a checkpoint")
        print(f"at most {counted(document['most_steps_lost'], 'step')} to do again, of {document['bound_steps']} that may be")
        for name, found in document["unsafe"].items():
            print(f"{name}: nothing loads in {found['unloadable']} of {counted(found['states'], 'state')} that a crash may leave")
