"""Read files of consecutive records: raw binary, indexed binary, TFRecord; and images, which are one record each.

Images are not decoded: `reader.preprocess_time` stands for the computation of decoding.
"""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.readers.access import Opener, check_within, damaged
from iotwin.benchmark.emulator.readers.sample import Sample, check_member
from iotwin.datagen.formats.tfrecord import FRAME_BYTES, HEAD_BYTES

_INDICES_KEPT = 64  # number of files whose record offsets and sizes a reader caches, 16 bytes for each record
_SCAN_BYTES = 1 << 18  # the buffer size of TensorFlow's record reader
# First and last bytes of each kind of file: ITU-T T.81 (SOI, EOI) and RFC 2083 (signature, IEND chunk).
_EDGES = {
    "JPEG": (b"\xff\xd8\xff", b"\xff\xd9"),
    "PNG": (b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"),
}


class Raw:
    """Reads records of `record_bytes` bytes. None: the file is divided into as many equal records as it should hold.

    `read_run` reads consecutive records by one read, as the DLRM job reads a batch of Criteo's samples.
    """

    def __init__(self, opener: Opener, record_bytes: int | None = None) -> None:
        self._open, self._record_bytes = opener, record_bytes

    def read(self, path: str, sample: int, samples: int) -> Sample:
        return self.read_run(path, sample, 1, samples)

    def read_run(self, path: str, first: int, count: int, samples: int) -> Sample:
        """Return `count` records from index `first` on, by one read."""
        with self._open(path) as file:
            record_bytes = self._record_bytes or file.size_bytes // samples
            if self._record_bytes is None and file.size_bytes != record_bytes * samples:
                raise damaged(path, f"its {file.size_bytes} bytes are no {samples} samples of equal length")
            return Sample(file.read(first * record_bytes, count * record_bytes), count * record_bytes)


class _Indices:
    """Caches the record offsets and sizes of the most recently read files."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, NDArray[np.int64]] = OrderedDict()

    def of(self, path: str, load: Callable[[str], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return (offset, size) of every record of the file, shape (records, 2): from the cache, or else by `load`."""
        if path not in self._kept:
            self._kept[path] = load(path)
            if len(self._kept) > _INDICES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(path)
        return self._kept[path]


class Indexed:
    """Reads Megatron's indexed binary files: the offsets in `.off.idx` and the sizes in `.sz.idx` once, then record by record."""

    def __init__(self, opener: Opener) -> None:
        self._open, self._indices = opener, _Indices()

    def read(self, path: str, sample: int, samples: int) -> Sample:
        index = self._indices.of(path, self._load)
        check_member(path, sample, len(index))
        offset, size_bytes = index[sample].tolist()
        with self._open(path) as file:
            return Sample(file.read(offset, size_bytes), size_bytes)

    def _load(self, path: str) -> NDArray[np.int64]:
        columns = []
        for name in (f"{path}.off.idx", f"{path}.sz.idx"):
            with self._open(name) as file:
                if file.size_bytes % 8:
                    raise damaged(name, f"its {file.size_bytes} bytes are no 8-byte numbers")
                columns.append(np.frombuffer(file.read(0, file.size_bytes), "<i8").copy())
        if len(columns[0]) != len(columns[1]):
            raise damaged(f"{path}.sz.idx", f"has {len(columns[1])} sizes for {len(columns[0])} offsets")
        if len(columns[0]) and min(column.min() for column in columns) < 0:
            raise damaged(f"{path}.off.idx", "has negative offsets or sizes")
        return np.stack(columns, axis=1)


class TfRecord:
    """Reads TFRecord files sample by sample: once a scan of the file for the frames, then one read for each record.

    A file with one sample is read whole. For jobs that stream TFRecords, see `benchmark.emulator.loaders.record_stream`.
    """

    def __init__(self, opener: Opener) -> None:
        self._open, self._indices = opener, _Indices()

    def read(self, path: str, sample: int, samples: int) -> Sample:
        if samples == 1:
            with self._open(path) as file:
                content = file.read(0, file.size_bytes)
                (first, *_) = frames(path, content, 0, file.size_bytes)[0] or [(0, 0)]
                check_member(path, sample, int(file.size_bytes > 0))
                return Sample(content[first[0] : first[0] + first[1]], file.size_bytes)
        index = self._indices.of(path, self._scan)
        check_member(path, sample, len(index))
        offset, size_bytes = index[sample].tolist()
        with self._open(path) as file:
            frame = file.read(offset - HEAD_BYTES, size_bytes + FRAME_BYTES)
            return Sample(frame[HEAD_BYTES : HEAD_BYTES + size_bytes], len(frame))

    def _scan(self, path: str) -> NDArray[np.int64]:
        """Return (offset, size) of every record, shape (records, 2), by reading the file once."""
        found: list[tuple[int, int]] = []
        offset = 0
        with self._open(path) as file:
            while offset < file.size_bytes:
                block = file.read(offset, min(_SCAN_BYTES, file.size_bytes - offset))
                records, offset = frames(path, block, offset, file.size_bytes)
                found += records
        return np.array(found, np.int64).reshape(-1, 2)


def frames(path: str, block: memoryview, start: int, file_bytes: int) -> tuple[list[tuple[int, int]], int]:
    """Return (offset, size) in the file of the records whose frames begin in `block`, and the offset of the next frame.

    `block` has the bytes of the file at `path` from `start` on, where a frame begins. Raises IotwinError if a record would end
    after the end of the file.
    """
    records = []
    offset = start
    while offset + HEAD_BYTES <= start + len(block):
        size_bytes = int.from_bytes(block[offset - start : offset - start + 8], "little")
        check_within(path, file_bytes, offset, size_bytes + FRAME_BYTES)
        records.append((offset + HEAD_BYTES, size_bytes))
        offset += size_bytes + FRAME_BYTES
    if not records:
        raise damaged(path, f"ends in the middle of the record at {offset}")
    return records, offset


class Image:
    """Reads a whole image file by one read."""

    def __init__(self, opener: Opener, kind: str) -> None:
        self._open, self._kind = opener, kind
        self._head, self._tail = _EDGES[kind]

    def read(self, path: str, sample: int, samples: int) -> Sample:
        check_member(path, sample, 1)
        with self._open(path) as file:
            content = file.read(0, file.size_bytes)
            if content[: len(self._head)] != self._head or content[-len(self._tail) :] != self._tail:
                raise damaged(path, f"not a whole {self._kind} image")
            return Sample(content, file.size_bytes)
