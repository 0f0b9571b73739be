"""The layout of ImageNet (ILSVRC 2012): a folder for each class, a JPEG for each image."""

from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen import jpeg
from iotwin.datagen.layouts.base import PlannedPiece
from iotwin.datagen.random_numbers import SHAPE, uniforms

_GRID = 2 * jpeg.BLOCK_SIDE  # sides of images are multiples of this, so that every row consists of pairs of blocks


class ImagenetLayout(msgspec.Struct, frozen=True):
    """Training images `train/nCCCCCCCC/nCCCCCCCC_N.JPEG`, and one validation image in `val/` for every 26 of them, as published.

    Image i is of class i modulo `classes`. Sides are uniform in SIDES pixels times `scale`, rounded to multiples of 16, at least
    16. Each coefficient takes a byte, so a picture of the published size has about the published 110 kB.
    """

    classes: int = 1000
    scale: float = 1.0

    workload: ClassVar[str] = "checkfreq"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = True
    SIDES: ClassVar[tuple[int, int]] = (200, 465)
    VALIDATION_EVERY: ClassVar[int] = 26
    UNIT_IMAGES: ClassVar[int] = 64

    def __post_init__(self) -> None:
        """Raise UsageError if a value is out of range."""
        if not 1 <= self.classes <= 99_999_999:
            raise UsageError(f"{self.classes} classes are out of range; give at least 1, for example 10")
        if not 0 < self.scale <= 16:
            raise UsageError(f"scale {self.scale} is out of range; give a factor above 0 and at most 16, for example 0.25")

    def images(self, samples: int) -> int:
        """Return the number of training and validation images together, for `samples` training images."""
        return samples + -(-samples // self.VALIDATION_EVERY)

    def shape(self, seed: int, image: int) -> tuple[int, int]:
        """Return (height, width) in pixels of the image at index `image`. Validation images follow the training images."""
        low, high = self.SIDES
        height, width = (
            max(1, round((low + draw * (high - low)) * self.scale / _GRID)) * _GRID for draw in uniforms(seed, image, SHAPE, 2)
        )
        return height, width

    def name(self, samples: int, image: int) -> str:
        """Return the file name of the image at index `image`."""
        number = image if image < samples else image - samples
        folder = f"n{number % self.classes + 1:08d}"
        if image < samples:
            return f"train/{folder}/{folder}_{number + 1}.JPEG"
        return f"val/{folder}/ILSVRC2012_val_{number + 1:08d}.JPEG"

    def class_of(self, samples: int, image: int) -> int:
        """Return the class, from 0, of the image at index `image`."""
        return (image if image < samples else image - samples) % self.classes

    def file_bytes(self, seed: int, image: int) -> int:
        """Return the size in bytes of the file of the image at index `image`."""
        height, width = self.shape(seed, image)
        return len(jpeg.header(height, width)) + jpeg.padded_pixels(height, width) + len(jpeg.END)

    def unit_images(self, samples: int, unit: int) -> range:
        """Return the indices of the images that belong to the unit `unit`."""
        return range(unit * self.UNIT_IMAGES, min((unit + 1) * self.UNIT_IMAGES, self.images(samples)))

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        return [
            PlannedPiece(self.name(samples, image), self.file_bytes(seed, image)) for image in self.unit_images(samples, unit)
        ]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        sizes = np.fromiter((self.file_bytes(seed, image) for image in range(self.images(samples))), np.int64)
        return np.add.reduceat(sizes, np.arange(0, len(sizes), self.UNIT_IMAGES))

    def file_count(self, samples: int) -> int:
        return self.images(samples)

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many training images fit into `size_bytes` together with their validation images."""
        samples, used_bytes = 0, 0
        while True:  # an estimate, since which images are for validation depends on `samples`
            more = self.images(samples + 1) - self.images(samples)
            used_bytes += more * self.file_bytes(seed, samples)
            if used_bytes > size_bytes:
                return self._shrunk(samples, size_bytes, seed)
            samples += 1

    def _shrunk(self, samples: int, size_bytes: int, seed: int) -> int:
        """Return the largest number of samples, at most `samples`, whose files have at most `size_bytes` in total."""
        sizes = np.cumsum([self.file_bytes(seed, image) for image in range(self.images(samples) + 1)])
        while samples and sizes[self.images(samples) - 1] > size_bytes:
            samples -= 1
        return samples

    @staticmethod
    def discover(directory: Path, part: str) -> tuple[list[str], list[tuple[Path, int]]]:
        """Return (names of the classes, (file, class) of each image) of the folder `part` of `directory`, "train" or "val".

        Both lists are sorted by name. Raises IotwinError if there are no images.
        """
        folder = directory / part
        try:
            classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        except OSError as error:
            raise IotwinError(f"{folder}: {error.strerror}; make a data set with: iotwin generate checkfreq -o DIR ...") from None
        found = [
            (path, index)
            for index, name in enumerate(classes)
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in (".jpeg", ".jpg", ".png")
        ]
        if not found:
            raise IotwinError(f"{folder} holds no images in folders of their classes; make them with: iotwin generate checkfreq")
        return classes, found
