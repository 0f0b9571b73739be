"""``iotwin checkpoints prune``: remove all checkpoints of a folder but the newest and those of every Mth step."""

from argparse import ArgumentParser, Namespace

from iotwin.command import Outcome, at_least
from iotwin.commands.checkpoints.store import StoreCommand, outcome


class CheckpointsPruneCommand(StoreCommand):
    name = "prune"
    help = "remove the older checkpoints of a store, and leftovers of killed jobs"
    epilog = "example: iotwin checkpoints prune out/checkpoints --keep 2 --every 1000"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        super().prepare_parser(parser)
        parser.add_argument("--keep", type=at_least(1), required=True, metavar="N", help="keep the N newest checkpoints")
        parser.add_argument(
            "--every", type=at_least(0), default=0, metavar="M", help="also keep the checkpoints of every Mth step"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.checkpoints import checkpoints, verify, verify_once
        from iotwin.common.commit import Store, leftovers
        from iotwin.common.retention import Retention

        if not checkpoints(args.directory):  # pruning must not turn a directory without checkpoints into a store
            return outcome(args.directory, verify)
        with Store(args.directory, Retention(args.keep, args.every)) as store:
            removed = store.prune()
        return outcome(args.directory, verify_once, removed, leftovers(args.directory))
