"""``iotwin checkpoints verify``: compare every file of a folder's checkpoints with its checksum."""

from argparse import Namespace

from iotwin.command import Outcome
from iotwin.commands.checkpoints.store import StoreCommand, outcome


class CheckpointsVerifyCommand(StoreCommand):
    name = "verify"
    help = "read every file of a store and compare it with its checksum"
    epilog = "example: iotwin checkpoints verify out/checkpoints"

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.checkpoints import verify

        return outcome(args.directory, verify)
