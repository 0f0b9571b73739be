"""Directories in raw/ to which the job writes. Under sudo, the job runs as a user who cannot enter root's directories."""

import os
import stat
import subprocess
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.files import new_folder, open_new
from iotwin.tracing_tools.targets.user import invoking_user


def run_as_job(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `command` as the job's user; return its exit status and output."""
    user = invoking_user()
    user_id, group_id = (None, None) if user is None else (user.user_id, user.group_id)
    groups = None if user is None else os.getgrouplist(user.name, user.group_id)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False, user=user_id, group=group_id,
        extra_groups=groups,
    )  # fmt: skip


def make_job_directory(raw: Path, name: str) -> Path:
    """Create the directory `name` in `raw`, to which the job's user can write. Raises IotwinError if the user cannot reach it.

    Users cannot remove one another's files in the new directory. The job's user may pass through `raw` and its parent, but not
    list them.
    """
    directory = raw / name
    new_folder(directory)
    directory.chmod(0o1777 if os.geteuid() == 0 else 0o700)
    user = invoking_user()
    if user is not None:
        for above in (raw, raw.parent):
            above.chmod(stat.S_IMODE(above.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)
        if run_as_job(["test", "-w", str(directory)]).returncode:
            raise IotwinError(f"{user.name}, who runs the command, cannot enter {raw.parent.parent}; choose another place for -o")
    return directory


def make_for_job(path: Path) -> None:
    """Create the empty file `path`, owned by the job's user, in a job directory. Raises OSError on failure."""
    open_new(path, 0o644).close()
    user = invoking_user()
    if user is not None:
        os.chown(path, user.user_id, user.group_id, follow_symlinks=False)
