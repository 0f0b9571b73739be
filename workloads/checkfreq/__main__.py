"""``python -m iotwin.workloads.checkfreq``: train an image classifier and write checkpoints under a bound on their cost."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from iotwin.workloads.checkfreq.config import parse_config, prepare_parser
from iotwin.workloads.common.program import Result, run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Run the training job that the arguments `argv` specify (default: those of this process). Return the exit status."""
    description = "Train an image classifier, with checkpoints as often as a bound on their cost allows."
    return run_program("checkfreq", description, prepare_parser, _run, argv)


def _run(args: Namespace) -> Result | None:
    config = parse_config(args)
    from iotwin.workloads.checkfreq.train import train

    return train(config)


if __name__ == "__main__":
    sys.exit(main())
