"""The ``iotwin`` command line: parse, run one command, turn errors into one line and an exit status."""

import argparse
import contextlib
import errno
import importlib
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

from common.errors import IotwinError, nearest
from common.progress import set_quiet
from common.signals import interrupted_status
from common.terminal import cleaned_streams
from iotwin import __version__
from iotwin.command import Command, Group, Outcome

# Module and class of each command by its name, in the order a newcomer needs them.
_COMMANDS = {
    "doctor": ("doctor", "Doctor"),
    "demo": ("demo", "Demo"),
    "generate": ("generate", "Generate"),
    "trace": ("trace", "Record"),
    "info": ("info", "Info"),
    "stats": ("stats", "Stats"),
    "import": ("import_trace", "Import"),
    "recover": ("recover", "Recover"),
    "merge": ("merge", "Merge"),
    "fit": ("fit", "Fit"),
    "emulate": ("emulate", "Emulate"),
    "compare": ("compare", "Compare"),
    "twin": ("twin", "Twin"),
    "checkpoints": ("checkpoints", "Checkpoints"),
    "checkfreq": ("checkfreq", "CheckFreq"),
    "dtr": ("dtr", "Dtr"),
    "plot": ("plot", "Plot"),
    "report": ("report", "Report"),
    "view": ("view", "View"),
    "scale": ("scale", "Scale"),
    "run": ("run", "Run"),
    "export": ("export", "Export"),
    "attach-profile": ("attach_profile", "AttachProfile"),
    "pipedream": ("pipedream", "PipeDream"),
}

_UNFINISHED = re.compile(r"\.([^/]+)\.\d+\.partial\b")  # until it is whole; the user knows its final name

_Parsers = dict[str, argparse.ArgumentParser]  # by the words that call their command: "info", "twin pack"


class _Parser(argparse.ArgumentParser):
    """Ends a usage error in one line that says what to do, instead of repeating the whole usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"{self.prog}: {message}; see: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _commands(called: str = "") -> list[Command | Group]:
    """Return the command called so, which is imported alone, as that takes a sixth of the time; all if there is none."""
    chosen = [_COMMANDS[called]] if called in _COMMANDS else _COMMANDS.values()
    return [getattr(importlib.import_module(f"iotwin.commands.{module}"), cls)() for module, cls in chosen]


def _add_parser(sub: Any, command: Command | Group, words: str) -> argparse.ArgumentParser:
    """Add the parser of a command or a group that is called by `words`."""
    parser: argparse.ArgumentParser = sub.add_parser(
        command.name,
        help=command.help,
        description=command.help,
        epilog=command.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if isinstance(command, Command):
        command.prepare_parser(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
        parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        parser.set_defaults(called=words)
    return parser


def _build_parser(commands: Sequence[Command | Group]) -> tuple[argparse.ArgumentParser, _Parsers]:
    """Return the parser of the whole command line, and those of the commands by the words that call them."""
    parser = _Parser(
        prog="iotwin", description="Trace a training job's I/O, build its twin, run the twin, prove how alike they are."
    )
    parser.add_argument("--version", action="version", version=f"iotwin {__version__}")
    sub = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    parsers: _Parsers = {}
    for command in commands:
        parsers[command.name] = _add_parser(sub, command, command.name)
        if isinstance(command, Group):
            leaf_sub = parsers[command.name].add_subparsers(metavar="ACTION", parser_class=_Parser)
            for leaf in command.leaves().values():
                words = f"{command.name} {leaf.name}"
                parsers[words] = _add_parser(leaf_sub, leaf, words)
    return parser, parsers


def _leaf_first(arguments: list[str], group: Group, parsers: _Parsers) -> list[str]:
    """Return a group's arguments with the leaf in front: ``-o OUT pack DIR`` as ``pack -o OUT DIR``.

    Where the first word that is neither an option nor an option's value names no leaf, the default leaf is put in front.
    """
    leaves = list(group.leaves())
    options = {
        option: action
        for leaf in leaves
        for action in parsers[f"{group.name} {leaf}"]._actions
        for option in action.option_strings
    }
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        action = options.get(arguments[position])
        position += 1 if action is None or action.nargs == 0 else 2
    if position < len(arguments) and arguments[position] in leaves:
        return [arguments[position], *arguments[:position], *arguments[position + 1 :]]
    if group.default and arguments and not {"-h", "--help"} & set(arguments):
        return [group.default, *arguments]
    return arguments


def _refuse(parser: argparse.ArgumentParser, unknown: str) -> int:
    """Say that `parser` takes no argument `unknown`, and which one may have been meant; return the exit status."""
    what, guess = "unexpected argument", ""
    if unknown.startswith("-"):
        options = [option for action in parser._actions for option in action.option_strings]
        what, guess = "unknown option", nearest(unknown.partition("=")[0], options)
    print(f"{parser.prog}: {what} '{unknown}'{guess}; see: {parser.prog} --help", file=sys.stderr)
    return 2


def _known(word: str, names: list[str], prog: str, what: str) -> str:
    """Return the word; exit with a guess of what was meant when it is none of the names."""
    if word not in names:
        print(f"{prog}: unknown {what} '{word}'{nearest(word, names)}; see: {prog} --help", file=sys.stderr)
        raise SystemExit(2)
    return word


def _called(arguments: list[str], commands: dict[str, Command | Group], parsers: _Parsers) -> tuple[list[str], Command | None]:
    """Return the arguments, with a group's leaf in its place, and the command that they call, if any."""
    if not arguments or arguments[0].startswith("-"):
        return arguments, None
    command = commands[_known(arguments[0], list(commands), "iotwin", "command")]
    if isinstance(command, Command):
        return arguments, command
    rest = _leaf_first(arguments[1:], command, parsers)
    if not rest or rest[0].startswith("-"):
        return [command.name, *rest], None
    leaves = command.leaves()
    return [command.name, *rest], leaves[_known(rest[0], list(leaves), f"iotwin {command.name}", "action")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit status."""
    if argv is None and sys.getfilesystemencoding() != "utf-8":
        # Names in our files are UTF-8, whatever the locale has. As an option, so that a traced job's environment stays its own.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - ourselves
    with cleaned_streams():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    commands = {command.name: command for command in _commands(*words[:1])}
    parser, parsers = _build_parser(list(commands.values()))
    arguments, command = _called(words, commands, parsers)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        return _refuse(parsers[args.called] if command else parser, unknown[0])
    if command is None:
        parsers.get(arguments[0] if arguments else "", parser).print_help()
        return 2
    # A polite kill and a closed terminal unwind like Ctrl-C does, so that nothing half-written or attached stays behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    set_quiet(args.quiet or args.json)
    return _run(command, args)


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
        with contextlib.suppress(OSError):  # nobody reads it any more; the status still counts
            print(f"iotwin {args.called}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"iotwin {args.called}: interrupted", file=sys.stderr)
        return interrupted_status()
    except MemoryError:
        if args.debug:
            raise
        print(f"iotwin {args.called}: the machine refused memory; free some, or raise the limit (ulimit -v)", file=sys.stderr)
        return 1
    except OSError as error:
        if args.debug:
            raise
        where = _UNFINISHED.sub(r"\1", str(error.filename)) + ": " if error.filename else ""
        remedy = "; raise the limit on file sizes (ulimit -f)" if error.errno == errno.EFBIG else ""
        print(f"iotwin {args.called}: {where}{error.strerror or error}{remedy}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
