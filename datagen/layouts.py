"""What the data sets of the workloads look like: file names, shapes, dtypes, bytes. The one place that says so.

A layout only describes; datagen/generate.py writes what it describes, benchmark/ and workloads/ read it.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from datagen import jpeg
from datagen.randomness import SHAPE, uniforms
from tracing_tools.trace.errors import IotwinError, UsageError, nearest

_CASE_IMAGE = re.compile(r"case_(\d{5,})_x\.npy")
_CASE_MASK = re.compile(r"case_(\d{5,})_y\.npy")


class PlannedPiece(NamedTuple):
    """A file of a data set, or a run of bytes of one, before it is written."""

    name: str  # of the file, relative to the data set's directory
    size_bytes: int
    offset: int = 0  # of the piece's first byte in the file
    file_bytes: int | None = None  # of the whole file where a file has several pieces; None when the piece is the file


class Layout(Protocol):
    """What every data set tells of itself; a unit is what one worker writes at one go, alone and in any order."""

    workload: ClassVar[str]
    exact: ClassVar[bool]  # whether planned sizes are exact, or close estimates of what content will come to

    @property
    def samples_per_file(self) -> int:
        """Samples must come in multiples of this: more than one only where files of a fixed number of samples are whole."""

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the bytes of every unit of a data set of `samples` samples."""

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return what unit `unit` writes."""

    def file_count(self, samples: int) -> int:
        """Return the number of files of a data set of `samples` samples."""

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many samples fit into `size_bytes`; 0 when none does."""


@dataclass(frozen=True, order=True)
class Case:
    """One unet3d sample on disk: an image volume and its mask."""

    index: int
    image: Path
    mask: Path


def npy_header(descr: str, shape: Sequence[int]) -> bytes:
    """Return the header of a version 1.0 .npy file in C order: `descr` as '<f4', padded to a multiple of 64 bytes.

    Source of the format: numpy.lib.format.
    """
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    padding = -(10 + len(text) + 1) % 64
    body = text.encode("latin1") + b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


class Unet3dLayout(msgspec.Struct, frozen=True):
    """KiTS19 after the workload's preprocessing: pairs `case_NNNNN_x.npy` (image) and `case_NNNNN_y.npy` (mask).

    Both have shape (1, D, H, W) with D uniform in [128, 471) and H = W uniform in [186, 444) voxels, each then
    multiplied by `scale` (never below MINIMUM_EXTENT). Images are float32 in [IMAGE_LOW, IMAGE_HIGH], masks uint8 with
    the classes of MASK_CLASSES. The ranges are those of the emulation of KiTS19 published with the paper artifact.
    `entropy` is the share of an image's voxels that are noise, which no compressor can save; the others are IMAGE_LOW, air.
    """

    scale: float = 1.0
    entropy: float = 1.0

    workload: ClassVar[str] = "unet3d"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = True
    IMAGE_DTYPE: ClassVar[str] = "<f4"
    MASK_DTYPE: ClassVar[str] = "|u1"
    IMAGE_LOW: ClassVar[float] = -2.340702
    IMAGE_HIGH: ClassVar[float] = 2.639792
    MASK_CLASSES: ClassVar[tuple[int, ...]] = (0, 1, 2)  # background, kidney, tumour
    DEPTHS: ClassVar[tuple[int, int]] = (128, 471)
    WIDTHS: ClassVar[tuple[int, int]] = (186, 444)
    MINIMUM_EXTENT: ClassVar[int] = 16
    EVALUATION_EVERY: ClassVar[int] = 5  # 42 of KiTS19's 210 cases are for evaluation

    def __post_init__(self) -> None:
        """Refuse a scale or an entropy no volume can have."""
        if not 0 < self.scale <= 16:
            raise UsageError(f"scale {self.scale} is out of range; give a factor above 0 and at most 16, for example 0.25")
        if not 0 <= self.entropy <= 1:
            raise UsageError(f"entropy {self.entropy} is a share; give a number from 0 to 1")

    def shape(self, seed: int, index: int) -> tuple[int, int, int, int]:
        """Return the (1, D, H, W) of case `index` of the data set made with `seed`."""
        depth, width = (
            max(self.MINIMUM_EXTENT, round((low + int(draw * (high - low))) * self.scale))
            for draw, (low, high) in zip(uniforms(seed, index, SHAPE, 2), (self.DEPTHS, self.WIDTHS), strict=True)
        )
        return 1, depth, width, width

    @staticmethod
    def case_names(index: int) -> tuple[str, str]:
        """Return the names of the image and the mask of case `index`."""
        return f"case_{index:05d}_x.npy", f"case_{index:05d}_y.npy"

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the files of case `unit`: one unit is one case."""
        shape = self.shape(seed, unit)
        voxels = shape[1] * shape[2] * shape[3]
        image, mask = self.case_names(unit)
        return [
            PlannedPiece(image, len(npy_header(self.IMAGE_DTYPE, shape)) + 4 * voxels),
            PlannedPiece(mask, len(npy_header(self.MASK_DTYPE, shape)) + voxels),
        ]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the bytes of each of the first `samples` cases, image and mask together."""
        pairs = (self.unit_pieces(samples, seed, index) for index in range(samples))
        return np.fromiter((image.size_bytes + mask.size_bytes for image, mask in pairs), np.int64, samples)

    def file_count(self, samples: int) -> int:
        """Return the number of files: an image and a mask per case."""
        return 2 * samples

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many cases, from index 0 on, fit whole into `size_bytes`."""
        samples = used_bytes = 0
        while True:
            used_bytes += sum(piece.size_bytes for piece in self.unit_pieces(samples + 1, seed, samples))
            if used_bytes > size_bytes:
                return samples
            samples += 1

    @staticmethod
    def discover(directory: Path) -> list[Case]:
        """Return the cases in `directory` by rising index; IotwinError when there are none or one lacks its other half."""
        if not directory.is_dir():
            raise IotwinError(f"{directory}: no such directory; make a data set with: iotwin generate unet3d -o {directory} ...")
        halves: list[dict[int, Path]] = [{}, {}]
        for path in directory.iterdir():
            for found, pattern in zip(halves, (_CASE_IMAGE, _CASE_MASK), strict=True):
                if match := pattern.fullmatch(path.name):
                    found[int(match[1])] = path
        images, masks = halves
        if unpaired := images.keys() ^ masks.keys():
            index = min(unpaired)
            path, missing = (images[index], "mask _y.npy") if index in images else (masks[index], "image _x.npy")
            raise IotwinError(f"{path} has no {missing} beside it; generate the data set again or remove the file")
        if not images:
            raise IotwinError(
                f"{directory} holds no case_NNNNN_x.npy; make a data set with: iotwin generate unet3d -o {directory} ..."
            )
        return [Case(index, images[index], masks[index]) for index in sorted(images)]

    @classmethod
    def split(cls, cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
        """Return (training, evaluation) cases: by rising index, the first of every five is for evaluation.

        Of 210 cases that is 42 for evaluation and 168 for training, as published. A lone case is for training.
        """
        ordered = sorted(cases)
        if len(ordered) == 1:
            return ordered, []
        return [case for place, case in enumerate(ordered) if place % cls.EVALUATION_EVERY], ordered[:: cls.EVALUATION_EVERY]


class DlrmLayout(msgspec.Struct, frozen=True):
    """Criteo Terabyte after the workload's preprocessing: one row of 40 little-endian int32 per sample, label first.

    `terabyte_processed_train.bin` holds the samples, `terabyte_processed_test.bin` a further 1 for every 47 of them (as in the
    original: half of its last day), `day_fea_count.npz` the number of categories of each categorical feature.
    """

    workload: ClassVar[str] = "dlrm"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = True
    DTYPE: ClassVar[str] = "<i4"
    COLUMNS: ClassVar[int] = 40  # label, DENSE, CATEGORIES
    DENSE: ClassVar[int] = 13
    # Distinct values of each categorical feature of Criteo Terabyte, before the workload's own modulus.
    CATEGORIES: ClassVar[tuple[int, ...]] = (
        227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10,
        2209, 11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36,
    )  # fmt: skip
    SAMPLE_BYTES: ClassVar[int] = 4 * 40
    TRAIN_NAME: ClassVar[str] = "terabyte_processed_train.bin"
    TEST_NAME: ClassVar[str] = "terabyte_processed_test.bin"
    COUNTS_NAME: ClassVar[str] = "day_fea_count.npz"
    COUNTS_BYTES: ClassVar[int] = 474  # one stored int64 array 'counts' of 26
    UNIT_SAMPLES: ClassVar[int] = 1 << 18  # 40 MiB; several workers write the one big file

    @staticmethod
    def test_samples(samples: int) -> int:
        """Return the samples of the test file beside `samples` training samples."""
        return -(-samples // 47)

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the run of samples of unit `unit`: those of the training file first, then the test file's, then the counts."""
        for name, rows in ((self.TRAIN_NAME, samples), (self.TEST_NAME, self.test_samples(samples))):
            units = -(-rows // self.UNIT_SAMPLES)
            if unit < units:
                first = unit * self.UNIT_SAMPLES
                count = min(self.UNIT_SAMPLES, rows - first)
                return [PlannedPiece(name, count * self.SAMPLE_BYTES, first * self.SAMPLE_BYTES, rows * self.SAMPLE_BYTES)]
            unit -= units
        return [PlannedPiece(self.COUNTS_NAME, self.COUNTS_BYTES)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the bytes of each unit."""
        parts: list[NDArray[np.int64]] = []
        for rows in (samples, self.test_samples(samples)):
            firsts = np.arange(0, rows, self.UNIT_SAMPLES, dtype=np.int64)
            parts.append(np.minimum(rows - firsts, self.UNIT_SAMPLES) * self.SAMPLE_BYTES)
        return np.concatenate([*parts, np.array([self.COUNTS_BYTES])])

    def file_count(self, samples: int) -> int:
        """Return the number of files: training, test and counts."""
        return 3

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many training samples fit into `size_bytes` beside their test samples and the counts."""
        rows = (size_bytes - self.COUNTS_BYTES) // self.SAMPLE_BYTES
        return max(0, rows * 47 // 48)


class DlrmDaysLayout(msgspec.Struct, frozen=True):
    """Criteo Terabyte by days, before and halfway through the workload's preprocessing; samples spread evenly over the days.

    `text`: `day_N`, the download's lines of label, 13 numbers and 26 categories as 8 hexadecimal digits, tab-separated. `npz`:
    `day_N_reordered.npz` with X_int (n, 13), X_cat (n, 26) and y (n,), all int32, `day_day_count.npz` with the samples of each
    day, and `day_fea_count.npz`; as facebookresearch/dlrm's data_utils.py leaves them for its memory-mapped loader, which takes
    the last day for testing.
    """

    form: str = "text"

    workload: ClassVar[str] = "dlrm"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = False
    FORMS: ClassVar[tuple[str, ...]] = ("text", "npz")
    DAYS: ClassVar[int] = 24
    LINE_BYTES: ClassVar[int] = 284  # mean of generated lines; a category with its separator takes 9
    DAY_COUNTS_NAME: ClassVar[str] = "day_day_count.npz"

    def __post_init__(self) -> None:
        """Refuse an unknown form."""
        if self.form not in self.FORMS:
            raise UsageError(
                f"unknown form '{self.form}'{nearest(self.form, ['binary', 'text', 'npz'])}; known: binary, text, npz"
            )

    def day_samples(self, samples: int) -> NDArray[np.int64]:
        """Return the samples of each day; small data sets have as many days as samples."""
        days = min(self.DAYS, samples)
        return np.asarray(samples // days + (np.arange(days) < samples % days), np.int64)

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the file of day `unit`; the counts are the units after the last day."""
        days = self.day_samples(samples)
        if unit < len(days):
            name = f"day_{unit}" if self.form == "text" else f"day_{unit}_reordered.npz"
            return [PlannedPiece(name, int(self.unit_bytes(samples, seed)[unit]))]
        return [PlannedPiece((self.DAY_COUNTS_NAME, DlrmLayout.COUNTS_NAME)[unit - len(days)], DlrmLayout.COUNTS_BYTES)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return about the bytes of each day and of the counts."""
        days = self.day_samples(samples)
        if self.form == "text":
            return days * self.LINE_BYTES
        return np.concatenate([days * DlrmLayout.SAMPLE_BYTES + 800, np.full(2, DlrmLayout.COUNTS_BYTES)])

    def file_count(self, samples: int) -> int:
        """Return the number of files."""
        return len(self.unit_bytes(samples, 0))

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return about how many samples fit into `size_bytes`."""
        if self.form == "text":
            return size_bytes // self.LINE_BYTES
        return max(0, (size_bytes - 800 * self.DAYS - 2 * DlrmLayout.COUNTS_BYTES) // DlrmLayout.SAMPLE_BYTES)


class BertLayout(msgspec.Struct, frozen=True):
    """Wikipedia for BERT pre-training as TFRecord shards `part-NNNNN-of-NNNNN` of tf.Example records, and `eval_10k`.

    Each record has the seven features of FEATURES, each with a fixed number of values; token ids are below VOCABULARY.
    Samples spread evenly over 500 shards, fewer when there are fewer samples. Record sizes vary with the tokens; they are
    2497 bytes on average, as published, so planned sizes are estimates.
    """

    workload: ClassVar[str] = "bert"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = False
    SHARDS: ClassVar[int] = 500
    SEQUENCE: ClassVar[int] = 512
    PREDICTIONS: ClassVar[int] = 76
    VOCABULARY: ClassVar[int] = 30522
    FEATURES: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("input_ids", "int64", 512), ("input_mask", "int64", 512), ("segment_ids", "int64", 512),
        ("masked_lm_positions", "int64", 76), ("masked_lm_ids", "int64", 76), ("masked_lm_weights", "float", 76),
        ("next_sentence_labels", "int64", 1),
    )  # fmt: skip
    RECORD_BYTES: ClassVar[int] = 2497  # mean
    EVALUATION_NAME: ClassVar[str] = "eval_10k"
    EVALUATION_SAMPLES: ClassVar[int] = 10_000

    def shards(self, samples: int) -> int:
        """Return the number of shards of a data set of `samples` training samples."""
        return min(self.SHARDS, samples)

    def evaluation_samples(self, samples: int) -> int:
        """Return the samples of the evaluation file: 10 000 or, for small data sets, one for every ten for training."""
        return min(self.EVALUATION_SAMPLES, -(-samples // 10))

    def shard_samples(self, samples: int) -> NDArray[np.int64]:
        """Return the samples of each unit: of every shard, and last of the evaluation file."""
        shards = self.shards(samples)
        share = samples // shards + (np.arange(shards) < samples % shards)
        return np.append(share, self.evaluation_samples(samples)).astype(np.int64)

    def unit_name(self, samples: int, unit: int) -> str:
        """Return the name of the file of unit `unit`."""
        shards = self.shards(samples)
        return f"part-{unit:05d}-of-{shards:05d}" if unit < shards else self.EVALUATION_NAME

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the file of unit `unit` with its expected size."""
        return [PlannedPiece(self.unit_name(samples, unit), int(self.shard_samples(samples)[unit]) * self.RECORD_BYTES)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the expected bytes of each shard."""
        return self.shard_samples(samples) * self.RECORD_BYTES

    def file_count(self, samples: int) -> int:
        """Return the number of files: the shards and the evaluation file."""
        return self.shards(samples) + 1

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many training samples are expected to fit into `size_bytes` beside the evaluation file."""
        records = size_bytes // self.RECORD_BYTES
        return max(records * 10 // 11, records - self.EVALUATION_SAMPLES)


class RecordedLayout(msgspec.Struct, frozen=True):
    """Files of given names and sizes: the stand-in for a data set that a trace saw. Each file is one sample."""

    files: tuple[tuple[str, int], ...] = ()  # (name relative to the directory, bytes)

    workload: ClassVar[str] = "recorded"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse names that lead out of the directory or stand twice, and empty files."""
        if not self.files:
            raise UsageError("a recorded data set without files has nothing to generate")
        for name, size_bytes in self.files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
                raise UsageError(f"file name {name!r} does not stay within the data set's directory; give relative names")
            if name == "manifest.json":
                raise UsageError("a recorded file is called manifest.json, as the data set's own list is; leave it out")
            if size_bytes < 1:
                raise UsageError(f"file {name!r} has {size_bytes} bytes; give at least 1")
        if len({str(PurePosixPath(name)) for name, _ in self.files}) != len(self.files):
            raise UsageError("a file name stands twice in the recorded data set; each must be its own")

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return file `unit`: one unit is one file."""
        return [PlannedPiece(*self.files[unit])]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the bytes of each file."""
        return np.array([size_bytes for _, size_bytes in self.files[:samples]], np.int64)

    def file_count(self, samples: int) -> int:
        """Return the number of files."""
        return samples

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many files, from the first on, fit whole into `size_bytes`."""
        return int(np.searchsorted(np.cumsum(self.unit_bytes(len(self.files), seed)), size_bytes, side="right"))


class FormatLayout(msgspec.Struct, frozen=True):
    """Files of one format holding records of random bytes, named as DLIO names them: `train/img_00_of_32.npz`.

    A data set of N samples has N / samples_per_file training files and `evaluation_files` more under valid/. All records of
    a file have one size. Sizes are constant, or normal, lognormal or drawn from `histogram` (size in bytes, weight) over
    the files, whose mean and standard deviation are those asked for. `record_dims`, if given, fixes every record's shape.
    """

    format: str = "npz"
    samples_per_file: int = 1
    record_bytes: int = 65536  # mean
    record_stdev_bytes: int = 0
    distribution: str = "normal"  # or lognormal; of no effect when the deviation is 0
    histogram: tuple[tuple[int, float], ...] = ()
    record_dims: tuple[int, ...] = ()
    dtype: str = "uint8"
    train_folders: int = 0
    evaluation_folders: int = 0
    evaluation_files: int = 0
    prefix: str = "img"
    compression: str = "none"
    compression_level: int = 4
    chunk_dims: tuple[int, ...] = ()  # hdf5
    max_shape: tuple[int, ...] = ()  # hdf5: up to which a record's datasets may be extended; () for not at all
    datasets: int = 1  # hdf5: that a record is split into along its first dimension
    columns: tuple[tuple[str, str, int], ...] = ()  # parquet: name, element type and elements, instead of one column `record`
    row_group_rows: int = 0  # parquet; 0 for about half a mebibyte
    entropy: float = 1.0  # share of a file's bytes that no compressor can save
    dedup: float = 0.0  # share of a file's extents that repeat one of a few

    workload: ClassVar[str] = "format"
    exact: ClassVar[bool] = False
    # Formats and the compressions each has.
    FORMATS: ClassVar[dict[str, tuple[str, ...]]] = {
        "npy": (), "npz": ("zip",), "hdf5": ("gzip", "lzf"), "tfrecord": (), "csv": ("gzip", "bz2", "xz"), "parquet": ("gzip",),
        "jpeg": (), "png": (), "indexed_binary": (), "mmap_indexed_binary": (), "bin": (),
    }  # fmt: skip
    SUFFIXES: ClassVar[dict[str, str]] = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz"}  # of a compressed csv
    UNIT_BYTES: ClassVar[int] = 32 << 20  # small files are written many at a time

    def __post_init__(self) -> None:
        """Refuse what no writer can write."""
        formats = list(self.FORMATS)
        if self.format not in formats:
            raise UsageError(f"unknown format '{self.format}'{nearest(self.format, formats)}; known: {', '.join(formats)}")
        compressions = ("none", *self.FORMATS[self.format])
        if self.compression not in compressions:
            raise UsageError(
                f"{self.format} cannot have the compression '{self.compression}'; it knows {', '.join(compressions)}"
            )
        if self.distribution not in ("normal", "lognormal"):
            raise UsageError(f"unknown distribution '{self.distribution}' of record sizes; known: normal, lognormal")
        try:
            element = np.dtype(self.dtype)
        except TypeError:
            raise UsageError(f"unknown element type '{self.dtype}'; give a numpy type such as uint8 or float32") from None
        if element.kind not in "biufc":
            raise UsageError(f"element type '{self.dtype}' is no number; give a numpy type such as uint8 or float32")
        if self.format in ("jpeg", "png") and (element != np.uint8 or len(self.record_dims) > 2 or self.samples_per_file > 1):
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
        """Return the number of training and of evaluation files; UsageError when samples do not fill whole files."""
        if samples % self.samples_per_file:
            raise UsageError(f"{samples} samples do not fill files of {self.samples_per_file}; ask for a multiple")
        return samples // self.samples_per_file, self.evaluation_files

    def record_sizes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the wanted bytes of a record of every file, training files first."""
        from datagen.sizes import record_sizes

        return record_sizes(self, sum(self.files(samples)), seed)

    def record_shape(self, record_bytes: int) -> tuple[int, ...]:
        """Return the dimensions of a record of about `record_bytes` bytes: record_dims, else the squarest two.

        Those of a jpeg are whole blocks, so that the file takes the wanted bytes; a record of several datasets splits evenly.
        """
        if self.record_dims:
            return self.record_dims
        elements = max(1, record_bytes // np.dtype(self.dtype).itemsize)
        column_step = jpeg.BLOCK_SIDE if self.format == "jpeg" else 1
        row_step = column_step * self.datasets
        rows = max(1, math.isqrt(elements) // row_step) * row_step
        return rows, max(1, round(elements / rows / column_step)) * column_step

    def file_name(self, samples: int, index: int) -> str:
        """Return the name of file `index`, training files first."""
        train, evaluation = self.files(samples)
        folder, count, folders = ("train", train, self.train_folders)
        if index >= train:
            folder, count, folders, index = "valid", evaluation, self.evaluation_folders, index - train
        below = f"{index % folders:0{len(str(folders))}d}/" if folders > 1 else ""
        suffix = self.format + (self.SUFFIXES.get(self.compression, "") if self.format == "csv" else "")
        return f"{folder}/{below}{self.prefix}_{index:0{len(str(count))}d}_of_{count}.{suffix}"

    def index_names(self, samples: int, index: int) -> list[str]:
        """Return the names of the index files beside file `index`."""
        name = self.file_name(samples, index)
        if self.format == "tfrecord":
            return [f"index/{name.split('/')[0]}/{name.rsplit('/', 1)[-1]}.idx"]
        return [f"{name}.off.idx", f"{name}.sz.idx"] if self.format.endswith("indexed_binary") else []

    def unit_files(self, samples: int, unit: int) -> range:
        """Return the indices of the files of unit `unit`."""
        each = self._files_per_unit()
        return range(unit * each, min((unit + 1) * each, sum(self.files(samples))))

    def _files_per_unit(self) -> int:
        mean = self.record_bytes if not self.record_dims else math.prod(self.record_dims) * np.dtype(self.dtype).itemsize
        return max(1, self.UNIT_BYTES // (mean * self.samples_per_file))

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the files of unit `unit` with about their sizes."""
        sizes = self._file_bytes(samples, seed)
        pieces = []
        for index in self.unit_files(samples, unit):
            pieces.append(PlannedPiece(self.file_name(samples, index), int(sizes[index])))
            pieces += [PlannedPiece(name, 8 * self.samples_per_file) for name in self.index_names(samples, index)]
        return pieces

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return about the bytes of every unit, indices left out."""
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
            # A number takes 2.57 digits and a comma on average if it is a byte; a line of column numbers comes first.
            columns = records / element_bytes
            contents = contents * (3.57 if element_bytes == 1 else 4.0) + columns * (np.log10(columns) + 1)
        return contents.astype(np.int64) + 128

    def file_count(self, samples: int) -> int:
        """Return the number of files, indices counted."""
        return sum(self.files(samples)) * (1 + len(self.index_names(self.samples_per_file, 0)))

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return about how many samples, in whole files, fit into `size_bytes` beside the evaluation files."""
        mean = float(self._file_bytes(min(1000, max(1, size_bytes)) * self.samples_per_file, seed).mean())
        return max(0, int(size_bytes / mean) - self.evaluation_files) * self.samples_per_file
