"""``iotwin pipedream validate``: check driver files and configuration files without contacting a machine."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class PipeDreamValidateCommand(Command):
    name = "validate"
    help = "check driver YAMLs and confs without touching a machine"
    epilog = "example: iotwin pipedream validate vgg16_4pipedream.yml"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="driver file (YAML) or conf (.json)")
        parser.add_argument("--models", type=Path, metavar="DIR", help="directory that config_file is relative to")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.plan.driver_file import conf_document, read_driver

        found = [
            conf_document(path) if path.suffix == ".json" else read_driver(path, args.models).document() for path in args.files
        ]
        return Outcome({"files": found}, 0 if all(each["valid"] for each in found) else 1)

    def show(self, document: dict[str, Any]) -> None:
        for each in document["files"]:
            ranks = "" if each["ranks"] is None else f", ranks: {each['ranks']}"
            print(f"{each['file']}: {'valid' if each['valid'] else 'not valid'}{ranks}")
            for problem in each["problems"]:
                print(f"  {problem['key'] + ': ' if problem['key'] else ''}{problem['text']}")
