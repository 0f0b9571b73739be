"""Runs ``iotwin pipedream profile`` with options of the main.py of PipeDream's profiler. Its other options have no effect.

The profile is of the model's published size on the CPU, unless ``--preset`` and ``--device`` specify others.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from iotwin.main import main as iotwin


def main(argv: list[str] | None = None) -> int:
    """Translate the options and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-a", "--arch", default="resnet18")
    parser.add_argument("-b", "--batch-size", default="256")
    parser.add_argument("--data_dir")
    parser.add_argument("-s", "--synthetic_data", action="store_true")
    parser.add_argument("--profile_directory", default="profiles", type=Path)
    parser.add_argument("--num_minibatches", default="100")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--forward_only", action="store_true")
    parser.add_argument("--log_activations", action="store_true")
    parser.add_argument("--log_activations_directory", default="activations")
    args, others = parser.parse_known_args(argv)
    if others:
        print(f"{' '.join(others)}: of no effect on the profile", file=sys.stderr)
    call = ["pipedream", "profile", args.arch, "-o", str(args.profile_directory / args.arch), "-b", args.batch_size]
    call += ["--minibatches", args.num_minibatches, "--preset", args.preset, "--device", args.device]
    call += ["--forward-only"] if args.forward_only else []
    call += ["--activations", args.log_activations_directory] if args.log_activations else []
    return iotwin(call + (["--data-dir", args.data_dir] if args.data_dir and not args.synthetic_data else []))


if __name__ == "__main__":
    sys.exit(main())
