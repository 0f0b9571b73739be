"""``iotwin dtr plot``: draw the results of ``iotwin dtr sweep``, or the data that DTR's authors measured."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class DtrPlotCommand(Command):
    name = "plot"
    help = "draw the curves of a sweep, or of the original's measured data"
    epilog = """examples:
  iotwin dtr plot sweep -o pareto.svg
  iotwin dtr plot config.json data.json -o measured.png"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "sources",
            nargs="+",
            type=Path,
            metavar="SOURCE",
            help="directory of a sweep; or CONFIG.json DATA.json of the original",
        )
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="picture: .png, .svg or .pdf")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import scratch_folder, write_json
        from iotwin.trace_visuals.curves import plot_curves
        from iotwin.workloads.dtr.simulator.measured import panels_of

        with scratch_folder() as scratch:
            paths = []
            for number, panel in enumerate(panels_of(args.sources)):
                paths.append(scratch / f"{number:03}.json")
                write_json(paths[-1], panel)
            drawn = plot_curves(paths, args.output)
        return Outcome({"pictures": [str(args.output)], "panels": drawn["panels"]})

    def show(self, document: dict[str, Any]) -> None:
        print(f"{document['pictures'][0]}: {len(document['panels'])} panels")
