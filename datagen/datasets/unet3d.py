"""The content of unet3d cases: noise no storage can compress away, in which a small U-Net can still find the organs.

An image is uniform noise over the published value range with a random mantissa in every voxel. Each case has two
"kidneys", ellipsoids of class 1, of which one carries a "tumour", an ellipsoid of class 2 inside it. Inside them the noise is
squeezed towards the top of the range, so its mean rises while its mantissa stays random and its range stays the published one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.files import Piece, PieceWriter
from iotwin.datagen.layouts import Unet3dLayout, npy_header
from iotwin.datagen.randomness import CONTENT, NOISE, bulk_stream, uniforms

_BLOCK_VOXELS = 1 << 18  # 1 MiB of float32: a block stays in a core's cache from its draw to its write
_KEEP = np.array([1.0, 0.45, 0.15], np.float32)  # how much of its distance to the top of the range a voxel keeps, by class
_DRAWS_PER_KIDNEY = 6
_RUN_VOXELS = 128  # 512 bytes, of which a share is noise, so that every disk block has as much of it


class Ellipsoid(NamedTuple):
    """One smooth organ: centre and semi-axes in voxels along (D, H, W)."""

    label: int
    centre: NDArray[np.float64]
    radii: NDArray[np.float64]


def ellipsoids(seed: int, index: int, extents: NDArray[np.int64]) -> list[Ellipsoid]:
    """Return the organs of case `index` in a volume of `extents` (D, H, W) voxels, in the order in which they are painted."""
    draws = uniforms(seed, index, CONTENT, 2 * _DRAWS_PER_KIDNEY + 1)
    kidneys = []
    for side in range(2):
        along = draws[side * _DRAWS_PER_KIDNEY : (side + 1) * _DRAWS_PER_KIDNEY]
        radii = extents * (0.12 + 0.08 * along[:3])
        # One kidney in each half of the width; its centre stays a semi-axis away from every face.
        low, high = np.array([0.22, 0.22, 0.22 + 0.5 * side]), np.array([0.78, 0.78, 0.28 + 0.5 * side])
        kidneys.append(Ellipsoid(1, extents * (low + (high - low) * along[3:]), radii))
    bearer = kidneys[int(draws[-1] * 2)]
    tumour = Ellipsoid(2, bearer.centre + 0.35 * bearer.radii * np.array([1, 0, 0]), 0.5 * bearer.radii)
    return [*kidneys, tumour]


def _box(organ: Ellipsoid, first_plane: int, shape: tuple[int, ...]) -> tuple[slice, slice, slice]:
    """Return the part of a block of `shape` (planes, H, W), starting at plane `first_plane`, that can hold the organ."""
    start = np.array([first_plane, 0, 0])
    low = np.maximum(np.ceil(organ.centre - organ.radii).astype(int) - start, 0)
    high = np.maximum(np.minimum(np.floor(organ.centre + organ.radii).astype(int) + 1 - start, shape), low)
    return slice(int(low[0]), int(high[0])), slice(int(low[1]), int(high[1])), slice(int(low[2]), int(high[2]))


def _reaches(organ: Ellipsoid, first_plane: int, planes: int) -> bool:
    """Return whether any of the organ lies within so many planes: most blocks have none, and need not look for it."""
    return bool(first_plane <= organ.centre[0] + organ.radii[0] and organ.centre[0] - organ.radii[0] < first_plane + planes)


def _paint(organ: Ellipsoid, first_plane: int, mask: NDArray[np.uint8]) -> None:
    """Label the organ's voxels in a block of planes of shape (planes, H, W) whose first is plane `first_plane`."""
    box = _box(organ, first_plane, mask.shape)
    origin = (first_plane, 0, 0)
    along = [
        np.square((np.arange(part.start, part.stop) + origin[axis] - organ.centre[axis]) / organ.radii[axis]).astype(np.float32)
        for axis, part in enumerate(box)
    ]
    distance = along[0][:, None, None] + (along[1][:, None] + along[2])
    mask[box][distance <= 1] = organ.label


def _raise_mean(image: NDArray[np.float32], mask: NDArray[np.uint8]) -> None:
    """Squeeze the image towards the top of its range wherever the mask has a label."""
    high = np.float32(Unet3dLayout.IMAGE_HIGH)
    inside = mask > 0
    image[inside] = high - (high - image[inside]) * _KEEP[mask[inside]]


def blocks(layout: Unet3dLayout, seed: int, index: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.uint8]]]:
    """Yield case `index` as blocks of whole planes, image and mask of shape (planes, H, W); the arrays are reused."""
    _, depth, height, width = layout.shape(seed, index)
    planes = max(1, min(depth, _BLOCK_VOXELS // (height * width)))
    image, mask = np.empty((planes, height, width), np.float32), np.empty((planes, height, width), np.uint8)
    organs = ellipsoids(seed, index, np.array([depth, height, width]))
    noise = bulk_stream(seed, index, NOISE)
    # A hair under the exact width, so that rounding cannot carry a voxel over either end.
    step = np.float32((layout.IMAGE_HIGH - layout.IMAGE_LOW) / 2**32 * (1 - 2**-22))
    middle = np.float32((layout.IMAGE_HIGH + layout.IMAGE_LOW) / 2)
    noisy = round(_RUN_VOXELS * layout.entropy)
    for first in range(0, depth, planes):
        count = min(planes, depth - first)
        flat = image[:count].reshape(-1)
        flat[:] = noise.random_raw((flat.size + 1) // 2).view(np.int32)[: flat.size]
        flat *= step
        flat += middle
        flat[: flat.size // _RUN_VOXELS * _RUN_VOXELS].reshape(-1, _RUN_VOXELS)[:, noisy:] = layout.IMAGE_LOW
        mask[:count] = 0
        here = [organ for organ in organs if _reaches(organ, first, count)]
        for organ in here:
            _paint(organ, first, mask[:count])
        for organ in here:
            if organ.label == 1:  # the tumour lies inside a kidney
                box = _box(organ, first, (count, height, width))
                _raise_mean(image[:count][box], mask[:count][box])
        yield image[:count], mask[:count]


def write_case(layout: Unet3dLayout, seed: int, directory: Path, index: int, written: Callable[[int], None]) -> list[Piece]:
    """Write both files of case `index` under temporary names and return their pieces."""
    image_name, mask_name = layout.case_names(index)
    shape = layout.shape(seed, index)
    with PieceWriter(directory, image_name, written) as images, PieceWriter(directory, mask_name, written) as masks:
        images.write(npy_header(layout.IMAGE_DTYPE, shape))
        masks.write(npy_header(layout.MASK_DTYPE, shape))
        for image, mask in blocks(layout, seed, index):
            images.write(image.data)
            masks.write(mask.data)
        return [images.piece(), masks.piece()]
