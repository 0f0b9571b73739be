"""Finds out from the kernel's log whether the kernel ended a process of a container because its memory was used up."""

import contextlib
import os

KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # the longest record; the kernel returns one at each read


def was_killed_for_memory(container_id: str) -> bool | None:
    """Return whether the log names the container's cgroup in the record of such an end. None if the log cannot be read.

    The kernel writes the record before the process ends. A container engine may miss this event if the cgroup goes soon.
    """
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        while True:
            with contextlib.suppress(BrokenPipeError):  # newer records have replaced the next one
                record = os.read(log, _RECORD_BYTES)
                if b"oom-kill:" in record and container_id.encode() in record:
                    return True
                if not record:
                    return False
    except BlockingIOError:  # this was the last record
        return False
    except OSError:
        return None
    finally:
        os.close(log)
