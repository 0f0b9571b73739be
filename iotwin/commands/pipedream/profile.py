"""``iotwin pipedream profile``: measure the layers of a model, and write them as a graph.txt that ``optimize`` reads."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.units import counted


class PipeDreamProfileCommand(Command):
    name = "profile"
    help = "measure the times and sizes of a model's layers"
    epilog = "example: iotwin pipedream profile resnet50 --preset tiny -b 8 -o profile"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="model to profile, of iotwin's models")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory to write")
        parser.add_argument(
            "-b", "--batch-size", type=at_least(1), metavar="N", help="samples per minibatch (default: the model's)"
        )
        parser.add_argument(
            "--preset", choices=["paper", "tiny"], default="tiny", help="paper: as published; tiny: for a CPU (default: tiny)"
        )
        parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the layers compute (default: cpu)")
        parser.add_argument(
            "--minibatches", type=at_least(1), default=100, metavar="N", help="minibatches to measure (default: 100)"
        )
        parser.add_argument(
            "--warm-up",
            type=at_least(0),
            default=10,
            metavar="N",
            help="minibatches before them, which are not measured (default: 10)",
        )
        parser.add_argument("--threads", type=at_least(1), metavar="N", help="CPU threads of a layer (default: all CPUs)")
        parser.add_argument(
            "--data-dir", type=Path, metavar="DIR", help="images to load, as generate checkfreq makes them (default: random data)"
        )
        parser.add_argument(
            "--activations",
            type=Path,
            metavar="DIR",
            help="write the outputs of the last minibatch's layers, and their gradients",
        )
        parser.add_argument(
            "--ranks",
            type=at_least(2),
            metavar="N",
            help="measure on N ranks of this machine that compute at once, and how fast they exchange tensors",
        )
        parser.add_argument(
            "--forward-only", "--forward_only", action="store_true", help="measure no backward passes and updates, for inference"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import make_folder, write_json
        from iotwin.workloads.pipedream.plan.draw import draw
        from iotwin.workloads.pipedream.plan.graph_file import write_graph
        from iotwin.workloads.pipedream.profile.model_profile import ProfileOptions, profile
        from iotwin.workloads.pipedream.profile.on_ranks import profile_on_ranks
        from iotwin.workloads.pipedream.profile.pictures import draw_layers

        options = ProfileOptions(
            args.model,
            args.preset,
            args.batch_size,
            args.device,
            args.minibatches,
            args.warm_up,
            args.data_dir,
            args.threads,
            activations=args.activations,
            forward_only=args.forward_only,
        )
        found = profile(options) if args.ranks is None else profile_on_ranks(options, args.ranks)
        make_folder(args.output)
        write_graph(found.graph, args.output / "graph.txt")
        pictures = {"graph.svg": draw, "layers.svg": draw_layers}
        for name, picture in pictures.items():
            picture(found.graph, args.output / name)
        write_json(args.output / "profile.json", found.document)
        document = {name: value for name, value in found.document.items() if name != "quartiles"}
        document |= {"graph": str(args.output / "graph.txt"), "pictures": [str(args.output / name) for name in pictures]}
        return Outcome(document)

    def show(self, document: dict[str, Any]) -> None:
        print(
            f"{document['graph']}: {counted(document['layers'], 'layer')}, forward {document['forward_s']:.4g} s, backward "
            f"{document['backward_s']:.4g} s per minibatch of {document['batch_size']}; loading {document['load_s']:.4g} s"
        )
        if found := document["activations"]:
            print(
                f"{found['directory']}: outputs are {found['output_sparsity']:.1%} zeros and compress "
                f"{found['output_compression_ratio']:.2f} times"
            )
