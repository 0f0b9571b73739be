"""``python -m iotwin.workloads.unet3d``: train the 3-D U-Net and write checkpoints and result.json."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from iotwin.workloads.common.program import Result, run_program
from iotwin.workloads.unet3d.config import parse_config, prepare_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the training job that the arguments `argv` specify (default: those of this process). Return the exit status."""
    return run_program("unet3d", "Train a 3-D U-Net on KiTS19-shaped cases.", prepare_parser, _run, argv)


def _run(args: Namespace) -> Result | None:
    config = parse_config(args)
    from iotwin.workloads.unet3d.train import train

    return train(config)


if __name__ == "__main__":
    sys.exit(main())
