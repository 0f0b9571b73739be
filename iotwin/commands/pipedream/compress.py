"""``iotwin pipedream compress``: merge the layers of each branch of a graph, so that the optimizer searches fewer states."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class PipeDreamCompressCommand(Command):
    name = "compress"
    help = "merge each run of layers on a branch into one node, so that a graph with many branches can be searched"
    epilog = "example: iotwin pipedream compress inception_v3.graph.txt -o compressed.graph.txt"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", type=Path, metavar="GRAPH", help="a profile's graph.txt")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="graph to write")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import check_output
        from iotwin.workloads.pipedream.plan.compress import compress
        from iotwin.workloads.pipedream.plan.graph_file import read_graph, write_graph

        graph = read_graph(args.graph)
        check_output(args.output)
        smaller = compress(graph)
        write_graph(smaller, args.output)
        return Outcome({"graph": str(args.output), "nodes": len(graph.nodes), "compressed": len(smaller.nodes)})

    def show(self, document: dict[str, Any]) -> None:
        print(f"{document['graph']}: {counted(document['compressed'], 'node')} instead of {document['nodes']}")
