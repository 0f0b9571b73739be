"""``iotwin pipedream terminate``: end the processes and containers of a run, which were recorded at their start."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class PipeDreamTerminateCommand(Command):
    name = "terminate"
    help = "end the ranks that drive has started, by their recorded pids and containers"
    epilog = "example: iotwin pipedream terminate output/2026-11-27T09:30:00/machinefile"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("machinefile", type=Path, metavar="MACHINEFILE", help="machinefile in the folder of the run")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.runtime.drive import terminate

        return Outcome(terminate(args.machinefile))

    def show(self, document: dict[str, Any]) -> None:
        for each in document["ended"]:
            print(f"ended process {each['pid']} (rank {each['rank']}, {each['host']})")
        for name in document["containers"]:
            print(f"removed container {name}")
        if not document["ended"] and not document["containers"]:
            print("nothing of this run is running")
