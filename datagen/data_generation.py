"""The paper artifact's command for generating data sets, which runs ``iotwin generate``.

python datagen/data_generation.py -o DIR -s BYTES -w {unet3d,imseg,bert,dlrm}
"""

import argparse
import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, _ROOT)

from iotwin.common.processes.process_settings import become_iotwin  # noqa: E402
from iotwin.common.workloads import NAMES  # noqa: E402


def main() -> None:
    """Translate the command line and replace this process by ``iotwin generate``."""
    parser = argparse.ArgumentParser(description="Generate a data set; see also: iotwin generate --help")
    parser.add_argument("-o", "--output", "--output_path", dest="output", required=True, help="directory to write")
    parser.add_argument("-s", "--size", "--desired_size", dest="size", required=True, help="bytes, or a size such as 512MiB")
    parser.add_argument("-w", "--workload", required=True, choices=list(NAMES), help="whose data set")
    parser.add_argument("--scale", help="unet3d: multiply every volume extent, for small data sets")
    args = parser.parse_args()
    command = ["generate", NAMES[args.workload], "-o", args.output, "--size", args.size]
    become_iotwin(_ROOT, [*command, "--scale", args.scale] if args.scale else command)


if __name__ == "__main__":
    main()
