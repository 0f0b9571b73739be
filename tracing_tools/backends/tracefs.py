"""Mount tracefs, in which bpftrace finds tracepoints, for one program only, if the machine has not mounted it.

``python tracefs.py COMMAND...`` executes COMMAND in a separate mount namespace in which tracefs is mounted. Other programs do not
see the mount, and the mount disappears with COMMAND.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_MOUNTS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_CLONE_NEWNS = 0x20000  # include/uapi/linux/sched.h
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000  # include/uapi/linux/mount.h


def with_tracefs(command: list[str]) -> list[str]:
    """Return the command line that runs `command` with tracefs mounted: `command` itself if tracefs is mounted already."""
    if any((mount / "events").is_dir() for mount in _MOUNTS):
        return command
    return [sys.executable, "-I", "-S", __file__, *command]


def unavailable_reason() -> str | None:
    """Return why tracefs cannot be mounted, None if it can or is mounted already. Requires root."""
    command = with_tracefs(["true"])
    if command == ["true"]:
        return None
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return tried.stderr.strip().removeprefix("ERROR: ") if tried.returncode else None


def _check(result: int, what: str) -> None:
    if result != 0:
        sys.exit(f"ERROR: {what}: {os.strerror(ctypes.get_errno())}; mount it: mount -t tracefs tracefs {_MOUNTS[0]}")


def _main(command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "tracefs is not mounted, and no mount namespace can be made")
    _check(
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "tracefs is not mounted, and mounts cannot be made private"
    )
    _check(libc.mount(b"tracefs", bytes(_MOUNTS[0]), b"tracefs", 0, None), "tracefs is not mounted and cannot be")
    os.execvp(command[0], command)  # noqa: S606 - the same process, so that it is signalled and waited for as COMMAND


if __name__ == "__main__":
    _main(sys.argv[1:])
