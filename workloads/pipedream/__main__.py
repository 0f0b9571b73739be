"""``python -m iotwin.workloads.pipedream``: train a model as one rank of a pipeline, with PipeDream's options."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial

from iotwin.workloads.common.program import run_program
from iotwin.workloads.pipedream.runtime.options import parse_config, prepare_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rank that the arguments `argv` specify (default: those of this process). Return the exit status."""
    description = "Train a model as one rank of a pipeline, with several versions of the weights instead of flushes."
    return run_program("pipedream", description, prepare_parser, partial(_run, sys.argv[1:] if argv is None else argv), argv)


def _run(argv: Sequence[str], args: Namespace) -> None:
    config, plan, modules = parse_config(args)
    if config.rank is not None and len(config.rank) > 1:
        from iotwin.workloads.pipedream.runtime.drive import run_host

        sys.exit(run_host(argv, plan, config.rank))
    from iotwin.workloads.pipedream.runtime.train import train

    train(config, plan, modules)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: C++ aborts the process ("terminate called without an active exception", seen with torch 2.13) if gloo's
    # threads still run when their objects are destroyed at its end.
    os._exit(status)
