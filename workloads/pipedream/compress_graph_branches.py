"""Runs ``iotwin pipedream compress`` for users of PipeDream's script of this name; its arguments are GRAPH OUTPUT."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from iotwin.main import main as iotwin


def main(argv: list[str] | None = None) -> int:
    """Translate the arguments and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph")
    parser.add_argument("output")
    args = parser.parse_args(argv)
    return iotwin(["pipedream", "compress", args.graph, "-o", args.output])


if __name__ == "__main__":
    sys.exit(main())
