"""Command lines of iotwin's own processes. They use `python -P`, so that Python imports no module from the current directory,
which may hold another program's json.py.
"""

import shlex
import sys
from pathlib import Path

_PYTHON = (sys.executable, "-P", "-m")


def own_command(command: str, *arguments: str | Path) -> list[str]:
    """Return the argument list that runs ``iotwin COMMAND ARGUMENTS`` in a new process."""
    return [*_PYTHON, "iotwin", command, *map(str, arguments)]


def own_job(module: str, *arguments: str | Path) -> list[str]:
    """Return the argument list that runs one of iotwin's jobs, such as iotwin.workloads.unet3d, in a new process."""
    return [*_PYTHON, module, *map(str, arguments)]


def this_command() -> str:
    """Return the command line of this process as a user types it, quoted for a shell."""
    return shlex.join(["iotwin", *sys.argv[1:]])
