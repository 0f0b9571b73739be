"""The paper artifact's script of this name, with its options: convert raw recordings, by ``iotwin import``.

python trace_visuals/preprocess_traces.py TRACES_DIR WORKLOAD [-o DIR] [-s STEP] [-ml] [--timezone ZONE]
"""

import argparse
import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, _ROOT)

from iotwin.common.processes.process_settings import become_iotwin  # noqa: E402
from iotwin.common.workloads import NAMES  # noqa: E402


def main() -> None:
    """Translate the arguments, and replace this process by ``iotwin import``."""
    parser = argparse.ArgumentParser(description="Turn raw recordings into a trace; see also: iotwin import --help")
    parser.add_argument("traces_dir", type=Path, help="directory of trace_read.out and the others")
    parser.add_argument("workload", choices=list(NAMES), help="what was recorded")
    parser.add_argument("-o", "--output-dir", type=Path, help="trace to write (default: TRACES_DIR.trace)")
    parser.add_argument("-s", "--step", type=int, help="accepted and not needed: there is one step")
    parser.add_argument("-ml", "--mllog", action="store_true", help="accepted and not needed: the log is always read")
    parser.add_argument("--timezone", help="IANA name of the recording machine's time zone (default UTC)")
    args = parser.parse_args()
    output = args.output_dir or args.traces_dir.with_name(f"{args.traces_dir.name}.trace")
    command = ["import", str(args.traces_dir), "-o", str(output), "--format", "artifact", "--force"]
    become_iotwin(_ROOT, [*command, "--timezone", args.timezone] if args.timezone else command)


if __name__ == "__main__":
    main()
