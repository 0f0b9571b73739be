"""``iotwin checkpoints list``: what a store holds, by manifests and sizes."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.commands.checkpoints.store import add_directory, outcome, show


class CheckpointsListCommand(Command):
    """List the checkpoints without reading their tensors."""

    name = "list"
    help = "list the checkpoints of a store, by manifests and file sizes"
    epilog = "example: iotwin checkpoints list out/checkpoints"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the store."""
        add_directory(parser)

    def run(self, args: Namespace) -> Outcome:
        """List each checkpoint."""
        return outcome(args.directory, lambda found: found)

    def show(self, document: dict[str, Any]) -> None:
        """Print the table."""
        show(document)
