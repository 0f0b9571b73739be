"""``iotwin checkpoints verify``: read every byte of a store and hold it against its checksums."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.commands.checkpoints.store import add_directory, outcome, show


class CheckpointsVerifyCommand(Command):
    """Hold every file against its checksum."""

    name = "verify"
    help = "read every file of a store and compare it with its checksum"
    epilog = "example: iotwin checkpoints verify out/checkpoints"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the store."""
        add_directory(parser)

    def run(self, args: Namespace) -> Outcome:
        """Verify each checkpoint."""
        from iotwin.common.checkpoints import verify

        return outcome(args.directory, verify)

    def show(self, document: dict[str, Any]) -> None:
        """Print the table."""
        show(document)
