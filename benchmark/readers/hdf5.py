"""The reader of HDF5 files: one row of the dataset `records_0`, or of each dataset that a record is split into."""

import math
from typing import Any

import numpy as np

from benchmark.readers.access import Buffered, Opener, Stream, damaged, scratch, unreadable
from benchmark.readers.sample import Sample, check_member
from tracing_tools.trace.errors import IotwinError


class Hdf5:
    """Reads by the HDF5 library, which opens the file itself or, where another access is asked for, reads through `opener`."""

    def __init__(self, opener: Opener, datasets: int = 1) -> None:
        try:
            import h5py
        except ImportError:
            raise IotwinError("dataset.format hdf5 needs h5py; install it with: pip install 'iotwin[hdf5]'") from None
        self._open, self._h5py_file = opener, h5py.File
        self._names = [f"records_{number}" for number in range(datasets)]

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return row `sample` of the file's records; IotwinError, naming it, when it is not whole."""
        if self._open is Buffered:
            row = self._row(path, path, sample)
            return Sample(row, row.nbytes)
        with self._open(path) as file, Stream(file) as stream:
            return Sample(self._row(path, stream, sample), stream.read_bytes)

    def _row(self, path: str, source: "str | Stream", sample: int) -> Any:
        try:
            with self._h5py_file(source, "r") as file:
                parts = [file[name] for name in self._names]
                rows, *shape = parts[0].shape
                check_member(path, sample, rows)
                if len(parts) > 1:
                    shape[0] = sum(part.shape[1] for part in parts)
                row_bytes = math.prod(shape) * parts[0].dtype.itemsize
                # A stream reads into the scratch memory itself.
                memory = scratch(row_bytes) if isinstance(source, str) else bytearray(row_bytes)
                row = np.frombuffer(memory, parts[0].dtype).reshape(shape)
                places = [row] if len(parts) == 1 else np.split(row, np.cumsum([part.shape[1] for part in parts])[:-1])
                for part, place in zip(parts, places, strict=True):
                    part.read_direct(place, np.s_[sample])
                return row
        except IotwinError:
            raise
        except OSError as error:
            raise (unreadable(path, error) if error.strerror else damaged(path, f"not a whole HDF5 file ({error})")) from None
        except Exception as error:  # h5py raises KeyError, ValueError and RuntimeError from what is damaged
            raise damaged(path, f"not a whole HDF5 file with {' and '.join(self._names)} ({error})") from None
