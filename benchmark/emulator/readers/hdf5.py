"""Read HDF5 files: one row of the data set `records_0`, or of each data set that a record is split into."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from iotwin.benchmark.emulator.readers.access import Buffered, Opener, ReadStream, damaged, scratch, unreadable
from iotwin.benchmark.emulator.readers.sample import Sample, check_member
from iotwin.common.errors import IotwinError


class Hdf5Reader:
    """Reads by the HDF5 library, which opens the file itself or, if the access is not buffered, reads through `opener`."""

    def __init__(self, opener: Opener, datasets: int = 1, dims: Sequence[int] = ()) -> None:
        try:
            import h5py
        except ImportError:
            raise IotwinError("dataset.format hdf5 needs h5py; install it with: pip install 'iotwin[hdf5]'") from None
        self._open, self._h5py_file = opener, h5py.File
        self._names = [f"records_{index}" for index in range(datasets)]
        self._dims = tuple(dims)

    def read(self, path: str, sample: int, samples: int) -> Sample:
        if self._open is Buffered:
            row = self._row(path, path, sample)
            return Sample(row, row.nbytes)
        with self._open(path) as file, ReadStream(file) as stream:
            return Sample(self._row(path, stream, sample), stream.read_bytes)

    def _part_shape(self, found: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a record's part in a data set of shape `found`, in which DLIO leaves out a first dimension of 1."""
        whole = (1, *self._dims[1:])
        return whole if found == whole[1:] and self._dims[:1] == (len(self._names),) else found

    def _row(self, path: str, source: "str | ReadStream", sample: int) -> Any:
        try:
            with self._h5py_file(source, "r") as file:
                parts = [file[name] for name in self._names]
                check_member(path, sample, parts[0].shape[0])
                shapes = [self._part_shape(part.shape[1:]) for part in parts]
                shape = (sum(lines for lines, *_ in shapes), *shapes[0][1:]) if shapes[0] else ()
                row_bytes = math.prod(shape) * parts[0].dtype.itemsize
                # Not scratch memory if the source is a stream, which reads into that.
                memory = scratch(row_bytes) if isinstance(source, str) else bytearray(row_bytes)
                row = np.frombuffer(memory, parts[0].dtype).reshape(shape)
                stretches = [row] if len(parts) == 1 else np.split(row, np.cumsum([lines for lines, *_ in shapes])[:-1])
                for part, stretch in zip(parts, stretches, strict=True):
                    part.read_direct(stretch.reshape(part.shape[1:]), np.s_[sample])
                return row
        except IotwinError:
            raise
        except OSError as error:
            raise (unreadable(path, error) if error.strerror else damaged(path, f"not a whole HDF5 file ({error})")) from None
        except Exception as error:  # h5py raises KeyError, ValueError and RuntimeError for damaged files
            raise damaged(path, f"not a whole HDF5 file with {' and '.join(self._names)} ({error})") from None
