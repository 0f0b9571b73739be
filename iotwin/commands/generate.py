"""``iotwin generate``: write a synthetic data set that a real workload reads."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from tracing_tools.trace.errors import UsageError, nearest

_WORKLOADS = ["unet3d"]


class Generate(Command):
    """Write a synthetic data set."""

    name = "generate"
    help = "write a synthetic data set that a real workload reads"
    epilog = """examples:
  iotwin generate unet3d -o data/kits --size 2GiB
  iotwin generate unet3d -o data/small --samples 24 --scale 0.3"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the request and how to carry it out."""
        parser.add_argument("workload", metavar="WORKLOAD", help="whose data set: " + ", ".join(_WORKLOADS))
        parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="directory to write; made if missing")
        amount = parser.add_mutually_exclusive_group(required=True)
        amount.add_argument("--size", metavar="SIZE", help="as many whole samples as fit, for example 512MiB")
        amount.add_argument("--samples", metavar="N", type=int, help="exactly N samples")
        parser.add_argument("--seed", metavar="N", type=int, default=0, help="same seed, same bytes (default 0)")
        parser.add_argument("--workers", metavar="N", type=int, help="processes (default: one per CPU); changes no byte")
        parser.add_argument(
            "--scale", metavar="F", type=float, default=1.0, help="unet3d: multiply every volume extent (default 1)"
        )
        parser.add_argument("--force", action="store_true", help="replace another data set, or write beside foreign files")

    def run(self, args: Namespace) -> Outcome:
        """Generate the data set; the document is the request and what it came to."""
        from datagen.generate import generate
        from datagen.layouts import Unet3dLayout
        from tracing_tools.trace.units import parse_size

        if args.workload not in _WORKLOADS:
            raise UsageError(
                f"unknown workload '{args.workload}'{nearest(args.workload, _WORKLOADS)}; known: {', '.join(_WORKLOADS)}"
            )
        if args.workers is not None and args.workers < 1:
            raise UsageError(f"--workers {args.workers} can write nothing; give at least 1")
        manifest = generate(
            Unet3dLayout(scale=args.scale), args.output, samples=args.samples,
            size_bytes=parse_size(args.size) if args.size else None, seed=args.seed, workers=args.workers, force=args.force,
        )  # fmt: skip
        request = manifest.request
        return Outcome({
            "workload": request.workload, "directory": str(args.output), "samples": request.samples, "seed": request.seed,
            "files": len({piece.name for piece in manifest.pieces}), "size_bytes": manifest.size_bytes, "layout": request.layout,
        })  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        """Print one line on what the directory now holds."""
        from tracing_tools.trace.units import format_size

        print(
            f"{document['directory']}: {document['samples']} {document['workload']} samples in {document['files']} files, "
            f"{format_size(document['size_bytes'])}"
        )
