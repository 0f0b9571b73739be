"""``iotwin pipedream speedups``: write the speed-up by number of workers, with a curve for each bandwidth."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.commands.pipedream.options import add_machine_options, options_of
from iotwin.common.errors import UsageError
from iotwin.common.units import counted


class PipeDreamSpeedUpsCommand(Command):
    name = "speedups"
    help = "write the speed-ups over workers and bandwidths as curves to plot"
    epilog = (
        "example: iotwin pipedream speedups vgg16.graph.txt -n 16 -b 1e8 1e9 1e10 --activation-compression-ratio 1 -o curves.json"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", type=Path, metavar="GRAPH.txt", help="a profile's graph.txt")
        add_machine_options(parser)
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="document of curves to write")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import write_json
        from iotwin.workloads.pipedream.plan.graph_file import read_graph
        from iotwin.workloads.pipedream.plan.speedups import speedups

        if args.machines and len(args.machines) != 1:
            raise UsageError("speedups takes one number of workers (-n), and as many bandwidths (-b) as there shall be curves")
        bandwidths, args.bandwidths = args.bandwidths, args.bandwidths[:1]
        options = options_of(args)
        for bandwidth in bandwidths:
            args.bandwidths = [bandwidth]
            options_of(args)
        document = speedups(read_graph(args.graph), options, bandwidths, args.fold is not False)
        write_json(args.output, document)
        return Outcome({"output": str(args.output), **document})

    def show(self, document: dict[str, Any]) -> None:
        print(f"{document['output']}: {counted(len(document['series']), 'curve')}; iotwin plot curves draws them")
        for series in document["series"]:
            if series["y"][-1] is not None:
                print(f"{series['name']}: {series['y'][-1]:.4g} times one worker on {series['x'][-1]:g}")
