"""Saves values to a file and reads them back, past the page cache: an alternative to keeping a value or computing it again."""

import mmap
import os
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import torch
from torch import UntypedStorage

from iotwin.common.direct_io import write_direct
from iotwin.common.errors import UsageError
from iotwin.common.progress import note

_BLOCK_BYTES = 4096  # offsets in the file and sizes of direct reads and writes are multiples of it
_PIECE_BYTES = 1 << 20  # size of one read or write
_PROBES = 4  # pieces that are written and read at the beginning, to learn how fast the storage is


class SavedCopy:
    """The bytes of a value in the file. When nothing refers to this object any more, its part of the file can be used again."""

    def __init__(self, file: "OffloadFile", offset: int, size: int) -> None:
        self._file, self._offset, self.size = file, offset, size

    def read(self, device: torch.device) -> UntypedStorage:
        """Return a new storage with these bytes."""
        return self._file.read(self._offset, self.size, device)

    def __del__(self) -> None:
        self._file.free(self._offset, self.size)


class OffloadFile:
    """A file without a name in `folder`. Raises UsageError if it cannot be created or written there."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open until the object ends
        except OSError as error:
            raise UsageError(f"{folder} cannot hold evicted tensors: {error.strerror}") from None
        self._buffer = mmap.mmap(-1, _PIECE_BYTES)  # begins at a page, as direct reads and writes must
        self._piece = torch.frombuffer(self._buffer, dtype=torch.uint8)
        self._end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # offsets of unused ranges of the file, by size
        self._full = False
        self.written_bytes = self.read_bytes = 0
        self.write_ns = self.read_ns = 0
        for _ in range(_PROBES):
            copy = self.save(UntypedStorage(_PIECE_BYTES))
            if copy is None:
                raise UsageError(f"{folder} cannot hold evicted tensors: its file system is full or refuses them")
            copy.read(torch.device("cpu"))
        self._probed = (self.written_bytes, self.read_bytes)

    def save_ns(self, size: int) -> float:
        """Return how long it takes to save `size` bytes, by the mean speed so far."""
        return size * self.write_ns / self.written_bytes

    def load_ns(self, size: int) -> float:
        """Return how long it takes to read `size` bytes back, by the mean speed so far."""
        return size * self.read_ns / self.read_bytes

    @property
    def traffic_bytes(self) -> tuple[int, int]:
        """Return (bytes written, bytes read), without those of the measurement at the beginning."""
        return self.written_bytes - self._probed[0], self.read_bytes - self._probed[1]

    def save(self, storage: UntypedStorage) -> SavedCopy | None:
        """Save the bytes of a storage. Return None if they could not be written; nothing is saved from then on."""
        if self._full:
            return None
        begin, size = perf_counter_ns(), storage.nbytes()
        source = _bytes_of(storage)
        offset = self._take(size)
        try:
            for start in range(0, size, _PIECE_BYTES):
                piece = source[start : start + _PIECE_BYTES]
                self._piece[: len(piece)].copy_(piece)
                self._write(offset + start, _whole_blocks(len(piece)))
        except OSError as error:
            self._full = True
            note(f"evicted tensors are computed again, not saved: {error.strerror}")
            return None
        self.written_bytes += size
        self.write_ns += perf_counter_ns() - begin
        return SavedCopy(self, offset, size)

    def _write(self, offset: int, length: int) -> None:
        with memoryview(self._buffer) as buffer:
            done = 0
            while done < length:
                with buffer[done:length] as rest:
                    write = partial(os.pwrite, self._file.fileno(), rest, offset + done)
                    done += write_direct(self._file.fileno(), True, write)[0]

    def read(self, offset: int, size: int, device: torch.device) -> UntypedStorage:
        """Return a new storage on `device` with `size` bytes of the file. Raises OSError if they cannot be read."""
        begin = perf_counter_ns()
        storage = UntypedStorage(size, device=device)
        target = _bytes_of(storage)
        for start in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - start)
            self._read(offset + start, _whole_blocks(length))
            target[start : start + length].copy_(self._piece[:length])
        self.read_bytes += size
        self.read_ns += perf_counter_ns() - begin
        return storage

    def _read(self, offset: int, length: int) -> None:
        with memoryview(self._buffer) as buffer:
            done = 0
            while done < length:
                with buffer[done:length] as rest:
                    got = os.preadv(self._file.fileno(), [rest], offset + done)
                if not got:
                    raise OSError(0, "the file of evicted tensors is shorter than what was written")
                done += got

    def _take(self, size: int) -> int:
        """Return the offset of an unused range of `size` bytes."""
        places = self._free[_whole_blocks(size)]
        if places:
            return places.pop()
        offset, self._end = self._end, self._end + _whole_blocks(size)
        return offset

    def free(self, offset: int, size: int) -> None:
        """Note that the bytes at `offset` are no longer needed."""
        self._free[_whole_blocks(size)].append(offset)


def _whole_blocks(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _bytes_of(storage: UntypedStorage) -> torch.Tensor:
    """Return a tensor of the storage's bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
