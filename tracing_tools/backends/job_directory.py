"""A directory in raw/ for what is written inside the job: under sudo that is another user, who can enter nothing of root's."""

import os
import stat
import subprocess
from pathlib import Path

from common.errors import IotwinError
from tracing_tools.targets.user import invoking_user


def run_as_job(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of the system's as the user whom the job will run as, and return how it ended and what it said."""
    user = invoking_user()
    user_id, group_id = (None, None) if user is None else (user.user_id, user.group_id)
    groups = None if user is None else os.getgrouplist(user.name, user.group_id)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False, user=user_id, group=group_id,
        extra_groups=groups,
    )  # fmt: skip


def make_job_directory(raw: Path, name: str) -> Path:
    """Make the directory `name` in `raw`, in which the job's user can write; IotwinError when there is no way to it.

    Its files stay their owners'. What lies above can be passed until the trace is given to its user, but not be read.
    """
    directory = raw / name
    directory.mkdir()
    directory.chmod(0o1777 if os.geteuid() == 0 else 0o700)
    user = invoking_user()
    if user is not None:
        for above in (raw, raw.parent):
            above.chmod(stat.S_IMODE(above.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)
        if run_as_job(["test", "-w", str(directory)]).returncode:
            raise IotwinError(f"{user.name}, who runs the command, cannot enter {raw.parent.parent}; choose another place for -o")
    return directory


def make_for_job(path: Path) -> None:
    """Make an empty file in such a directory, which is the job's user's; OSError when it cannot be made."""
    path.touch(0o644, exist_ok=False)
    user = invoking_user()
    if user is not None:
        os.chown(path, user.user_id, user.group_id, follow_symlinks=False)
