"""Runs ``iotwin pipedream drive`` with the options of PipeDream's script of this name. Its --quiet becomes --dry-run."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from iotwin.main import main as iotwin


def main(argv: list[str] | None = None) -> int:
    """Translate the options and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config_file", required=True)
    parser.add_argument("--resume")
    parser.add_argument("--launch_single_container", action="store_true")
    parser.add_argument("--mount_directories", nargs="+", default=[])
    parser.add_argument("--quiet", action="store_true", help="print the commands and launch nothing")
    args = parser.parse_args(argv)
    call = ["pipedream", "drive", args.config_file]
    call += ["--resume", args.resume] if args.resume else []
    call += ["--launch-single-container"] if args.launch_single_container else []
    call += ["--mount-directories", *args.mount_directories] if args.mount_directories else []
    return iotwin(call + (["--dry-run"] if args.quiet else []))


if __name__ == "__main__":
    sys.exit(main())
