"""``python -m iotwin.workloads.bert``: pretrain the encoder and write checkpoints and result.json."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from iotwin.workloads.bert.config import parse_config, prepare_parser
from iotwin.workloads.common.program import Result, run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Run the training job that the arguments `argv` specify (default: those of this process). Return the exit status."""
    return run_program("bert", "Pretrain BERT on TFRecord shards.", prepare_parser, _run, argv)


def _run(args: Namespace) -> Result | None:
    config = parse_config(args)
    from iotwin.workloads.bert.train import train

    return train(config)


if __name__ == "__main__":
    sys.exit(main())
