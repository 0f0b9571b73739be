"""What the data sets of the workloads look like: file names, shapes, dtypes, bytes. The one place that says so.

A layout only describes; datagen/generate.py writes what it describes, benchmark/ and workloads/ read it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from datagen.randomness import SHAPE, uniforms
from tracing_tools.trace.errors import IotwinError, UsageError

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
    """

    scale: float = 1.0

    workload: ClassVar[str] = "unet3d"
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
        """Refuse a scale no volume can have."""
        if not 0 < self.scale <= 16:
            raise UsageError(f"scale {self.scale} is out of range; give a factor above 0 and at most 16, for example 0.25")

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


class BertLayout(msgspec.Struct, frozen=True):
    """Wikipedia for BERT pre-training as TFRecord shards `part-NNNNN-of-NNNNN` of tf.Example records, and `eval_10k`.

    Each record has the seven features of FEATURES, each with a fixed number of values; token ids are below VOCABULARY.
    Samples spread evenly over 500 shards, fewer when there are fewer samples. Record sizes vary with the tokens; they are
    2497 bytes on average, as published, so planned sizes are estimates.
    """

    workload: ClassVar[str] = "bert"
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
