"""Read a BPF ring buffer that is mapped into this process, in bulk: no Python code runs per record.

Layout (kernel/bpf/ringbuf.c): a page with the consumer's position, a page with the producer's position, then the data. The data
are mapped twice in a row, so that a record that wraps is contiguous. A header of 8 bytes precedes each record: its length with a
busy bit (still being written) and a discard bit, and a word that only the kernel uses. The code requires that loads are not
reordered, as on x86-64.
"""

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Sizes of the probes' ring buffers, as in outlets.h, block.h and cuda.bpf.c. Backends may choose another size for the events.
EVENTS_BYTES = 1 << 24
NAMES_BYTES = 1 << 22
BLOCKS_BYTES = 1 << 21
GPU_CALLS_BYTES = 1 << 22
MAPPERS_BYTES = 1 << 16
_BUSY = 1 << 31
_DISCARD = 1 << 30
_HEADER_BYTES = 8


class RingBuffer:
    """Reader of a ring buffer of `size_bytes`, a power of two. `fd`: file descriptor of the buffer's eBPF map."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.size_bytes = size_bytes
        self._consumer_map = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._data_map = mmap.mmap(fd, page + 2 * size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._consumer = np.frombuffer(self._consumer_map, np.uint64, 1)
        self._producer = np.frombuffer(self._data_map, np.uint64, 1)
        self._data = np.frombuffer(self._data_map, np.uint8, offset=page)

    def pending_bytes(self) -> int:
        """Return the number of bytes, headers included, that the kernel has written and `consume` has not freed."""
        return int(self._producer[0]) - int(self._consumer[0])

    def fixed_records(self, record: np.dtype[np.void]) -> NDArray[np.void]:
        """Return a view of the finished records of type `record`, header included. Save the records, then call `consume`.

        The view ends before a record that is still being written or was discarded. The next call skips discarded records.
        """
        length = record.itemsize - _HEADER_BYTES
        while True:
            begin = int(self._consumer[0]) & (self.size_bytes - 1)
            count = self.pending_bytes() // record.itemsize
            records = self._data[begin : begin + count * record.itemsize].view(record)
            others = np.flatnonzero(records["header"] != length)
            if len(others) == 0:
                return records
            if others[0] or records["header"][0] != length | _DISCARD:
                return records[: others[0]]
            self.consume(record.itemsize)

    def variable_records(self) -> NDArray[np.uint8]:
        """Return a view of the bytes of finished and discarded records, each with its header and padded to 8 bytes."""
        begin = int(self._consumer[0]) & (self.size_bytes - 1)
        end, limit = begin, begin + self.pending_bytes()
        while end < limit:
            header = int(self._data[end : end + 4].view(np.uint32)[0])
            if header & _BUSY:
                break
            end += _HEADER_BYTES + ((header & ~_DISCARD) + 7) // 8 * 8
        return self._data[begin:end]

    def consume(self, size_bytes: int) -> None:
        """Let the kernel reuse the first `size_bytes` of the pending bytes. Earlier views become invalid."""
        self._consumer[0] += np.uint64(size_bytes)

    def move_records(self, record: np.dtype[np.void], append: Callable[[NDArray[np.void]], object]) -> int:
        """Pass all finished records of type `record` to `append`, even if there are none. Then free them; return their bytes."""
        records = self.fixed_records(record)
        append(records)
        self.consume(records.nbytes)
        return records.nbytes

    def move_names(self, append: Callable[[memoryview], object]) -> None:
        """Pass the bytes of all finished records, which vary in length, to `append`, and free the records."""
        content = self.variable_records()
        if len(content):
            append(content.data)
            self.consume(len(content))

    def close(self) -> None:
        """Release the buffer. It is unmapped when its last view is deleted."""
        del self._consumer, self._producer, self._data, self._consumer_map, self._data_map
