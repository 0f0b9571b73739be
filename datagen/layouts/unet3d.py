"""The layout of the KiTS19 data set after the preprocessing of unet3d: pairs of .npy files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.layouts.base import PlannedPiece, npy_header
from iotwin.datagen.random_numbers import SHAPE, uniforms

_CASE_IMAGE = re.compile(r"case_(\d{5,})_x\.npy")
_CASE_MASK = re.compile(r"case_(\d{5,})_y\.npy")


@dataclass(frozen=True, order=True)
class Case:
    """The two files of one unet3d sample: an image volume and its mask."""

    index: int
    image: Path
    mask: Path


class Unet3dLayout(msgspec.Struct, frozen=True):
    """KiTS19 after the workload's preprocessing: pairs `case_NNNNN_x.npy` (image) and `case_NNNNN_y.npy` (mask).

    Both have shape (1, D, H, W) with D uniform in [128, 471) and H = W uniform in [186, 444) voxels, each then multiplied by
    `scale` (at least MINIMUM_EXTENT). Images are float32 in [IMAGE_LOW, IMAGE_HIGH], masks are uint8 with the classes
    MASK_CLASSES. The paper's artifact published these ranges for its emulation of KiTS19. `entropy` is the share of
    an image's voxels that are incompressible noise; the other voxels are IMAGE_LOW, air.
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
        """Raise UsageError if `scale` or `entropy` is out of range."""
        if not 0 < self.scale <= 16:
            raise UsageError(f"scale {self.scale} is out of range; give a factor above 0 and at most 16, for example 0.25")
        if not 0 <= self.entropy <= 1:
            raise UsageError(f"entropy {self.entropy} is a share; give a number from 0 to 1")

    def shape(self, seed: int, index: int) -> tuple[int, int, int, int]:
        """Return the shape (1, D, H, W) of case `index` of the data set that `seed` generates."""
        depth, width = (
            max(self.MINIMUM_EXTENT, round((low + int(draw * (high - low))) * self.scale))
            for draw, (low, high) in zip(uniforms(seed, index, SHAPE, 2), (self.DEPTHS, self.WIDTHS), strict=True)
        )
        return 1, depth, width, width

    @staticmethod
    def case_names(index: int) -> tuple[str, str]:
        """Return (name of the image file, name of the mask file) of case `index`."""
        return f"case_{index:05d}_x.npy", f"case_{index:05d}_y.npy"

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        shape = self.shape(seed, unit)
        voxels = shape[1] * shape[2] * shape[3]
        image, mask = self.case_names(unit)
        return [
            PlannedPiece(image, len(npy_header(self.IMAGE_DTYPE, shape)) + 4 * voxels),
            PlannedPiece(mask, len(npy_header(self.MASK_DTYPE, shape)) + voxels),
        ]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        pairs = (self.unit_pieces(samples, seed, index) for index in range(samples))
        return np.fromiter((image.size_bytes + mask.size_bytes for image, mask in pairs), np.int64, samples)

    def file_count(self, samples: int) -> int:
        """Return the number of files: an image and a mask per case."""
        return 2 * samples

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many cases, from the first one on, fit whole into `size_bytes`."""
        samples = used_bytes = 0
        while True:
            used_bytes += sum(piece.size_bytes for piece in self.unit_pieces(samples + 1, seed, samples))
            if used_bytes > size_bytes:
                return samples
            samples += 1

    @staticmethod
    def discover(directory: Path) -> list[Case]:
        """Return the cases in `directory` by ascending index.

        Raises IotwinError if there are none, or if a case has no image or no mask.
        """
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
            raise IotwinError(f"{path} has no {missing} next to it; generate the data set again or remove the file")
        if not images:
            raise IotwinError(
                f"{directory} holds no case_NNNNN_x.npy; make a data set with: iotwin generate unet3d -o {directory} ..."
            )
        return [Case(index, images[index], masks[index]) for index in sorted(images)]

    @classmethod
    def split(cls, cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
        """Return (training cases, evaluation cases). By ascending index, the first of every five is for evaluation.

        Of 210 cases, 42 are for evaluation and 168 for training, as published. A single case is for training.
        """
        ordered = sorted(cases)
        if len(ordered) == 1:
            return ordered, []
        return [case for index, case in enumerate(ordered) if index % cls.EVALUATION_EVERY], ordered[:: cls.EVALUATION_EVERY]
