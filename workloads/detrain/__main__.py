"""``python -m iotwin.workloads.detrain [OPTION...] SCRIPT [ARG...]``: run a script with its loops instrumented."""

import sys
from argparse import REMAINDER, ArgumentParser

from iotwin.common.detrain_options import add_run_options
from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.runner import run_script


def main() -> None:
    """Run the script that the command line names."""
    parser = ArgumentParser(prog="python -m iotwin.workloads.detrain", description="Run a training script so that it can resume.")
    add_run_options(parser)
    parser.add_argument("arguments", nargs=REMAINDER, metavar="ARG", help="the script's own arguments")
    try:
        run_script(parser.parse_args())
    except IotwinError as error:
        print(f"detrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
