"""``iotwin detrain import``: convert the file inst.info of the original DETrain."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class DetrainImportCommand(Command):
    name = "import"
    help = "convert inst.info, in which the original DETrain keeps a script's lines, into inst.json"
    epilog = "example: iotwin detrain import inst.info -o inst.json"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "inst_info", type=Path, metavar="INST.INFO", help="file of the original; the scripts must be there too"
        )
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result, as inst.json")

    def run(self, args: Namespace) -> Outcome:
        import msgspec

        from iotwin.workloads.detrain.inst_info import read_inst_info
        from iotwin.workloads.detrain.instrumentation import write_instrumentation

        found = read_inst_info(args.inst_info)
        if args.output is not None:
            write_instrumentation(args.output, found)
        return Outcome(msgspec.to_builtins(found))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.commands.detrain.discover import show_instrumentation

        show_instrumentation(document)
