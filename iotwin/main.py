"""The ``iotwin`` command line: parse, run one command, turn errors into one line and an exit status."""

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence

from iotwin import __version__
from iotwin.command import Command, Outcome
from tracing_tools.trace.errors import IotwinError, nearest
from tracing_tools.trace.progress import set_quiet

# Module and class of each command, in the order a newcomer needs them.
_COMMANDS = (
    ("doctor", "Doctor"),
    ("demo", "Demo"),
    ("generate", "Generate"),
    ("trace", "Record"),
    ("info", "Info"),
    ("stats", "Stats"),
    ("import_trace", "Import"),
    ("recover", "Recover"),
    ("merge", "Merge"),
    ("fit", "Fit"),
    ("emulate", "Emulate"),
    ("compare", "Compare"),
    ("twin", "Twin"),
    ("plot", "Plot"),
    ("report", "Report"),
    ("view", "View"),
    ("scale", "Scale"),
    ("run", "Run"),
    ("export", "Export"),
    ("attach_profile", "AttachProfile"),
)


class _Parser(argparse.ArgumentParser):
    """Ends a usage error in one line that says what to do, instead of repeating the whole usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"{self.prog}: {message}; see: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _commands() -> list[Command]:
    return [getattr(importlib.import_module(f"iotwin.commands.{module}"), cls)() for module, cls in _COMMANDS]


def _build_parser(commands: list[Command]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the whole command line, and those of the commands by name."""
    parser = _Parser(
        prog="iotwin", description="Trace a training job's I/O, build its twin, run the twin, prove how alike they are."
    )
    parser.add_argument("--version", action="version", version=f"iotwin {__version__}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for command in commands:
        child = sub.add_parser(
            command.name, help=command.help, description=command.help, epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.prepare_parser(child)
        child.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
        child.add_argument("--quiet", action="store_true", help="print nothing but errors")
        child.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser, dict(sub.choices)


def _refuse(parser: argparse.ArgumentParser, unknown: str) -> int:
    """Say that `parser` takes no argument `unknown`, and which one may have been meant; return the exit status."""
    what, guess = "unexpected argument", ""
    if unknown.startswith("-"):
        options = [option for action in parser._actions for option in action.option_strings]
        what, guess = "unknown option", nearest(unknown.partition("=")[0], options)
    print(f"{parser.prog}: {what} '{unknown}'{guess}; see: {parser.prog} --help", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {command.name: command for command in _commands()}
    parser, parsers = _build_parser(list(commands.values()))
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        print(
            f"iotwin: unknown command '{arguments[0]}'{nearest(arguments[0], list(commands))}; see: iotwin --help",
            file=sys.stderr,
        )
        return 2
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        return _refuse(parsers.get(args.command, parser), unknown[0])
    if args.command is None:
        parser.print_help()
        return 2
    # A polite kill unwinds like Ctrl-C does, so that nothing half-written or attached stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    set_quiet(args.quiet or args.json)
    return _run(commands[args.command], args)


def _show(command: Command, args: argparse.Namespace, outcome: Outcome) -> None:
    try:
        if args.json:
            print(json.dumps(outcome.document))
        elif not args.quiet:
            command.show(outcome.document)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has gone (a pager, head); that is no error of ours. rich makes a SystemExit of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        outcome = command.run(args)
        _show(command, args, outcome)
        return outcome.exit_status
    except IotwinError as error:
        if args.debug:
            raise
        print(f"iotwin {command.name}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"iotwin {command.name}: interrupted", file=sys.stderr)
        return 130
    except MemoryError:
        if args.debug:
            raise
        print(f"iotwin {command.name}: the machine refused memory; free some, or raise the limit (ulimit -v)", file=sys.stderr)
        return 1
    except OSError as error:
        if args.debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"iotwin {command.name}: {where}{error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
