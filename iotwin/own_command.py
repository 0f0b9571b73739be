"""How iotwin starts processes of its own: always with `python -P`, so that no file of the current directory counts as a module.

A data directory or a clone may hold a json.py or a common.py; those are a job's, or a stranger's, and never ours to import.
"""

import sys
from pathlib import Path

_PYTHON = (sys.executable, "-P", "-m")


def own_command(command: str, *arguments: str | Path) -> list[str]:
    """Return the argument list that runs ``iotwin COMMAND ARGUMENTS`` in a process of its own."""
    return [*_PYTHON, "iotwin.main", command, *map(str, arguments)]


def own_job(module: str, *arguments: str | Path) -> list[str]:
    """Return the argument list that runs one of our own jobs, such as workloads.unet3d, in a process of its own."""
    return [*_PYTHON, module, *map(str, arguments)]
