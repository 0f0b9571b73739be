"""The paper artifact's command for growing data sets, which runs ``iotwin scale``.

python datagen/data_scaling.py --input_path DIR --output_path DIR --desired_size BYTES --workload {unet3d,imseg,bert,dlrm}
"""

import argparse
import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, _ROOT)

from iotwin.common.processes.process_settings import become_iotwin  # noqa: E402
from iotwin.common.workloads import NAMES  # noqa: E402


def main() -> None:
    """Translate the command line and replace this process by ``iotwin scale``."""
    parser = argparse.ArgumentParser(description="Grow a real data set; see also: iotwin scale --help")
    parser.add_argument("--input_path", required=True, help="directory of the data set to grow")
    parser.add_argument("--output_path", required=True, help="directory to write")
    parser.add_argument("--desired_size", required=True, help="bytes, or a size such as 500GB")
    parser.add_argument("--workload", required=True, choices=list(NAMES), help="whose data set")
    args = parser.parse_args()
    become_iotwin(_ROOT, ["scale", NAMES[args.workload], args.input_path, "-o", args.output_path, "--size", args.desired_size])


if __name__ == "__main__":
    main()
