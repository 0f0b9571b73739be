"""``iotwin twin run``: unpack a twin, generate its data set and run it."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class TwinRunCommand(Command):
    name = "run"
    help = "unpack a twin, make its data set and run it"
    epilog = "example: iotwin twin run unet3d.twin -o here"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="the file that iotwin twin pack wrote")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="empty directory to unpack into")
        parser.add_argument("--most-data", metavar="SIZE", help="refuse to write more, data set and output (default 100GiB)")
        parser.add_argument("--allow-plugins", action="store_true", help="let the twin import the code that it names")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.errors import IotwinError
        from iotwin.common.units import parse_size
        from iotwin.loops.twin_archive import MOST_DATA_BYTES, run_unpacked, unpack
        from iotwin.loops.twin_from_trace import TWIN

        directory = args.output
        most_bytes = MOST_DATA_BYTES if args.most_data is None else parse_size(args.most_data)
        left_bytes = unpack(args.archive, directory, args.allow_plugins, most_bytes)
        if status := run_unpacked(directory, left_bytes):
            raise IotwinError(f"the twin in {directory} ended with exit status {status}; its message is above")
        output = str(directory / "output")
        return Outcome({"action": "run", "directory": str(directory), "output": output, "twin": str(directory / TWIN)})

    def show(self, document: dict[str, Any]) -> None:
        print(f"{document['directory']}: ran; results in {document['output']}")
