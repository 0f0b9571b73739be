"""What the command line of these jobs says: where the data are, the seed, and how the job differs from its habit."""

import argparse
from pathlib import Path


def command_line(*flags: str) -> argparse.Namespace:
    """Return `folder`, `seed`, `workers`, the flags and `scale`: training batches are so many times as large, steps as long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    return parser.parse_args()
