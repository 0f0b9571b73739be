"""Base classes of commands: a parser, `run` that returns a document, and `show` that prints the document for a person."""

import importlib
from abc import ABC, abstractmethod
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Outcome:
    """The result of a command: the document that --json prints, and the exit status."""

    document: dict[str, Any]
    exit_status: int = 0


def add_dask_option(parser: ArgumentParser) -> None:
    """Add the option --dask. Its value is the address of a scheduler, `local` if no address is given, None without the option."""
    parser.add_argument(
        "--dask",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="work on the Dask cluster with this scheduler (HOST:PORT); without ADDRESS, on this machine's processors",
    )


def add_memory_option(parser: ArgumentParser) -> None:
    """Add the option --memory, which applies to all that the command reads through `fold`."""
    parser.add_argument(
        "--memory",
        dest="memory_limit",
        metavar="SIZE",
        help="limit of memory, such as 1GiB; the interpreter may take 200 MiB more (default: half of the free memory)",
    )


def at_least(least: int, number: type[int] | type[float] = int) -> Callable[[str], float]:
    """Return a function for argparse's `type=`: it converts text to `number` and rejects values below `least`."""

    def convert(text: str) -> float:
        value = number(text)
        if not value >= least:
            raise ArgumentTypeError(f"must be at least {least} (got {text})")
        return value

    convert.__name__ = number.__name__  # argparse shows this name if the text is not a number
    return convert


class _Dropped(Action):
    """An option of earlier versions: its value is ignored, with a note."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        from iotwin.common.progress import note

        note(f"{option_string} has no effect any more: there is one kind of twin, a recording, which runs once")


def accept_dropped_options(parser: ArgumentParser, *names: str) -> None:
    """Accept options of earlier versions that have one value each, so that old scripts still run. They have no effect."""
    for name in names:
        parser.add_argument(name, action=_Dropped, default=SUPPRESS, help=SUPPRESS)


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
        """Do the command's work. Raises IotwinError for a failure that the user can fix."""

    @abstractmethod
    def show(self, document: dict[str, Any]) -> None:
        """Print the document to stdout for a person. Not called under --json or --quiet."""


class Group:
    """A group of commands under one name, such as ``iotwin twin``. Its commands, such as ``pack``, are called leaves."""

    name: str
    help: str
    epilog: str = ""
    modules: tuple[str, ...]  # names of the modules of the leaves, in the order of the help
    default: str | None = None  # the leaf to run if the user names none; without a default, the help is shown

    def leaves(self) -> dict[str, Command]:
        """Return the commands of the group by name."""
        folder = type(self).__module__
        loaded: list[Any] = [load(f"{folder}.{module}") for module in self.modules]
        return {leaf.name: leaf for leaf in loaded}


def load(module: str) -> Command | Group:
    """Return an instance of the only command or group that the module with this full name defines."""
    names = vars(importlib.import_module(module)).values()
    (found,) = (
        each for each in names if isinstance(each, type) and each.__module__ == module and issubclass(each, (Command, Group))
    )
    return found()
