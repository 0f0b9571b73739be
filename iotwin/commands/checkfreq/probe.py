"""``iotwin checkfreq probe``: measure how fast a directory stores checkpoints durably."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class CheckFreqProbeCommand(Command):
    name = "probe"
    help = "measure how fast a directory writes durably (with fsync)"
    epilog = "example: iotwin checkfreq probe out --size 256MiB"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="directory that checkpoints go to")
        parser.add_argument("--size", default="256MiB", metavar="SIZE", help="bytes to write (default 256MiB)")
        parser.add_argument("--fresh", action="store_true", help="ignore the stored result of that device and measure again")

    def run(self, args: Namespace) -> Outcome:
        from dataclasses import asdict

        from iotwin.common.units import parse_size
        from iotwin.workloads.checkfreq.write_probe import probe

        return Outcome(asdict(probe(args.directory, parse_size(args.size), args.fresh)))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_duration, format_size

        when = "measured before" if document["cached"] else "now"
        print(
            f"{document['directory']} ({document['file_system']}, device {document['device']}): "
            f"{format_size(document['write_bytes_per_s'])}/s written and synced, a sync takes "
            f"{format_duration(document['fsync_s'] * 1e9)} ({when})"
        )
