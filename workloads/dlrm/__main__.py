"""``python -m iotwin.workloads.dlrm``: train the recommendation model and write checkpoints and result.json."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from iotwin.workloads.common.program import Result, run_program
from iotwin.workloads.dlrm.config import parse_config, prepare_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the training job that the arguments `argv` specify (default: those of this process). Return the exit status."""
    return run_program("dlrm", "Train DLRM on Criteo Terabyte in binary form.", prepare_parser, _run, argv)


def _run(args: Namespace) -> Result | None:
    config = parse_config(args)
    if config.sleep is not None:
        # The variant sleep only reads batches and sleeps, so it requires no PyTorch.
        from iotwin.workloads.dlrm.sleep import sleep_through

        return sleep_through(config)
    from iotwin.workloads.dlrm.train import train

    return train(config)


if __name__ == "__main__":
    sys.exit(main())
