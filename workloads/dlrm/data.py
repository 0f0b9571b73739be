"""Reads batches of Criteo Terabyte's binary form, each by one seek and one read, in the order of the file or shuffled."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workloads.common.parts import Parts

_ORDER = 0xD12A  # the order of batches is seeded by this constant, the job's seed and the number of the pass over the file


class Batch(NamedTuple):
    """The model's input for n samples."""

    dense: NDArray[np.float32]  # log(1 + x) of the 13 numbers x of each sample, shape (n, 13)
    categories: NDArray[np.int64]  # row in each of the 26 embedding tables, shape (26, n)
    labels: NDArray[np.float32]  # 1 for a click, else 0; shape (n,)


class BatchFile:
    """Reads one .bin file, a batch at a time. Raises IotwinError if the file is missing, cut off or smaller than a batch.

    The logged names of parts of steps begin with `prefix`.
    """

    def __init__(self, path: Path, batch_size: int, parts: Parts, prefix: str = "") -> None:
        self._path, self._parts, self._prefix = path, parts, prefix
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise IotwinError(
                f"{path}: {error.strerror}; make a data set with: iotwin generate dlrm -o {path.parent} --size 1GiB"
            ) from None
        size_bytes = os.fstat(self._descriptor).st_size
        samples, rest = divmod(size_bytes, DlrmLayout.SAMPLE_BYTES)
        if rest:
            raise self._unusable(f"is cut off: {size_bytes} bytes are no whole number of samples; generate the data set again")
        self._batch_bytes = batch_size * DlrmLayout.SAMPLE_BYTES
        self.batches = samples // batch_size
        if not self.batches:
            raise self._unusable(f"holds {counted(samples, 'sample')}, too few for one batch of {batch_size}; generate more data")

    def _unusable(self, reason: str) -> IotwinError:
        self.close()
        return IotwinError(f"{self._path} {reason}")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def read(self, number: int, most_categories: int) -> Batch:
        """Read and preprocess batch `number`, which counts from 0. Category numbers are taken modulo `most_categories`."""
        with self._parts.measure(f"{self._prefix}batch_load", batch_num=number):
            content = self._read_bytes(number)
        with self._parts.measure(f"{self._prefix}batch_preproc", batch_num=number):
            return preprocess(np.frombuffer(content, DlrmLayout.DTYPE).reshape(-1, DlrmLayout.COLUMNS), most_categories)

    def _read_bytes(self, number: int) -> bytes:
        os.lseek(self._descriptor, number * self._batch_bytes, os.SEEK_SET)
        content = os.read(self._descriptor, self._batch_bytes)
        while len(content) < self._batch_bytes:  # a call reads at most 2 GiB and may read less
            more = os.read(self._descriptor, self._batch_bytes - len(content))
            if not more:
                raise IotwinError(f"{self._path} became shorter while it was read; generate the data set again")
            content += more
        return content


def preprocess(samples: NDArray[np.int32], most_categories: int) -> Batch:
    """Return the batch of `samples` (n, 40) as MLPerf's job prepares it: log(1 + dense), categories modulo `most_categories`."""
    dense = np.log1p(np.maximum(samples[:, 1 : 1 + DlrmLayout.DENSE], 0).astype(np.float32))
    categories = samples[:, 1 + DlrmLayout.DENSE :].astype(np.int64) % table_rows(most_categories)
    return Batch(dense, np.ascontiguousarray(categories.T), samples[:, 0].astype(np.float32))


def table_rows(most_categories: int) -> NDArray[np.int64]:
    """Return the number of rows of each of the 26 embedding tables."""
    return np.minimum(DlrmLayout.CATEGORIES, most_categories).astype(np.int64)


def batch_order(batches: int, steps: int, shuffle: bool, seed: int) -> Iterator[int]:
    """Yield the batch index of each of `steps` steps: pass after pass over the file's `batches`, reshuffled each if `shuffle`."""
    for first in range(0, steps, batches):
        count = min(batches, steps - first)
        if shuffle:
            yield from np.random.default_rng((seed, _ORDER, first // batches)).permutation(batches)[:count].tolist()
        else:
            yield from range(count)
