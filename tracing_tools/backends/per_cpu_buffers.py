"""Read lanes: one buffer of event records per CPU, which the eBPF programs fill and which this process maps into its memory.

tracing_tools/probes/records.h defines the layout: struct lane and struct slot. Each lane has one writer, the eBPF program, and
one reader, this process. So a head and a tail suffice without a lock, since x86-64 does not reorder stores. If a lane is full,
the program writes the record to a ring buffer instead.
"""

import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.raw.records import EVENT, RING_HEADER_BYTES

LANE = np.dtype([("head", "<u8"), ("busy", "<u8"), ("padding", "<u8", 6), ("tail", "<u8"), ("more_padding", "<u8", 7)])


class LaneBuffers:
    """The lanes of `cpus` CPUs, each with room for `slots` records, a power of two.

    `lanes_fd` and `slots_fd`: descriptors of the eBPF maps `lanes` (heads and tails) and `slots` (records).
    """

    def __init__(self, lanes_fd: int, slots_fd: int, cpus: int, slots: int) -> None:
        self._slots = slots
        self._lanes = np.frombuffer(_mapped(lanes_fd, cpus * LANE.itemsize), LANE, cpus)
        self._records = np.frombuffer(_mapped(slots_fd, cpus * slots * EVENT.itemsize), EVENT, cpus * slots).reshape(cpus, slots)
        self._records["header"] = EVENT.itemsize - RING_HEADER_BYTES

    def sent(self) -> int:
        """Return the number of records written so far, on all CPUs."""
        return int(self._lanes["head"].sum())

    def pending(self) -> int:
        """Return the number of written records that `take` has not yielded yet."""
        return int((self._lanes["head"] - self._lanes["tail"]).sum())

    def take(self) -> Iterator[NDArray[np.void]]:
        """Yield views of the pending records, in order for each CPU. A view is valid until the next one is requested."""
        for lane, records in zip(self._lanes, self._records, strict=True):
            head, tail = int(lane["head"]), int(lane["tail"])
            while tail < head:
                begin = tail & (self._slots - 1)
                count = min(head - tail, self._slots - begin)
                yield records[begin : begin + count]
                tail += count
                lane["tail"] = tail

    def close(self) -> None:
        """Release the lanes; they are unmapped when their last view is deleted."""
        del self._lanes, self._records


def _mapped(fd: int, size_bytes: int) -> mmap.mmap:
    whole_pages_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return mmap.mmap(fd, whole_pages_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
