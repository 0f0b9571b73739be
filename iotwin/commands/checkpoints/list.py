"""``iotwin checkpoints list``: list a folder's checkpoints by their manifests and file sizes, without reading tensors."""

from argparse import Namespace

from iotwin.command import Outcome
from iotwin.commands.checkpoints.store import StoreCommand, outcome


class CheckpointsListCommand(StoreCommand):
    name = "list"
    help = "list the checkpoints of a store, by manifests and file sizes"
    epilog = "example: iotwin checkpoints list out/checkpoints"

    def run(self, args: Namespace) -> Outcome:
        return outcome(args.directory, lambda found: found)
