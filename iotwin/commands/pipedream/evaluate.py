"""``iotwin pipedream evaluate``: predict the time of a given partition by the formulas that the optimizer minimises."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.commands.pipedream.options import add_machine_options, options_of
from iotwin.common.units import counted


class PipeDreamEvaluateCommand(Command):
    name = "evaluate"
    help = "predict the time of any partition by the formulas"
    epilog = "example: iotwin pipedream evaluate vgg16.graph.txt plan/plan.json -n 4 -b 1e9 --activation-compression-ratio 1"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", type=Path, metavar="GRAPH.txt", help="a profile's graph.txt")
        parser.add_argument("partition", type=Path, metavar="PARTITION", help="gpus=N.txt with stage_ids, or plan.json")
        add_machine_options(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.plan.graph_file import read_graph
        from iotwin.workloads.pipedream.plan.plan_file import read_plan
        from iotwin.workloads.pipedream.plan.report import evaluate, with_stages_of

        options, graph = options_of(args), read_graph(args.graph)
        fold = args.fold is not False
        if args.partition.suffix == ".json":
            return _outcome(evaluate(graph, options, read_plan(args.partition), fold))
        return _outcome(evaluate(with_stages_of(graph, read_graph(args.partition)), options, None, fold))

    def show(self, document: dict[str, Any]) -> None:
        if not document["valid"]:
            print(f"no partition: {document['reason']}")
            return
        for stage in document["stages"]:
            layers = counted(len(stage["nodes"]), "layer")
            print(f"stage {stage['stage']}: {layers} on {stage['replicas']}, {stage['compute_s']:.6g} s")
        print(f"Time per stage in pipeline: {document['stage_time_s']:.9g} s, by stage {document['bottleneck_stage']}")


def _outcome(document: dict[str, Any]) -> Outcome:
    return Outcome(document, 0 if document["valid"] else 1)
