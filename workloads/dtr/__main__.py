"""``python -m iotwin.workloads.dtr``: train a network on files, within a memory budget."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from iotwin.workloads.common.options import add_options
from iotwin.workloads.common.program import Result, run_program
from iotwin.workloads.dtr.config import DtrConfig, parse_config


def main(argv: Sequence[str] | None = None) -> int:
    """Run the training job that the arguments `argv` specify (default: those of this process). Return the exit status."""
    description = "Train a network within a memory budget, by evicting results of operations and computing them again."
    return run_program("dtr", description, _prepare_parser, _run, argv)


def _prepare_parser(parser: ArgumentParser) -> None:
    add_options(parser, DtrConfig)


def _run(args: Namespace) -> Result:
    config = parse_config(args)
    from iotwin.workloads.dtr.job import run_job

    return run_job(config)


if __name__ == "__main__":
    sys.exit(main())
