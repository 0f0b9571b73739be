"""The arguments of a script, after ``--``, wherever the options of the command are: ``SCRIPT -o DIR -- --epochs 3``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any


def add_script_arguments(parser: ArgumentParser) -> None:
    """Add the script's own arguments, a list called `arguments`."""
    parser.add_argument("arguments", nargs="*", default=[], metavar="ARG", help="the script's own arguments, after --")
    parse: Any = parser.parse_known_args  # overloaded, which an alias cannot express

    def parse_known_args(words: Sequence[str], namespace: Namespace | None = None) -> tuple[Namespace, list[str]]:
        # argparse of Python 3.11 ends the list of arguments, still empty, before the first option after SCRIPT.
        at = list(words).index("--") if "--" in words else len(words)
        found, unknown = parse(words[:at], namespace)
        found.arguments = [*found.arguments, *words[at + 1 :]]
        return found, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]
