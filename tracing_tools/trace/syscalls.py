"""The traced system calls of x86-64: their numbers, and how their arguments read.

The one place for both: the loader hands the kinds to the eBPF program, the store turns numbers into names.
Numbers: arch/x86/entry/syscalls/syscall_64.tbl of the Linux source.
"""

from enum import IntEnum


class Kind(IntEnum):
    """How a call's arguments read; mirrors `enum kind` in tracing_tools/probes/syscalls.bpf.c."""

    NOT_TRACED = 0
    READ_WRITE = 1  # (fd, buffer, size), at the file's position
    POSITIONED = 2  # (fd, buffer, size, offset)
    VECTOR = 3  # (fd, vectors, count), at the file's position
    POSITIONED_VECTOR = 4  # (fd, vectors, count, offset)
    DESCRIPTOR = 5  # (fd)
    CLOSE = 6  # (fd), whose file is gone afterwards
    OPEN = 7  # (path, flags)
    OPEN_AT = 8  # (directory fd, path, flags)
    CREATE = 9  # (path)
    OPEN_AT2 = 10  # (directory fd, path, struct open_how)
    MAP = 11  # (address, size, protection, flags, fd, offset)
    NAME = 12  # (path)
    NAME_AT = 13  # (directory fd, path)
    RENAME = 14  # (path, path)
    RENAME_AT = 15  # (directory fd, path, directory fd, path)
    WAIT = 16  # no file


CALLS: dict[str, tuple[int, Kind]] = {
    "read": (0, Kind.READ_WRITE),
    "write": (1, Kind.READ_WRITE),
    "open": (2, Kind.OPEN),
    "close": (3, Kind.CLOSE),
    "poll": (7, Kind.WAIT),
    "mmap": (9, Kind.MAP),
    "pread64": (17, Kind.POSITIONED),
    "pwrite64": (18, Kind.POSITIONED),
    "readv": (19, Kind.VECTOR),
    "writev": (20, Kind.VECTOR),
    "select": (23, Kind.WAIT),
    "fsync": (74, Kind.DESCRIPTOR),
    "fdatasync": (75, Kind.DESCRIPTOR),
    "rename": (82, Kind.RENAME),
    "creat": (85, Kind.CREATE),
    "unlink": (87, Kind.NAME),
    "epoll_wait": (232, Kind.WAIT),
    "openat": (257, Kind.OPEN_AT),
    "unlinkat": (263, Kind.NAME_AT),
    "renameat": (264, Kind.RENAME_AT),
    "pselect6": (270, Kind.WAIT),
    "ppoll": (271, Kind.WAIT),
    "epoll_pwait": (281, Kind.WAIT),
    "preadv": (295, Kind.POSITIONED_VECTOR),
    "pwritev": (296, Kind.POSITIONED_VECTOR),
    "renameat2": (316, Kind.RENAME_AT),
    "preadv2": (327, Kind.POSITIONED_VECTOR),
    "pwritev2": (328, Kind.POSITIONED_VECTOR),
    "openat2": (437, Kind.OPEN_AT2),
}

NAME_OF_NUMBER = {number: name for name, (number, _) in CALLS.items()}
OPEN_KINDS = (Kind.OPEN, Kind.OPEN_AT, Kind.CREATE, Kind.OPEN_AT2)
