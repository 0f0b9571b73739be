"""Preprocesses a training case in numpy: a random crop that often contains an organ, flips, brightness, noise.

Order and probabilities are as in the image-segmentation job of MLPerf Training, so that a sample takes as much CPU time.
"""

import numpy as np
from numpy.typing import NDArray

from iotwin.workloads.unet3d.config import Size

Image = NDArray[np.float32]  # [1, D, H, W]
Label = NDArray[np.uint8]  # [1, D, H, W]

_FOREGROUND_SHARE = 0.4  # share of crops that are placed on an organ, because most random crops contain none
_FLIP_PROBABILITY = 1 / 3
_BRIGHTNESS_PROBABILITY, _BRIGHTNESS_SPREAD = 0.1, 0.3
_NOISE_PROBABILITY, _NOISE_DEVIATION = 0.1, 0.1


def augment(image: Image, label: Label, crop: Size, rng: np.random.Generator) -> tuple[Image, Label]:
    """Return a random training sample of a case, as new contiguous arrays (image, mask) of the shape [1, *crop]."""
    image, label = pad_to(image, label, crop)
    corner = _balanced_corner(label[0], crop, rng)
    window = (slice(None), *(slice(start, start + size) for start, size in zip(corner, crop, strict=True)))
    image, label = image[window], label[window]
    axes = tuple(axis for axis in (1, 2, 3) if rng.random() < _FLIP_PROBABILITY)
    image = np.flip(image, axes).astype(np.float32)  # astype makes a copy, which is changed below
    label = np.flip(label, axes).astype(np.uint8)
    if rng.random() < _BRIGHTNESS_PROBABILITY:
        image *= np.float32(1 + rng.uniform(-_BRIGHTNESS_SPREAD, _BRIGHTNESS_SPREAD))
    if rng.random() < _NOISE_PROBABILITY:
        image += rng.standard_normal(image.shape, dtype=np.float32) * np.float32(rng.uniform(0, _NOISE_DEVIATION))
    return image, label


def pad_to(image: Image, label: Label, size: Size) -> tuple[Image, Label]:
    """Return (image, mask) padded to at least `size` voxels per axis: the image with its lowest value, the mask with 0."""
    missing = [max(0, wanted - have) for wanted, have in zip(size, image.shape[1:], strict=True)]
    if not any(missing):
        return image, label
    margins = [(0, 0), *((0, amount) for amount in missing)]
    return np.pad(image, margins, constant_values=image.min()), np.pad(label, margins)


def _balanced_corner(label: NDArray[np.uint8], crop: Size, rng: np.random.Generator) -> list[int]:
    """Return the first voxel (D, H, W) of a random crop. 40 % of crops contain a random organ."""
    highest = [have - size for have, size in zip(label.shape, crop, strict=True)]
    if rng.random() < _FOREGROUND_SHARE:
        classes = [number for number in range(1, int(label.max()) + 1) if (label == number).any()]
        if classes:
            voxels = np.flatnonzero(label == rng.choice(classes))
            centre = np.unravel_index(rng.choice(voxels), label.shape)
            return [
                int(np.clip(at - rng.integers(size), 0, limit)) for at, size, limit in zip(centre, crop, highest, strict=True)
            ]
    return [int(rng.integers(limit + 1)) for limit in highest]
