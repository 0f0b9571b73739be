"""The ``iotwin`` command line: parse, run one command, turn errors into one line and an exit status."""

import argparse
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from iotwin import __version__
from iotwin.command import Command, Group, Outcome, load
from iotwin.common.errors import IotwinError, nearest, reason_of
from iotwin.common.processes.memory_limit import limit_memory
from iotwin.common.progress import set_quiet
from iotwin.common.ranks import await_turn_to_report, launched_by_mpi, run_as_one
from iotwin.common.signals import interrupted_status
from iotwin.common.terminal import cleaned_streams

# The commands, in the order in which a newcomer needs them.
_COMMANDS = (
    "doctor", "demo", "generate", "trace", "info", "advise", "stats", "overhead", "import", "recover", "set", "merge",
    "fit", "emulate", "compare", "twin", "size", "checkpoints", "checkfreq", "detrain", "dtr", "plot", "report", "view",
    "scale", "run", "export", "attach-profile", "pipedream", "completion",
)  # fmt: skip
# What the bare `iotwin` lists: commands by what they are for. A command in no group is listed last.
_GROUPS = {
    "measure a job": (
        "doctor", "trace", "info", "stats", "overhead", "recover", "set", "merge", "import", "attach-profile", "export",
    ),
    "answer questions": ("advise", "size", "compare", "plot", "report", "view"),
    "build and run its twin": ("demo", "fit", "emulate", "twin", "generate", "scale", "run"),
    "training systems": ("checkpoints", "checkfreq", "detrain", "dtr", "pipedream"),
}  # fmt: skip
_MODULES = {"import": "import_trace", "attach-profile": "attach_profile"}  # names of modules that differ from the command's name

_ITEMS_AT_ONCE = 1 << 12  # of a sequence whose JSON is printed

_Parsers = dict[str, argparse.ArgumentParser]  # parsers by the words that call their command: "info", "twin pack"


class _Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one line, which names --help, instead of printing the whole usage."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of the choices of `action`, and suggest the nearest one."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += nearest(str(value), [str(choice) for choice in action.choices or ()])
            raise

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"{self.prog}: {message}; see: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def load_commands(called: str = "") -> list[Command | Group]:
    """Return only the command `called`, since importing one is six times as fast as all; or all commands if it is unknown."""
    chosen = [called] if called in _COMMANDS else _COMMANDS
    return [load(f"iotwin.commands.{_MODULES.get(name, name)}") for name in chosen]


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


def build_parser(commands: Sequence[Command | Group]) -> tuple[argparse.ArgumentParser, _Parsers]:
    """Return the parser of the whole command line, and the parsers of the commands by the words that call them."""
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


def _grouped(commands: Sequence[Command | Group]) -> str:
    """Return a list of the commands, grouped by what they are for, with one line each."""
    helps = {command.name: command.help for command in commands}
    grouped = {title: [name for name in names if name in helps] for title, names in _GROUPS.items()}
    grouped["more"] = [name for name in helps if not any(name in names for names in _GROUPS.values())]
    lines = ["Trace a training job's I/O, build its twin, run the twin, prove how alike they are.", ""]
    for title, names in grouped.items():
        lines += [f"{title}:", *(f"  {name:<15} {helps[name]}" for name in names), ""] if names else []
    return "\n".join([*lines, "start with: iotwin demo -o demo; options of a command: iotwin COMMAND --help"])


def _leaf_first(arguments: list[str], group: Group, parsers: _Parsers) -> list[str]:
    """Return a group's arguments with the leaf (a command of the group) first: ``-o OUT pack DIR`` becomes ``pack -o OUT DIR``.

    The leaf is the first word that is neither an option nor an option's value. If that word names no leaf, the name of the
    default leaf is added.
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
    """Report that `parser` has no argument `unknown`, and suggest the nearest one. Return the exit status."""
    what, guess = "unexpected argument", ""
    if unknown.startswith("-"):
        options = [option for action in parser._actions for option in action.option_strings]
        what, guess = "unknown option", nearest(unknown.partition("=")[0], options)
    print(f"{parser.prog}: {what} '{unknown}'{guess}; see: {parser.prog} --help", file=sys.stderr)
    return 2


def _known(word: str, names: list[str], prog: str, what: str) -> str:
    """Return `word`. If it is not in `names`, exit with a message that suggests the nearest name."""
    if word not in names:
        print(f"{prog}: unknown {what} '{word}'{nearest(word, names)}; see: {prog} --help", file=sys.stderr)
        raise SystemExit(2)
    return word


def _called(arguments: list[str], commands: dict[str, Command | Group], parsers: _Parsers) -> tuple[list[str], Command | None]:
    """Return the arguments, reordered by `_leaf_first`, and the command that they call; None if they call none."""
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
    """Run the command line `argv` (default: that of this process) and return the exit status."""
    if argv is None and sys.getfilesystemencoding() != "utf-8":
        # File names are UTF-8 in every locale. Unlike PYTHONUTF8, this option is not inherited by a traced job.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - this same program
    with cleaned_streams():
        return run_as_one(partial(_main, argv))


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    commands = {command.name: command for command in load_commands(*words[:1])}
    parser, parsers = build_parser(list(commands.values()))
    arguments, command = _called(words, commands, parsers)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        return _refuse(parsers[args.called] if command else parser, unknown[0])
    if not words:
        print(_grouped(list(commands.values())))
        return 2
    if command is None:
        parsers.get(arguments[0] if arguments else "", parser).print_help()
        return 2
    # SIGTERM and SIGHUP are handled like Ctrl-C, so that no half-written file and no attached probe remains.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    set_quiet(args.quiet or args.json)
    return _run(command, args)


def _json_pieces(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line with the JSON of `document`, its sequences in pieces: a table may have a million rows."""
    for index, (key, value) in enumerate(document.items()):
        yield f"{', ' if index else '{'}{json.dumps(key)}: "
        if not isinstance(value, Sequence) or isinstance(value, str):
            yield json.dumps(value)
            continue
        for at in range(0, len(value), _ITEMS_AT_ONCE):
            yield (", " if at else "[") + json.dumps(list(value[at : at + _ITEMS_AT_ONCE]))[1:-1]
        yield "]" if len(value) else "[]"
    yield "}\n" if document else "{}\n"


def _show(command: Command, args: argparse.Namespace, outcome: Outcome) -> None:
    try:
        if args.json:
            sys.stdout.writelines(_json_pieces(outcome.document))
        elif not args.quiet:
            command.show(outcome.document)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # The program that reads the output, such as a pager or head, has ended; rich then raises SystemExit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        limit_memory(getattr(args, "memory_limit", None))
        outcome = command.run(args)
        _show(command, args, outcome)
        return outcome.exit_status
    except KeyboardInterrupt:
        if launched_by_mpi().size == 1:  # mpirun interrupts all ranks, and reports why
            print(f"iotwin {args.called}: interrupted", file=sys.stderr)
        return interrupted_status()
    except (IotwinError, MemoryError, OSError) as error:
        if args.debug:
            raise
        who = await_turn_to_report()
        with contextlib.suppress(OSError):  # stderr is closed; the exit status still counts
            print(f"iotwin {args.called}: {who}{_one_line(error)}", file=sys.stderr)
        return error.exit_status if isinstance(error, IotwinError) else 1


def _one_line(error: IotwinError | MemoryError | OSError) -> str:
    match error:
        case IotwinError():
            return str(error)
        case MemoryError():
            return "the machine refused memory; free some, or raise the limit (ulimit -v)"
    where = f"{error.filename}: " if error.filename and error.errno != errno.EMFILE else ""
    return f"{where}{reason_of(error)}"


if __name__ == "__main__":
    sys.exit(main())
