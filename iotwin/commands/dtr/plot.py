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
  iotwin dtr plot config.json data.json -o measured.png
  iotwin dtr plot config.json data.json -o pictures"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "sources",
            nargs="+",
            type=Path,
            metavar="SOURCE",
            help="directory of a sweep; or CONFIG.json DATA.json of the original",
        )
        parser.add_argument(
            "-o", "--output", type=Path, required=True, metavar="FILE",
            help="picture: .png, .svg or .pdf; of measured data also a directory, for all of the original's pictures",
        )  # fmt: skip

    def run(self, args: Namespace) -> Outcome:
        from iotwin.trace_visuals.style import PICTURE_TYPES

        if len(args.sources) == 2 and args.output.suffix.lower() not in PICTURE_TYPES:
            return Outcome(_draw_directory(args.sources[0], args.sources[1], args.output))
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
        if "panels" in document:
            print(f"{document['pictures'][0]}: {len(document['panels'])} panels")
            return
        for picture in document["pictures"]:
            print(picture)


def _draw_directory(config: Path, data: Path, directory: Path) -> dict[str, Any]:
    """Draw the data that DTR's authors measured, as their program does, into `directory`. Return the JSON document."""
    from iotwin.commands.dtr.pictures import draw
    from iotwin.common.errors import UsageError
    from iotwin.common.files import make_folder
    from iotwin.workloads.dtr.experiments.config import read_experiment
    from iotwin.workloads.dtr.experiments.pictures import documents_of, read_data
    from iotwin.workloads.dtr.experiments.stages import draw_all

    models, measured = read_experiment(config).models, read_data(data)
    if not documents_of(models, measured):
        raise UsageError(f"{data} has no measured run of the models in the configuration")
    make_folder(directory)
    return {"pictures": [str(path) for path in draw_all(models, measured, directory, draw)]}
