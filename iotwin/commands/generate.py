"""``iotwin generate``: write, plan or verify a synthetic data set that a real workload reads."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.errors import UsageError
from iotwin.common.units import counted
from iotwin.common.workloads import WORKLOADS, workload_named

if TYPE_CHECKING:
    from iotwin.datagen.layouts import Layout
    from iotwin.datagen.manifest import DataSetManifest


class GenerateCommand(Command):
    name = "generate"
    help = "write a synthetic data set that a real workload reads"
    epilog = """examples:
  iotwin generate unet3d -o data/kits --size 2GiB
  iotwin generate unet3d -o data/small --samples 24 --scale 0.3
  iotwin generate bert -o data/wikipedia --size 1TB --dry-run
  iotwin generate --config dlio.yaml -o data/npz --size 10GiB --entropy 0.5
  iotwin generate -o data/kits --verify"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("workload", metavar="WORKLOAD", nargs="?", help="whose data set: " + ", ".join(WORKLOADS))
        parser.add_argument(
            "-o",
            "--output",
            metavar="DIR",
            required=True,
            help="directory to write, made if missing, or a URL such as s3://bucket/prefix",
        )
        parser.add_argument("--size", metavar="SIZE", help="write as many whole samples as fit, for example 512MiB")
        parser.add_argument("--config", metavar="YAML", type=Path, help="a DLIO workload file, in place of WORKLOAD")
        parser.add_argument(
            "--recipe",
            metavar="CSV",
            type=Path,
            help="a list of files (name, size_bytes), as iotwin twin writes it, in place of WORKLOAD",
        )
        parser.add_argument("--samples", metavar="N", type=int, help="exactly N samples for training")
        parser.add_argument("--seed", metavar="N", type=int, default=0, help="the same seed gives the same bytes (default 0)")
        parser.add_argument("--workers", metavar="N", type=at_least(1), help="processes (default: one per CPU); changes no byte")
        parser.add_argument("--nodes", metavar="I/N", help="this is node I (from 0) of N that write DIR; not needed under mpirun")
        parser.add_argument("--scale", metavar="F", type=float, help="unet3d, checkfreq: multiply every side (default 1)")
        parser.add_argument("--classes", metavar="N", type=int, help="checkfreq: classes of images (default 1000)")
        parser.add_argument("--form", metavar="FORM", help="dlrm: binary (default), text or npz")
        parser.add_argument(
            "--entropy", metavar="F", type=float, help="unet3d, --config: share of incompressible content (default 1)"
        )
        parser.add_argument("--dedup", metavar="F", type=float, help="with --config: share of repeated extents (default 0)")
        parser.add_argument("--dry-run", action="store_true", help="list what would be written, and write nothing")
        parser.add_argument(
            "--verify", action="store_true", help="check every byte in DIR against its manifest and write nothing"
        )
        parser.add_argument(
            "--force", action="store_true", help="replace another data set, or write into a directory with other files"
        )

    def run(self, args: Namespace) -> Outcome:
        if args.verify:
            return Outcome(_document("verified", args.output, _verify(args.output, args.workers)))

        from iotwin.common.units import parse_size
        from iotwin.datagen.generate import plan

        layout, samples = _layout(args)
        size_bytes = parse_size(args.size) if args.size is not None else None
        samples = samples if args.samples is None and size_bytes is None else args.samples
        if args.dry_run:
            planned = plan(layout, samples=samples, size_bytes=size_bytes, seed=args.seed)
            first, last = (planned.pieces(unit) for unit in (0, len(planned.unit_bytes) - 1))
            return Outcome({
                "state": "planned", "directory": args.output, "workload": layout.workload,
                "samples": planned.request.samples, "seed": args.seed, "files": planned.files,
                "size_bytes": planned.size_bytes, "exact": layout.exact, "layout": planned.request.layout,
                "first_file": first[0].name, "last_file": last[-1].name,
            })  # fmt: skip
        existing = "replace" if args.force else "refuse"
        request = {"samples": samples, "size_bytes": size_bytes, "seed": args.seed, "workers": args.workers, "existing": existing}
        from iotwin.loops.generation import generate_anywhere

        manifest = generate_anywhere(layout, args.output, args.nodes, request)
        return Outcome(_document("written", args.output, manifest))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        about = "" if document.get("exact", True) else "about "
        names = f", {document['first_file']} to {document['last_file']}" if "first_file" in document else ""
        print(
            f"{document['directory']}: {document['state']} {counted(document['samples'], document['workload'] + ' sample')} "
            f"in {counted(document['files'], 'file')}, {about}{format_size(document['size_bytes'])}{names}"
        )


def _verify(output: str, workers: int | None) -> "DataSetManifest":
    if "://" in output:
        from iotwin.datagen import object_stores

        return object_stores.verify(output, workers)
    from iotwin.datagen.verify import verify

    return verify(Path(output), workers)


def _layout(args: Namespace) -> "tuple[Layout, int | None]":
    """Return the layout that the arguments choose, and the number of samples if a configuration or recipe sets it."""
    if args.recipe is not None:
        return _recorded_layout(args)
    if args.config is not None:
        return _configured_layout(args)
    if args.workload is None:
        raise UsageError(f"name the workload whose data set to write ({', '.join(WORKLOADS)}) or give --config")
    workload_named(args.workload)
    if args.dedup is not None or (args.entropy is not None and args.workload != "unet3d"):
        option = "--dedup goes" if args.dedup is not None else "--entropy goes with unet3d's images and"
        raise UsageError(f"{option} with --config; what {args.workload} reads decides its content")
    from iotwin.datagen.layouts import BertLayout, DlrmDaysLayout, DlrmLayout, ImagenetLayout, Unet3dLayout

    if args.classes is not None and args.workload != "checkfreq":
        raise UsageError(f"--classes are checkfreq's; {args.workload} has none to choose, so leave it out")
    if args.scale is not None and args.workload in ("bert", "dlrm"):
        raise UsageError(f"--scale shrinks unet3d's volumes; {args.workload} has none, so leave it out")
    if args.form is not None and args.workload != "dlrm":
        raise UsageError(f"--form chooses among dlrm's files; {args.workload} has one form, so leave it out")
    if args.workload == "unet3d":
        chosen = {"scale": args.scale, "entropy": args.entropy}
        return Unet3dLayout(**{key: value for key, value in chosen.items() if value is not None}), None
    if args.workload == "checkfreq":
        chosen = {"scale": args.scale, "classes": args.classes}
        return ImagenetLayout(**{key: value for key, value in chosen.items() if value is not None}), None
    if args.workload == "bert":
        return BertLayout(), None
    return (DlrmLayout() if args.form in (None, "binary") else DlrmDaysLayout(form=args.form)), None


def _recorded_layout(args: Namespace) -> "tuple[Layout, int | None]":
    from iotwin.datagen.datasets.recorded import read_recipe

    given = {
        "a workload": args.workload,
        "--config": args.config,
        "--scale": args.scale,
        "--classes": args.classes,
        "--form": args.form,
        "--entropy": args.entropy,
        "--dedup": args.dedup,
    }
    if unfit := [name for name, value in given.items() if value is not None]:
        raise UsageError(f"--recipe describes the whole data set; leave out {', '.join(unfit)}")
    layout = read_recipe(args.recipe)
    if not layout.files:
        raise UsageError(f"{args.recipe}: a recorded data set without files has nothing to generate")
    return layout, len(layout.files)


def _configured_layout(args: Namespace) -> "tuple[Layout, int | None]":
    import msgspec

    from iotwin.datagen.layout_from_yaml import read_config

    if any(given is not None for given in (args.workload, args.scale, args.classes, args.form)):
        raise UsageError("give either a workload, which --scale and --form may change, or --config")
    layout, samples = read_config(args.config)
    shares = {"entropy": args.entropy, "dedup": args.dedup}
    return msgspec.structs.replace(layout, **{key: share for key, share in shares.items() if share is not None}), samples


def _document(state: str, directory: str, manifest: "DataSetManifest") -> dict[str, Any]:
    request = manifest.request
    return {
        "state": state,
        "directory": directory,
        "workload": request.workload,
        "samples": request.samples,
        "seed": request.seed,
        "files": len({piece.name for piece in manifest.pieces}),
        "size_bytes": manifest.size_bytes,
        "layout": request.layout,
    }
