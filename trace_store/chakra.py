"""The numbers of MLCommons Chakra's schema, for the importer and for tracing_tools/exports/chakra.py."""

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store import schema

VERSION = "1.0.0"
METADATA_NODE, COMP_NODE, STORAGE_NODE, BATCH_NODE, CHECKPOINT_NODE = 1, 4, 8, 9, 10
LEVEL_FS, LEVEL_BLOCK = 1, 3
EVENT_DISPATCH = 4  # a request is issued to the driver
SECTOR_BYTES = 512
PHASE_NODES = {"step": BATCH_NODE, "checkpoint": CHECKPOINT_NODE}
_PLAIN = {"close": 2, "read": 3, "write": 4, "pread64": 5, "pwrite64": 6, "fsync": 7, "fdatasync": 8, "sync_file_range": 9}
_LIKE = {
    "readv": 3, "writev": 4, "preadv": 5, "preadv2": 5, "pwritev": 6, "pwritev2": 6, "io_uring_read": 5, "aio_read": 5,
    "io_uring_write": 6, "aio_write": 6, "io_uring_fsync": 7, "aio_fsync": 7, "io_uring_fdatasync": 8, "aio_fdatasync": 8,
    "io_uring_sync_file_range": 9, "io_uring_close": 2,
}  # fmt: skip
# FsOp.Op of each call; a node's name is the call's own.
FS_OPS = dict.fromkeys(schema.OPEN_OPS, 1) | _PLAIN | _LIKE
BLOCK_OPS = {"read": 1, "write": 2, "flush": 3}
# Linux's bits (include/uapi/asm-generic/fcntl.h, include/linux/blk_types.h) of the flags of a trace.
_OPEN_BITS = {
    schema.FLAG_DIRECT: 0o40000,
    schema.FLAG_APPEND: 0o2000,
    schema.FLAG_CREATE: 0o100,
    schema.FLAG_TRUNCATE: 0o1000,
    schema.FLAG_WRITABLE: 0o2,
}
_REQUEST_BITS = {
    schema.BLOCK_SYNC: 1 << 11,
    schema.BLOCK_META: 1 << 12,
    schema.BLOCK_FUA: 1 << 17,
    schema.BLOCK_READAHEAD: 1 << 19,
}

Ints = NDArray[np.int64]


def open_flags(flags: Ints) -> Ints:
    """Return Linux's O_* for the flags of events; O_RDONLY, which is 0, unless writable."""
    return _translated(flags, _OPEN_BITS)


def event_flags(opened: Ints) -> Ints:
    """Return the flags of events for Linux's O_* `opened`; O_RDWR and O_WRONLY are both writable."""
    return _translated(opened, {theirs: ours for ours, theirs in _OPEN_BITS.items()}) | np.where(
        opened & 1, schema.FLAG_WRITABLE, 0
    )


def request_flags(flags: Ints) -> Ints:
    """Return Linux's REQ_* for the flags of block requests."""
    return _translated(flags, _REQUEST_BITS)


def block_flags(requests: Ints) -> Ints:
    """Return the flags of block requests for Linux's REQ_* `requests`."""
    return _translated(requests, {theirs: ours for ours, theirs in _REQUEST_BITS.items()})


def _translated(flags: Ints, bits: dict[int, int]) -> Ints:
    translated = np.zeros_like(flags)
    for ours, theirs in bits.items():
        translated |= np.where(flags & ours, theirs, 0)
    return translated
