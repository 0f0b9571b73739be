"""``iotwin completion``: print a script with which a shell completes commands, options and file names."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class CompletionCommand(Command):
    name = "completion"
    help = "print a script that completes commands, options and file names in bash, zsh or fish"
    epilog = "example: iotwin completion bash\nredirect it to ~/.local/share/bash-completion/completions/iotwin"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell that reads the script")

    def run(self, args: Namespace) -> Outcome:
        import shtab

        from iotwin.main import build_parser, load_commands

        parser, parsers = build_parser(load_commands())
        for action in (action for each in parsers.values() for action in each._actions):
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab reads it there
        return Outcome({"shell": args.shell, "script": shtab.complete(parser, args.shell)})

    def show(self, document: dict[str, Any]) -> None:
        print(document["script"])
