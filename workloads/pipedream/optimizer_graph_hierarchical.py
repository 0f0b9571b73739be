"""Runs ``iotwin pipedream optimize`` with the options, the use of all workers and the memory formula of PipeDream's script."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from iotwin.main import main as iotwin


def main(argv: list[str] | None = None) -> int:
    """Translate the options and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-f", "--profile_filename", required=True)
    parser.add_argument("-n", "--all_num_machines", nargs="+", default=[])
    parser.add_argument("-b", "--network_bandwidths", nargs="+", default=["1000000000"])
    parser.add_argument("-s", "--memory_size", default="16000000000")
    parser.add_argument("-o", "--output_directory")
    parser.add_argument("--activation_compression_ratio")
    switches = ("straight_pipeline", "use_memory_constraint", "use_fewer_machines")
    for switch in switches:
        parser.add_argument(f"--{switch}", action="store_true")
    args = parser.parse_args(argv)
    call = ["pipedream", "optimize", args.profile_filename, "-b", *args.network_bandwidths, "-s", args.memory_size]
    call += ["--exact-workers", "--memory-model", "original"]
    call += ["-n", *args.all_num_machines] if args.all_num_machines else []
    call += ["-o", args.output_directory] if args.output_directory else []
    if args.activation_compression_ratio:
        call += ["--activation-compression-ratio", args.activation_compression_ratio]
    return iotwin(call + [f"--{switch.replace('_', '-')}" for switch in switches if getattr(args, switch)])


if __name__ == "__main__":
    sys.exit(main())
