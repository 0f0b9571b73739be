"""The command of the paper artifact, kept for its users: a thin call of ``iotwin generate``.

python datagen/data_generation.py -o DIR -s BYTES -w {unet3d,imseg,bert,dlrm}
"""

import argparse
import os
import sys
from pathlib import Path

_WORKLOADS = {"unet3d": "unet3d", "imseg": "unet3d", "bert": "bert", "dlrm": "dlrm"}


def main() -> None:
    """Translate the arguments and become ``iotwin generate``."""
    parser = argparse.ArgumentParser(description="Generate a data set; see also: iotwin generate --help")
    parser.add_argument("-o", "--output", "--output_path", dest="output", required=True, help="directory to write")
    parser.add_argument("-s", "--size", "--desired_size", dest="size", required=True, help="bytes, or a size such as 512MiB")
    parser.add_argument("-w", "--workload", required=True, choices=list(_WORKLOADS), help="whose data set")
    args = parser.parse_args()
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    command = ["-m", "iotwin.main", "generate", _WORKLOADS[args.workload], "-o", args.output, "--size", args.size]
    os.execve(sys.executable, [sys.executable, *command], environment)  # noqa: S606 - exit status and signals become its own


if __name__ == "__main__":
    main()
