"""Constants and conversions of flags of MLCommons Chakra's schema, which importers/chakra.py and exports/chakra.py share."""

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.raw.block_table import FLAG_OF_BIT

VERSION = "1.0.0"
METADATA_NODE, COMP_NODE, STORAGE_NODE, BATCH_NODE, CHECKPOINT_NODE = 1, 4, 8, 9, 10
LEVEL_FS, LEVEL_BLOCK = 1, 3
EVENT_DISPATCH = 4  # the event that a block request is issued to the driver
SECTOR_BYTES = 512
PHASE_NODES = {"step": BATCH_NODE, "checkpoint": CHECKPOINT_NODE}
# The call for each number of Chakra's FsOp.Op. Several calls share a number, so an exported node stores the call's name, too.
CALL_OF_FS_OP = {1: "openat", 2: "close", 3: "read", 4: "write", 5: "pread64", 6: "pwrite64", 7: "fsync", 8: "fdatasync",
                 9: "sync_file_range"}  # fmt: skip
FS_OPS = dict.fromkeys(schema.OPEN_OPS, 1) | {call: number for number, call in CALL_OF_FS_OP.items()} | {
    "readv": 3, "writev": 4, "preadv": 5, "preadv2": 5, "pwritev": 6, "pwritev2": 6, "io_uring_read": 5, "aio_read": 5,
    "io_uring_write": 6, "aio_write": 6, "io_uring_fsync": 7, "aio_fsync": 7, "io_uring_fdatasync": 8, "aio_fdatasync": 8,
    "io_uring_sync_file_range": 9, "io_uring_close": 2,
}  # fmt: skip
BLOCK_OPS = {"read": 1, "write": 2, "flush": 3}
# Maps each flag of an event (schema.FLAG_*) to the bit that Linux uses (O_* of include/uapi/asm-generic/fcntl.h).
_OPEN_BITS = {
    schema.FLAG_DIRECT: 0o40000,
    schema.FLAG_APPEND: 0o2000,
    schema.FLAG_CREATE: 0o100,
    schema.FLAG_TRUNCATE: 0o1000,
    schema.FLAG_WRITABLE: 0o2,
}

Ints = NDArray[np.int64]


def open_flags(flags: Ints) -> Ints:
    """Convert the flags of events to the O_* bits of open(2). The result has O_RDWR if the file is writable, else O_RDONLY."""
    return _translated(flags, _OPEN_BITS)


def event_flags(opened: Ints) -> Ints:
    """Convert the O_* bits of open(2) to the flags of events; both O_RDWR and O_WRONLY mean writable."""
    flags = _translated(opened, {bit: flag for flag, bit in _OPEN_BITS.items()})
    return flags | np.where(opened & 1, schema.FLAG_WRITABLE, 0)


def request_flags(flags: Ints) -> Ints:
    """Convert the flags of block requests (schema.BLOCK_*) to the kernel's REQ_* bits."""
    return _translated(flags, {flag: bit for bit, flag in FLAG_OF_BIT.items()})


def block_flags(requests: Ints) -> Ints:
    """Convert the kernel's REQ_* bits to the flags of block requests (schema.BLOCK_*)."""
    return _translated(requests, FLAG_OF_BIT)


def _translated(flags: Ints, bits: dict[int, int]) -> Ints:
    translated = np.zeros_like(flags)
    for bit, other in bits.items():
        translated |= np.where(flags & bit, other, 0)
    return translated
