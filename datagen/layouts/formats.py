"""The layout of files with records of random bytes in one of several formats, as DLIO generates them."""

import math
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import UsageError, nearest
from iotwin.common.numbers.element_types import element_type
from iotwin.common.paths_below import stays_within
from iotwin.common.units import counted
from iotwin.datagen import jpeg
from iotwin.datagen.layouts.base import LARGEST_FILE_BYTES, PlannedPiece
from iotwin.datagen.record_sizes import SizeDistribution, record_sizes


class FormatLayout(msgspec.Struct, frozen=True):
    """Files of one format with records of random bytes, named as DLIO names them: `train/img_00_of_32.npz`.

    A data set of N samples has N / samples_per_file training files in train/ and `evaluation_files` more in valid/. All records
    of a file have the same size. Over the files, sizes are constant, normal, lognormal, or distributed as `histogram` (size in
    bytes, weight). If `record_dims` is given, all records have that shape.
    """

    format: str = "npz"
    samples_per_file: int = 1
    record_bytes: int = 65536  # mean size
    record_stdev_bytes: int = 0
    distribution: str = "normal"  # normal or lognormal; without effect if record_stdev_bytes is 0
    histogram: tuple[tuple[int, float], ...] = ()
    record_dims: tuple[int, ...] = ()
    dtype: str = "uint8"
    train_folders: int = 0
    evaluation_folders: int = 0
    evaluation_files: int = 0
    prefix: str = "img"
    compression: str = "none"
    compression_level: int = 4
    chunk_dims: tuple[int, ...] = ()  # hdf5: shape of a chunk; () means not chunked
    max_shape: tuple[int, ...] = ()  # hdf5: shape to which a record's data sets may grow; () means that they may not
    datasets: int = 1  # hdf5: number of data sets that each record is split into along its first dimension
    columns: tuple[tuple[str, str, int], ...] = ()  # parquet: (name, element type, elements); () means record and label
    row_group_rows: int = 0  # parquet: number of rows of a row group; 0 means about half a mebibyte
    entropy: float = 1.0  # share of a file's bytes that are incompressible
    dedup: float = 0.0  # share of a file's extents that repeat extents of a pool that all files share

    workload: ClassVar[str] = "format"
    exact: ClassVar[bool] = False
    # The possible compressions of each format.
    FORMATS: ClassVar[dict[str, tuple[str, ...]]] = {
        "npy": (), "npz": ("zip",), "hdf5": ("gzip", "lzf"), "tfrecord": (), "csv": ("gzip", "bz2", "xz"), "parquet": ("gzip",),
        "jpeg": (), "png": (), "indexed_binary": (), "mmap_indexed_binary": (), "bin": (),
    }  # fmt: skip
    IMAGES: ClassVar[tuple[str, ...]] = ("jpeg", "png")
    SUFFIXES: ClassVar[dict[str, str]] = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz"}  # suffixes of compressed csv files
    UNIT_BYTES: ClassVar[int] = 32 << 20  # total size of the small files that one unit writes

    def __post_init__(self) -> None:
        """Raise UsageError if no writer supports the combination of values."""
        formats = list(self.FORMATS)
        if self.format not in formats:
            raise UsageError(f"unknown format {self.format!r}{nearest(self.format, formats)}; known: {', '.join(formats)}")
        compressions = ("none", *self.FORMATS[self.format])
        if self.compression not in compressions:
            raise UsageError(
                f"{self.format} cannot have the compression '{self.compression}'; it knows {', '.join(compressions)}"
            )
        if self.distribution not in ("normal", "lognormal"):
            raise UsageError(f"unknown distribution '{self.distribution}' of record sizes; known: normal, lognormal")
        element = element_type(self.dtype)
        if element is None:
            raise UsageError(f"unknown element type {self.dtype!r}; give a numpy type such as uint8 or float32")
        if "/" in self.prefix or not stays_within(self.prefix or "_"):
            raise UsageError(f"file_prefix {self.prefix!r} is the beginning of a file's name; it holds no slash")
        if element.kind not in "biufc":
            raise UsageError(f"element type '{self.dtype}' is no number; give a numpy type such as uint8 or float32")
        if self.format in self.IMAGES and len(self.record_dims) > 2:
            given = f"more than 2 dimensions, but got {len(self.record_dims)} dimensions."  # in DLIO's words
            raise UsageError(f"{self.format} format does not support {given} Give two, or choose npy")
        if self.format in self.IMAGES and (element != np.uint8 or self.samples_per_file > 1):
            raise UsageError(f"a {self.format} file holds one uint8 image of two dimensions; change the format or the record")
        if self.format == "jpeg" and max(self.record_dims, default=math.isqrt(self.record_bytes)) > jpeg.LONGEST_SIDE:
            raise UsageError(f"a jpeg has at most {jpeg.LONGEST_SIDE} pixels along a side; choose png or smaller records")
        if element.char in "gG":
            raise UsageError(f"element type '{self.dtype}' has other bytes on other machines; give float64 or complex128")
        self._check_numbers()

    def _check_numbers(self) -> None:
        for what, value, least in (
            ("number of samples per file", self.samples_per_file, 1),
            ("record length", self.record_bytes, 1),
            ("standard deviation of the record length", self.record_stdev_bytes, 0),
            ("number of evaluation files", self.evaluation_files, 0),
            ("number of sub-folders", min(self.train_folders, self.evaluation_folders), 0),
            ("record dimension", min(self.record_dims, default=1), 1),
            ("chunk dimension", min(self.chunk_dims, default=1), 1),
            ("number of datasets of a record", self.datasets, 1),
            ("number of rows of a row group", self.row_group_rows, 0),
            ("size in the histogram", min((size for size, _ in self.histogram), default=1), 1),
        ):
            if value < least:
                raise UsageError(f"the {what} is {value}; it must be at least {least}")
        dims = math.prod(self.record_dims) * np.dtype(self.dtype).itemsize if self.record_dims else 0
        largest = max(dims, self.record_bytes, self.record_stdev_bytes, *(size for size, _ in self.histogram))
        if largest * self.samples_per_file > LARGEST_FILE_BYTES:
            raise UsageError(
                f"files of {counted(self.samples_per_file, 'record')} of {largest} bytes are larger than any file "
                "system's; ask for less"
            )
        if not 0 <= self.compression_level <= 9:
            raise UsageError(f"the compression level is {self.compression_level}; give one from 0 (fast) to 9 (small)")
        dimensions = len(self.record_dims) or 2
        for key, extents in (("chunk_dims", self.chunk_dims), ("max_shape", self.max_shape)):
            if extents and len(extents) != dimensions:
                raise UsageError(f"{key} {list(extents)} do not fit records of {dimensions} dimensions; give as many")
        lines, *others = self.record_shape(self.record_bytes)
        if self.max_shape and any(
            most < size for most, size in zip(self.max_shape, (lines // self.datasets, *others), strict=True)
        ):
            raise UsageError(f"max_shape {list(self.max_shape)} is less than a record's dimensions; raise it or leave it out")
        if self.record_dims and self.record_dims[0] % self.datasets:
            raise UsageError(f"records of {self.record_dims[0]} lines cannot be split evenly into {self.datasets} datasets")
        if not (0 <= self.entropy <= 1 and 0 <= self.dedup <= 1):
            raise UsageError(f"entropy {self.entropy} and dedup {self.dedup} are shares; give numbers from 0 to 1")
        if self.record_stdev_bytes > 2 * self.record_bytes:
            raise UsageError("the standard deviation of the record length is over twice its mean; give the sizes as a histogram")

    def files(self, samples: int) -> tuple[int, int]:
        """Return (number of training files, of evaluation files). Raises UsageError if `samples` do not fill whole files."""
        if samples % self.samples_per_file:
            raise UsageError(f"{counted(samples, 'sample')} cannot fill files of {self.samples_per_file}; ask for a multiple")
        return samples // self.samples_per_file, self.evaluation_files

    def record_sizes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the intended record size in bytes of each file, training files first; shape (files,)."""
        sizes = SizeDistribution(self.record_bytes, self.record_stdev_bytes, self.distribution, self.histogram)
        return record_sizes(sizes, sum(self.files(samples)), seed)

    def record_shape(self, record_bytes: int) -> tuple[int, ...]:
        """Return the shape of a record of about `record_bytes` bytes: `record_dims`, or two nearly equal dimensions.

        The first dimension is a multiple of `datasets`. The sides of a jpeg are multiples of 8, so that it has no padding.
        """
        if self.record_dims:
            return self.record_dims
        elements = max(1, record_bytes // np.dtype(self.dtype).itemsize)
        column_step = jpeg.BLOCK_SIDE if self.format == "jpeg" else 1
        row_step = column_step * self.datasets
        rows = max(1, math.isqrt(elements) // row_step) * row_step
        return rows, max(1, round(elements / rows / column_step)) * column_step

    def file_name(self, samples: int, index: int) -> str:
        """Return the name of the file at index `index`. Training files precede evaluation files."""
        train, evaluation = self.files(samples)
        folder, count, folders = ("train", train, self.train_folders)
        if index >= train:
            folder, count, folders, index = "valid", evaluation, self.evaluation_folders, index - train
        below = f"{index % folders:0{len(str(folders))}d}/" if folders > 1 else ""
        suffix = self.format + (self.SUFFIXES.get(self.compression, "") if self.format == "csv" else "")
        return f"{folder}/{below}{self.prefix}_{index:0{len(str(count))}d}_of_{count}.{suffix}"

    def index_names(self, samples: int, index: int) -> list[str]:
        """Return the names of the index files that belong to the file at index `index`."""
        name = self.file_name(samples, index)
        if self.format == "tfrecord":
            return [f"index/{name.split('/')[0]}/{name.rsplit('/', 1)[-1]}.idx"]
        return [f"{name}.off.idx", f"{name}.sz.idx"] if self.format.endswith("indexed_binary") else []

    def unit_files(self, samples: int, unit: int) -> range:
        """Return the indices of the files that belong to the unit `unit`."""
        each = self._files_per_unit()
        return range(unit * each, min((unit + 1) * each, sum(self.files(samples))))

    def _files_per_unit(self) -> int:
        mean = self.record_bytes if not self.record_dims else math.prod(self.record_dims) * np.dtype(self.dtype).itemsize
        return max(1, self.UNIT_BYTES // (mean * self.samples_per_file))

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the files of unit `unit` with their approximate sizes."""
        sizes = self._file_bytes(samples, seed)
        pieces = []
        for index in self.unit_files(samples, unit):
            pieces.append(PlannedPiece(self.file_name(samples, index), int(sizes[index])))
            pieces += [PlannedPiece(name, 8 * self.samples_per_file) for name in self.index_names(samples, index)]
        return pieces

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the approximate size of every unit in bytes, without index files."""
        sizes = self._file_bytes(samples, seed)
        return np.add.reduceat(sizes, np.arange(0, len(sizes), self._files_per_unit()))

    def _file_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        element_bytes = np.dtype(self.dtype).itemsize
        if self.record_dims:
            records = np.full(sum(self.files(samples)), math.prod(self.record_dims) * element_bytes)
        else:
            records = self.record_sizes(samples, seed)
        if self.format == "jpeg" and self.record_dims:
            records = np.full(len(records), jpeg.padded_pixels(*(1, *self.record_dims)[-2:]))
        contents = records * self.samples_per_file
        if self.format == "csv":
            # A byte takes 2.57 digits on average, and a comma. The header line has the columns' numbers.
            columns = records / element_bytes
            contents = contents * (3.57 if element_bytes == 1 else 4.0) + columns * (np.log10(columns) + 1)
        return contents.astype(np.int64) + 128

    def file_count(self, samples: int) -> int:
        """Return the number of files, including index files."""
        return sum(self.files(samples)) * (1 + len(self.index_names(self.samples_per_file, 0)))

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return the approximate number of samples, in whole files, that fit into `size_bytes` with the evaluation files."""
        mean = float(self._file_bytes(min(1000, max(1, size_bytes)) * self.samples_per_file, seed).mean())
        return max(0, int(size_bytes / mean) - self.evaluation_files) * self.samples_per_file
