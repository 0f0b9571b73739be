"""Runs ``iotwin pipedream convert`` with the options of PipeDream's script of this name. Template options have no effect."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from iotwin.main import main as iotwin


def main(argv: list[str] | None = None) -> int:
    """Translate the options and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-f", "--profile_filename", required=True)
    parser.add_argument("-n", "--model_name", required=True)
    parser.add_argument("-a", "--arch", required=True)
    parser.add_argument("-o", "--output_directory", required=True)
    parser.add_argument("--stage_to_num_ranks_map")
    templates = ("model_template_filename", "init_template_filename", "conf_template_filename")
    for template in templates:
        parser.add_argument(f"--{template}")
    args = parser.parse_args(argv)
    for template in templates:
        if getattr(args, template):
            print(f"--{template} is of no effect: no code is generated from templates", file=sys.stderr)
    call = ["pipedream", "convert", args.profile_filename, "-n", args.model_name, "-a", args.arch, "-o", args.output_directory]
    ranks = args.stage_to_num_ranks_map
    return iotwin(call + (["--stage-to-num-ranks", ranks] if ranks else []))


if __name__ == "__main__":
    sys.exit(main())
