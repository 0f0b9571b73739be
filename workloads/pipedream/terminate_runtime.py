"""Runs ``iotwin pipedream terminate`` with the arguments of PipeDream's script of this name."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from iotwin.main import main as iotwin


def main(argv: list[str] | None = None) -> int:
    """Translate the arguments and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machinefile")
    return iotwin(["pipedream", "terminate", parser.parse_args(argv).machinefile])


if __name__ == "__main__":
    sys.exit(main())
