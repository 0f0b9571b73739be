"""The traced operations: their numbers, the layout of their arguments, and the groups of `--detail`.

Numbers up to 511 are system calls of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl of the Linux source). From 512 on, iotwin
numbers operations that are not system calls: page faults, requests through io_uring and libaio, writes to the target of a copy.
"""

from collections.abc import Collection
from enum import IntEnum

from iotwin.common.errors import UsageError, nearest
from iotwin.trace_store.schema import METADATA_OPS, SUBMIT_OPS


class Kind(IntEnum):
    """The layout of a call's arguments; mirrors `enum kind` in tracing_tools/probes/call_kinds.h."""

    NOT_TRACED = 0
    READ_WRITE = 1  # (fd, buffer, size), at the descriptor's offset
    POSITIONED = 2  # (fd, buffer, size, offset)
    VECTOR = 3  # (fd, vectors, count), at the descriptor's offset
    POSITIONED_VECTOR = 4  # (fd, vectors, count, offset)
    DESCRIPTOR = 5  # (fd)
    CLOSE = 6  # (fd); after the call the descriptor has no file
    OPEN = 7  # (path, flags)
    OPEN_AT = 8  # (directory fd, path, flags)
    CREATE = 9  # (path)
    OPEN_AT2 = 10  # (directory fd, path, struct open_how)
    MAP = 11  # (address, size, protection, flags, fd, offset)
    NAME = 12  # (path)
    NAME_AT = 13  # (directory fd, path); an empty path means the file of the fd
    RENAME = 14  # (path, path)
    RENAME_AT = 15  # (directory fd, path, directory fd, path)
    WAIT = 16  # no argument names a file
    RANGE = 17  # (fd, offset, size)
    ALLOCATE = 18  # (fd, mode, offset, size)
    LENGTH = 19  # (fd, length)
    SEND = 20  # (fd to, fd from, offset from, size)
    COPY = 21  # (fd from, offset from, fd to, offset to, size)
    MAPPED = 22  # (address, size) of a mapped file
    AIO_SUBMIT = 23  # (context, count, array of struct iocb *)
    AIO_COLLECT = 24  # (context, least, most, array of struct io_event)


CALLS: dict[str, tuple[int, Kind]] = {
    "read": (0, Kind.READ_WRITE),
    "write": (1, Kind.READ_WRITE),
    "open": (2, Kind.OPEN),
    "close": (3, Kind.CLOSE),
    "stat": (4, Kind.NAME),
    "fstat": (5, Kind.DESCRIPTOR),
    "lstat": (6, Kind.NAME),
    "poll": (7, Kind.WAIT),
    "lseek": (8, Kind.DESCRIPTOR),
    "mmap": (9, Kind.MAP),
    "munmap": (11, Kind.MAPPED),
    "pread64": (17, Kind.POSITIONED),
    "pwrite64": (18, Kind.POSITIONED),
    "readv": (19, Kind.VECTOR),
    "writev": (20, Kind.VECTOR),
    "access": (21, Kind.NAME),
    "select": (23, Kind.WAIT),
    "msync": (26, Kind.MAPPED),
    "sendfile": (40, Kind.SEND),
    "fsync": (74, Kind.DESCRIPTOR),
    "fdatasync": (75, Kind.DESCRIPTOR),
    "truncate": (76, Kind.NAME),
    "ftruncate": (77, Kind.LENGTH),
    "getdents": (78, Kind.READ_WRITE),
    "rename": (82, Kind.RENAME),
    "mkdir": (83, Kind.NAME),
    "rmdir": (84, Kind.NAME),
    "creat": (85, Kind.CREATE),
    "unlink": (87, Kind.NAME),
    "readlink": (89, Kind.NAME),
    "sync": (162, Kind.WAIT),
    "readahead": (187, Kind.RANGE),
    "io_getevents": (208, Kind.AIO_COLLECT),
    "io_submit": (209, Kind.AIO_SUBMIT),
    "getdents64": (217, Kind.READ_WRITE),
    "fadvise64": (221, Kind.RANGE),
    "epoll_wait": (232, Kind.WAIT),
    "openat": (257, Kind.OPEN_AT),
    "mkdirat": (258, Kind.NAME_AT),
    "newfstatat": (262, Kind.NAME_AT),
    "unlinkat": (263, Kind.NAME_AT),
    "renameat": (264, Kind.RENAME_AT),
    "readlinkat": (267, Kind.NAME_AT),
    "faccessat": (269, Kind.NAME_AT),
    "pselect6": (270, Kind.WAIT),
    "ppoll": (271, Kind.WAIT),
    "splice": (275, Kind.COPY),
    "sync_file_range": (277, Kind.RANGE),
    "epoll_pwait": (281, Kind.WAIT),
    "fallocate": (285, Kind.ALLOCATE),
    "preadv": (295, Kind.POSITIONED_VECTOR),
    "pwritev": (296, Kind.POSITIONED_VECTOR),
    "syncfs": (306, Kind.DESCRIPTOR),
    "renameat2": (316, Kind.RENAME_AT),
    "copy_file_range": (326, Kind.COPY),
    "preadv2": (327, Kind.POSITIONED_VECTOR),
    "pwritev2": (328, Kind.POSITIONED_VECTOR),
    "statx": (332, Kind.NAME_AT),
    "io_pgetevents": (333, Kind.AIO_COLLECT),
    "io_uring_enter": (426, Kind.DESCRIPTOR),
    "openat2": (437, Kind.OPEN_AT2),
    "faccessat2": (439, Kind.NAME_AT),
}

# Operations that are not system calls, mirrored in tracing_tools/probes/call_kinds.h.
OTHER_OPS = {
    "page_fault": 512,
    "sendfile_to": 513, "splice_to": 514, "copy_file_range_to": 515,  # the write half of a copy; the call itself is the read
    "io_uring_read": 520, "io_uring_write": 521, "io_uring_fsync": 522, "io_uring_fdatasync": 523, "io_uring_openat": 524,
    "io_uring_close": 525, "io_uring_sync_file_range": 526, "io_uring_fallocate": 527,
    "aio_read": 540, "aio_write": 541, "aio_fsync": 542, "aio_fdatasync": 543,
}  # fmt: skip

NUMBER_OF_OP = {name: number for name, (number, _) in CALLS.items()} | OTHER_OPS
OPEN_KINDS = (Kind.OPEN, Kind.OPEN_AT, Kind.CREATE, Kind.OPEN_AT2)

# The groups of `iotwin trace --detail`. The group "data" has all calls that are in no other group.
_MMAP = ("munmap", "msync")
_METADATA = tuple(name for name in METADATA_OPS if name in CALLS and name not in _MMAP)
_BY_GROUP = {
    "data": tuple(name for name in CALLS if name not in (*_METADATA, *_MMAP, *SUBMIT_OPS)),
    "metadata": _METADATA,
    "mmap": _MMAP,
    "async": SUBMIT_OPS,
    "block": (),
    "gpu": (),  # calls of CUDA's API
}
DETAIL_GROUPS = tuple(_BY_GROUP)
DEFAULT_DETAIL = ("data", "async")


def parse_detail(text: str) -> tuple[str, ...]:
    """Return the groups in `text`, the value of ``--detail``, in order of DETAIL_GROUPS. Raises UsageError for unknown ones."""
    chosen = {part.strip() for part in text.split(",")}
    if "all" in chosen:
        return DETAIL_GROUPS
    for name in chosen:
        if name not in DETAIL_GROUPS:
            known = f"known: all, {', '.join(DETAIL_GROUPS)}"
            raise UsageError(f"--detail: unknown group '{name}'{nearest(name, [*DETAIL_GROUPS, 'all'])}; {known}")
    return tuple(name for name in DETAIL_GROUPS if name in chosen)


def calls_of(detail: Collection[str]) -> dict[str, tuple[int, Kind]]:
    """Return (number, kind) of each system call in the groups `detail`, by name."""
    return {name: CALLS[name] for group in detail for name in _BY_GROUP[group]}
