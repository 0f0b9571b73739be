"""The lanes: one buffer of fixed-size records for every CPU, mapped into this process and taken over in bulk.

Mirror of struct lane and struct slot in tracing_tools/probes/records.h. A lane's program is its only writer and this process
its only reader, so head and tail are all they need; x86-64 keeps the order of stores that this relies on. What does not fit in a
lane goes into the ring buffer, so a lane loses nothing.
"""

import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tracing_tools.trace.raw.records import EVENT, RING_HEADER_BYTES

LANE = np.dtype(
    [
        ("head", "<u8"),
        ("busy", "<u8"),
        ("padding", "<u8", 6),
        ("tail", "<u8"),
        ("more_padding", "<u8", 7),
    ]
)


class Lanes:
    """Reader of the lanes of `cpus` CPUs with `slots` (a power of two) records each; `lanes_fd` and `slots_fd` are their maps."""

    def __init__(self, lanes_fd: int, slots_fd: int, cpus: int, slots: int) -> None:
        self._slots = slots
        self._lanes_map = mmap.mmap(lanes_fd, _pages(cpus * LANE.itemsize), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._slots_map = mmap.mmap(
            slots_fd, _pages(cpus * slots * EVENT.itemsize), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._lanes = np.frombuffer(self._lanes_map, LANE, cpus)
        self._records = np.frombuffer(self._slots_map, EVENT, cpus * slots).reshape(cpus, slots)
        self._records["header"] = EVENT.itemsize - RING_HEADER_BYTES

    def sent(self) -> int:
        """Records written so far, on all CPUs."""
        return int(self._lanes["head"].sum())

    def pending(self) -> int:
        """Records written and not yet consumed."""
        return int((self._lanes["head"] - self._lanes["tail"]).sum())

    def take(self) -> Iterator[NDArray[np.void]]:
        """Yield views of the pending records, in order within a CPU; each is given back when the next is asked for."""
        for lane, records in zip(self._lanes, self._records, strict=True):
            head, tail = int(lane["head"]), int(lane["tail"])
            while tail < head:
                begin = tail & (self._slots - 1)
                count = min(head - tail, self._slots - begin)
                yield records[begin : begin + count]
                tail += count
                lane["tail"] = tail

    def close(self) -> None:
        """Let go of the lanes; they are unmapped when the last view handed out is gone."""
        del self._lanes, self._records, self._lanes_map, self._slots_map


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
