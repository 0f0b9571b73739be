"""``python -m workloads.launch RANKS MODULE [OPTION...]``: start a job's ranks on this machine, and end all when one fails.

For workloads whose framework brings no launcher; PyTorch's is torch.distributed.run, which sets the same environment.
"""

import os
import signal
import subprocess
import sys
import time

from common.children import end_programs
from common.ranks import free_ports
from common.signals import interrupted_status

_POLL_S = 0.05
_GRACE_S = 10.0


def main(arguments: list[str]) -> int:
    """Run the ranks and return the first exit status that is not 0, or 0."""
    if len(arguments) < 2 or not arguments[0].isdecimal() or not int(arguments[0]):
        print("usage: python -m workloads.launch RANKS MODULE [OPTION...]", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The ranks leave the current directory out of their modules if this process does; in an image the workloads are in it.
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m"]
    count, command = int(arguments[0]), [*python, *arguments[1:]]
    shared = os.environ | {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(count))}
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env=shared | own))
        return _wait(ranks)
    except KeyboardInterrupt:
        return interrupted_status()
    finally:
        end_programs(ranks, _GRACE_S)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    while True:
        statuses = [rank.poll() for rank in ranks]
        if failed := [status for status in statuses if status]:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if all(status == 0 for status in statuses):
            return 0
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
