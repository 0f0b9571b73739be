"""Base classes of commands: a parser, `run` that returns a document, and `show` that prints the document for a person."""

import importlib
from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Any


@dataclass
class Outcome:
    """Result of a command: the document that --json prints, and the exit status of the process."""

    document: dict[str, Any]
    exit_status: int = 0


def add_dask_option(parser: ArgumentParser) -> None:
    """Add --dask, whose value is an address for `iotwin.trace_store.workers.workers`."""
    parser.add_argument(
        "--dask",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="work on the Dask cluster with this scheduler (HOST:PORT); without ADDRESS, on this machine's processors",
    )


class Command(ABC):
    """One command of the ``iotwin`` command line."""

    name: str
    help: str
    epilog: str = ""  # an example or two, shown under the options

    @abstractmethod
    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the command's own arguments; --json, --quiet and --debug are added for every command."""

    @abstractmethod
    def run(self, args: Namespace) -> Outcome:
        """Do the work. Raises IotwinError for a failure that the user can fix."""

    @abstractmethod
    def show(self, document: dict[str, Any]) -> None:
        """Print the document to stdout for a person; not called under --json or --quiet."""


class Group:
    """Commands under one name, as ``iotwin twin pack``: a folder of ``iotwin/commands``, with a file for each leaf."""

    name: str
    help: str
    epilog: str = ""
    leaf_classes: tuple[tuple[str, str], ...]  # module in the group's folder and class, in the order of the help
    default: str | None = None  # the leaf to run if the user names none; without a default, the help is shown

    def leaves(self) -> dict[str, Command]:
        """Return the leaves by name."""
        folder = type(self).__module__
        loaded = [getattr(importlib.import_module(f"{folder}.{module}"), leaf)() for module, leaf in self.leaf_classes]
        return {leaf.name: leaf for leaf in loaded}
