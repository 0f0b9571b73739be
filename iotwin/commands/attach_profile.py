"""``iotwin attach-profile``: add the GPU kernels and copies of a framework's profile to the trace of the same run."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class AttachProfileCommand(Command):
    name = "attach-profile"
    help = "add GPU kernels and copies from a profile of PyTorch or TensorFlow to the trace of the same run"
    epilog = "example: iotwin attach-profile run.trace profile.json.gz"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE")
        parser.add_argument(
            "profiles", nargs="+", type=Path, metavar="PROFILE", help="file that torch.profiler or tf.profiler wrote, one a rank"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.trace_store.profiles import attach_profiles
        from iotwin.trace_store.reader import Trace

        trace = Trace(args.trace)
        added = attach_profiles(trace, args.profiles)
        return Outcome({"trace": str(args.trace), "profiles": [str(path) for path in args.profiles], "added": added})

    def show(self, document: dict[str, Any]) -> None:
        added = ", ".join(f"{counted(rows, 'row')} by {source}" for source, rows in document["added"].items())
        print(f"{document['trace']}: {added} in gpu.parquet")
