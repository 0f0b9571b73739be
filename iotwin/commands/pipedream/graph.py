"""``iotwin pipedream graph``: summarise the layer graph of a profile."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class PipeDreamGraphCommand(Command):
    name = "graph"
    help = "summarise a layer graph: nodes, totals, order, states"
    epilog = "example: iotwin pipedream graph vgg16.graph.txt --antichains"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", type=Path, metavar="GRAPH.txt", help="a profile's graph.txt")
        parser.add_argument("--antichains", action="store_true", help="list the states: the frontiers at which it can be cut")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.plan.describe import describe
        from iotwin.workloads.pipedream.plan.graph_file import read_graph

        return Outcome(describe(read_graph(args.graph), args.antichains))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        totals = document["totals"]
        shape = "series-parallel" if document["series_parallel"] else "not series-parallel"
        count = document["state_count"]
        states = "" if count is None else f", {counted(count, 'state')}"
        print(f"{counted(document['nodes'], 'node')}, {counted(document['edges'], 'edge')}, {shape}{states}")
        print(f"from {', '.join(document['sources'])} to {', '.join(document['sinks'])}")
        print(f"{totals['forward_ms']:.3f} ms forward, {totals['backward_ms']:.3f} ms backward a minibatch")
        print(f"{format_size(totals['parameter_bytes'])} parameters, {format_size(totals['activation_bytes'])} activations")
        for index, state in enumerate(document["states"] or ()):
            print(f"state {index}: {' '.join(state)}")
