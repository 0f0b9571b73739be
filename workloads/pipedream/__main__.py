"""``python -m iotwin.workloads.pipedream``: train a model as one rank of a pipeline, with PipeDream's options."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from iotwin.workloads.common.program import run_program
from iotwin.workloads.pipedream.runtime.options import parse_config, prepare_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rank of the command line `argv` (default: the process's own) and return the exit status."""
    description = "Train a model as one rank of a pipeline, with several versions of the weights instead of flushes."
    return run_program("pipedream", description, prepare_parser, _run, argv)


def _run(args: Namespace) -> None:
    config, plan, modules = parse_config(args)
    from iotwin.workloads.pipedream.runtime.train import train

    train(config, plan, modules)


if __name__ == "__main__":
    sys.exit(main())
