"""``iotwin twin pack``: write a twin as one file to send, without data and, by default, without names."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class TwinPackCommand(Command):
    name = "pack"
    help = "write a twin as one file to send, without data and names"
    epilog = "example: iotwin twin pack twin -o unet3d.twin"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="the directory that iotwin twin wrote")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="ARCHIVE", help="file to write")
        parser.add_argument("--keep-names", action="store_true", help="keep file, host and model names")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.twin_archive import pack

        return Outcome({"action": "pack", **pack(args.directory, args.output, args.keep_names)})

    def show(self, document: dict[str, Any]) -> None:
        names = "with names" if document["names_kept"] else "without names"
        print(f"{document['archive']}: the twin of {counted(document['files'], 'file')}, {names}")
