"""``iotwin pipedream convert``: write the stages, configuration files and plan of a graph that has been partitioned."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class PipeDreamConvertCommand(Command):
    name = "convert"
    help = "write the stages, confs and plan of an optimised graph"
    epilog = "example: iotwin pipedream convert plan/gpus=4.txt -n VGG16 -a vgg16 -o model --stage-to-num-ranks 0:3,1:1"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", type=Path, metavar="GPUS.txt", help="an optimised graph: its nodes have stage_ids")
        parser.add_argument("-n", "--model-name", required=True, metavar="NAME", help="name of the model's class")
        parser.add_argument("-a", "--arch", required=True, metavar="ARCH", help="name of the architecture, as in vgg16")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory to write")
        parser.add_argument(
            "--stage-to-num-ranks", dest="ranks", metavar="MAP", help="ranks of each stage, as in 0:3,1:1; gives hybrid_conf.json"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import make_folder, write_json
        from iotwin.workloads.pipedream.plan.convert import convert
        from iotwin.workloads.pipedream.plan.graph_file import read_graph, write_graph
        from iotwin.workloads.pipedream.plan.plan_file import plan_document

        found = convert(read_graph(args.graph), args.ranks)
        make_folder(args.output)
        for index, stage in enumerate(found.stages):
            write_graph(stage, args.output / f"stage{index}.graph.txt")
        for kind, conf in found.confs.items():
            write_json(args.output / f"{kind}_conf.json", conf)
        names = {"model": args.model_name, "arch": args.arch}
        write_json(args.output / "modules.json", {**names, "modules": found.modules})
        write_json(args.output / "plan.json", plan_document(found.plan))
        return Outcome(
            {
                **names,
                "stages": len(found.stages),
                "modules": found.modules,
                "confs": found.confs,
                "plan": str(args.output / "plan.json"),
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        for module in document["modules"]:
            print(f"{module['name']}: {', '.join(module['inputs'])} -> {', '.join(module['outputs'])}")
        print(f"confs: {', '.join(document['confs'])}; plan: {document['plan']}")
