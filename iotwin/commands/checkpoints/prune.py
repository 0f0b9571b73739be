"""``iotwin checkpoints prune``: remove the older checkpoints of a store."""

from argparse import ArgumentParser, Namespace
from typing import Any

from common.errors import UsageError
from iotwin.command import Command, Outcome
from iotwin.commands.checkpoints.store import add_directory, outcome, show


class Prune(Command):
    """Keep the newest, and each of every so many steps."""

    name = "prune"
    help = "remove the older checkpoints of a store, and what killed jobs have left in it"
    epilog = "example: iotwin checkpoints prune out/checkpoints --keep 2 --every 1000"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the store and what stays."""
        add_directory(parser)
        parser.add_argument("--keep", type=int, required=True, metavar="N", help="newest checkpoints that stay")
        parser.add_argument("--every", type=int, default=0, metavar="M", help="those of every Mth step stay, too")

    def run(self, args: Namespace) -> Outcome:
        """Verify, so that none that loads goes for the sake of one that does not, then remove."""
        from common.checkpoints import checkpoints, verify
        from common.commit import Retention, Store

        if args.keep < 1 or args.every < 0:
            raise UsageError(f"--keep {args.keep} --every {args.every}: keep at least 1, of every 0 (none) or more steps")
        if not checkpoints(args.directory):  # nor is a directory made a store by pruning it
            return outcome(args.directory, verify)
        with Store(args.directory, Retention(args.keep, args.every)) as store:
            removed = store.prune()
        return outcome(args.directory, verify, removed)

    def show(self, document: dict[str, Any]) -> None:
        """Print the table of what is left."""
        show(document)
