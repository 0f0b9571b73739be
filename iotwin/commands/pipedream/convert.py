"""``iotwin pipedream convert``: write the stages, configuration files and plan of a graph that has been partitioned."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.errors import UsageError


class PipeDreamConvertCommand(Command):
    name = "convert"
    help = "write the stages, confs and plan of an optimised graph, and the weights of its model"
    epilog = """examples:
  iotwin pipedream convert plan/gpus=4.txt -n VGG16 -a vgg16 -o model --stage-to-num-ranks 0:3,1:1
  iotwin pipedream convert plan/gpus=2.txt -n ResNet -a resnet18 -o model --preset tiny --export-code"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", type=Path, metavar="GPUS.txt", help="an optimised graph: its nodes have stage_ids")
        parser.add_argument("-n", "--model-name", required=True, metavar="NAME", help="name of the model's class")
        parser.add_argument("-a", "--arch", required=True, metavar="ARCH", help="name of the architecture, as in vgg16")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory to write")
        parser.add_argument(
            "--stage-to-num-ranks", dest="ranks", metavar="MAP", help="ranks of each stage, as in 0:3,1:1; gives hybrid_conf.json"
        )
        parser.add_argument(
            "--preset",
            choices=["paper", "tiny"],
            help="also write the stages' weights, of iotwin's ARCH of this size",
        )
        parser.add_argument("--classes", type=at_least(1), metavar="N", help="classes of ARCH (default: the preset's)")
        parser.add_argument("--seed", type=at_least(0), default=1, metavar="N", help="seed of new weights (default: 1)")
        parser.add_argument(
            "--weights", type=Path, metavar="FULL.pt", help="weights to divide, as merge writes them (default: new ones)"
        )
        parser.add_argument("--export-code", action="store_true", help="also write each stage as a Python class")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import make_folder, write_json
        from iotwin.workloads.pipedream.plan.convert import convert
        from iotwin.workloads.pipedream.plan.graph_file import read_graph, write_graph
        from iotwin.workloads.pipedream.plan.plan_file import plan_document

        for option, value in (("--classes", args.classes), ("--weights", args.weights), ("--export-code", args.export_code)):
            if value and not args.preset:
                raise UsageError(f"{option} requires --preset, the size of the model")
        found = convert(read_graph(args.graph), args.ranks)
        files = []
        make_folder(args.output)
        if args.preset:
            from iotwin.workloads.pipedream.converter.model_folder import ModelFolder

            model = ModelFolder(found.plan, args.arch, args.preset, args.classes, args.seed, args.weights)
            files = model.write(args.output, args.model_name if args.export_code else None)
        for index, stage in enumerate(found.stages):
            write_graph(stage, args.output / f"stage{index}.graph.txt")
        for kind, conf in found.confs.items():
            write_json(args.output / f"{kind}_conf.json", conf)
        names = {"model": args.model_name, "arch": args.arch, "preset": args.preset, "classes": args.classes}
        write_json(args.output / "modules.json", {**names, "modules": found.modules})
        write_json(args.output / "plan.json", plan_document(found.plan))
        return Outcome(
            {
                **names,
                "stages": len(found.stages),
                "modules": found.modules,
                "confs": found.confs,
                "plan": str(args.output / "plan.json"),
                "files": files,
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        for module in document["modules"]:
            print(f"{module['name']}: {', '.join(module['inputs'])} -> {', '.join(module['outputs'])}")
        print(f"confs: {', '.join(document['confs'])}; plan: {document['plan']}")
        if document["files"]:
            print(f"weights and code: {', '.join(document['files'])}")
