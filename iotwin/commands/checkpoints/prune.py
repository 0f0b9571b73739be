"""``iotwin checkpoints prune``: remove the older checkpoints of a store."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.commands.checkpoints.store import add_directory, outcome, show
from iotwin.common.errors import UsageError


class CheckpointsPruneCommand(Command):
    """Keep the newest, and each of every so many steps."""

    name = "prune"
    help = "remove the older checkpoints of a store, and leftovers of killed jobs"
    epilog = "example: iotwin checkpoints prune out/checkpoints --keep 2 --every 1000"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the store and what stays."""
        add_directory(parser)
        parser.add_argument("--keep", type=int, required=True, metavar="N", help="keep the N newest checkpoints")
        parser.add_argument("--every", type=int, default=0, metavar="M", help="also keep the checkpoints of every Mth step")

    def run(self, args: Namespace) -> Outcome:
        """Verify, so that none that loads goes for the sake of one that does not, then remove."""
        from iotwin.common.checkpoints import checkpoints, verify, verify_once
        from iotwin.common.commit import Retention, Store, leftovers

        if args.keep < 1 or args.every < 0:
            raise UsageError(f"--keep {args.keep} --every {args.every}: keep at least 1, of every 0 (none) or more steps")
        if not checkpoints(args.directory):  # nor is a directory made a store by pruning it
            return outcome(args.directory, verify)
        with Store(args.directory, Retention(args.keep, args.every)) as store:
            removed = store.prune()
        return outcome(args.directory, verify_once, removed, leftovers(args.directory))

    def show(self, document: dict[str, Any]) -> None:
        """Print the table of the checkpoints that stay, and where others' files are."""
        show(document)
        for name in document["left"]:
            print(f"{name} holds files that are no part of the removed checkpoint; move them elsewhere")
