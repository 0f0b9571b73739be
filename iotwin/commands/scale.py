"""``iotwin scale``: grow a real data set to a given size by copying its samples."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.errors import UsageError
from iotwin.common.units import counted
from iotwin.common.workloads import WORKLOADS, workload_named


class ScaleCommand(Command):
    name = "scale"
    help = "grow a real data set to a given size by copying its samples"
    epilog = """examples:
  iotwin scale unet3d data/kits -o data/kits-500g --size 500GB
  iotwin scale dlrm data/criteo -o data/criteo-big --size 2TB --augment --workers 8"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("workload", metavar="WORKLOAD", help="whose data set: " + ", ".join(WORKLOADS))
        parser.add_argument("source", metavar="SOURCE", type=Path, help="directory of the data set to grow; only read")
        parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="directory to write; made if missing")
        parser.add_argument("--size", metavar="SIZE", required=True, help="largest size of the result, for example 500GB")
        parser.add_argument("--augment", action="store_true", help="change the copies, so that no two are equal")
        parser.add_argument(
            "--seed", metavar="N", type=int, default=0, help="seed of --augment: the same seed gives the same bytes (default 0)"
        )
        parser.add_argument("--workers", metavar="N", type=at_least(1), help="processes (default: one per CPU); changes no byte")
        parser.add_argument(
            "--force", action="store_true", help="replace another data set, or write into a directory with other files"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.units import parse_size
        from iotwin.datagen.generate import Existing, generate
        from iotwin.datagen.scale import scaled_layout

        workload_named(args.workload)
        size_bytes = parse_size(args.size)
        if args.output.resolve() == args.source.resolve():
            raise UsageError(f"{args.output} is the data set to grow; choose another directory for the grown one")
        layout = scaled_layout(args.workload, args.source, args.augment)
        existing: Existing = "replace" if args.force else "refuse"
        manifest = generate(layout, args.output, size_bytes=size_bytes, seed=args.seed, workers=args.workers, existing=existing)
        return Outcome({
            "directory": str(args.output), "source": str(args.source), "workload": args.workload, "augment": args.augment,
            "samples": manifest.request.samples, "seed": args.seed, "size_bytes": manifest.size_bytes,
            "files": len({piece.name for piece in manifest.pieces}),
        })  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        print(
            f"{document['directory']}: {counted(document['files'], 'file')}, {format_size(document['size_bytes'])}, "
            f"grown from {document['source']}"
        )
