"""Write unet3d cases: incompressible noise in which a small U-Net can still find the organs.

An image is uniform noise over the published value range. Each case has two "kidneys", ellipsoids of class 1, and inside one of
them a "tumour", an ellipsoid of class 2. Inside the organs, the noise is compressed towards the top of the range. So its mean
rises, but every voxel still has a random mantissa within the published range.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.data_set_files import Piece, PieceWriter
from iotwin.datagen.layouts import Unet3dLayout, npy_header
from iotwin.datagen.random_numbers import CONTENT, NOISE, bulk_stream, uniforms

_BLOCK_VOXELS = 1 << 18  # 1 MiB of float32, which stays in a processor's cache from its draw to its write
_KEPT_DISTANCE = np.array([1.0, 0.45, 0.15], np.float32)  # factor for a voxel's distance to the top of the range, by class
_DRAWS_PER_KIDNEY = 6
_RUN_VOXELS = 128  # 512 bytes; each run begins with noise and ends with air, so that every disk block has both


class Ellipsoid(NamedTuple):
    """An organ: its class, its centre and its semi-axes in voxels along (D, H, W)."""

    label: int
    centre: NDArray[np.float64]
    radii: NDArray[np.float64]


def ellipsoids(seed: int, index: int, extents: NDArray[np.int64]) -> list[Ellipsoid]:
    """Return the organs of case `index` in a volume of `extents` (D, H, W) voxels. The tumour is last: it covers a kidney."""
    draws = uniforms(seed, index, CONTENT, 2 * _DRAWS_PER_KIDNEY + 1)
    kidneys = []
    for side in range(2):
        along = draws[side * _DRAWS_PER_KIDNEY : (side + 1) * _DRAWS_PER_KIDNEY]
        radii = extents * (0.12 + 0.08 * along[:3])
        # Each half of the width has one kidney, whose centre is at least a semi-axis away from every face of the volume.
        low, high = np.array([0.22, 0.22, 0.22 + 0.5 * side]), np.array([0.78, 0.78, 0.28 + 0.5 * side])
        kidneys.append(Ellipsoid(1, extents * (low + (high - low) * along[3:]), radii))
    bearer = kidneys[int(draws[-1] * 2)]
    tumour = Ellipsoid(2, bearer.centre + 0.35 * bearer.radii * np.array([1, 0, 0]), 0.5 * bearer.radii)
    return [*kidneys, tumour]


def _box(organ: Ellipsoid, first_plane: int, shape: tuple[int, ...]) -> tuple[slice, slice, slice]:
    start = np.array([first_plane, 0, 0])
    low = np.maximum(np.ceil(organ.centre - organ.radii).astype(int) - start, 0)
    high = np.maximum(np.minimum(np.floor(organ.centre + organ.radii).astype(int) + 1 - start, shape), low)
    return slice(int(low[0]), int(high[0])), slice(int(low[1]), int(high[1])), slice(int(low[2]), int(high[2]))


def _paint(organ: Ellipsoid, first_plane: int, mask: NDArray[np.uint8]) -> None:
    """Set the organ's class in its voxels of `mask`, a block of shape (planes, H, W) that starts at plane `first_plane`."""
    box = _box(organ, first_plane, mask.shape)
    origin = (first_plane, 0, 0)
    along = [
        np.square((np.arange(part.start, part.stop) + origin[axis] - organ.centre[axis]) / organ.radii[axis]).astype(np.float32)
        for axis, part in enumerate(box)
    ]
    distance = along[0][:, None, None] + (along[1][:, None] + along[2])
    mask[box][distance <= 1] = organ.label


def blocks(layout: Unet3dLayout, seed: int, index: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.uint8]]]:
    """Yield (image, mask) of case `index` in blocks of whole planes, shape (planes, H, W). The arrays are reused."""
    _, depth, height, width = layout.shape(seed, index)
    planes = max(1, min(depth, _BLOCK_VOXELS // (height * width)))
    image, mask = np.empty((planes, height, width), np.float32), np.empty((planes, height, width), np.uint8)
    organs = ellipsoids(seed, index, np.array([depth, height, width]))
    noise = bulk_stream(seed, index, NOISE)
    # Slightly less than the exact width, so that rounding cannot move a voxel out of the range.
    step = np.float32((layout.IMAGE_HIGH - layout.IMAGE_LOW) / 2**32 * (1 - 2**-22))
    middle, high = np.float32((layout.IMAGE_HIGH + layout.IMAGE_LOW) / 2), np.float32(layout.IMAGE_HIGH)
    noisy = round(_RUN_VOXELS * layout.entropy)
    for first in range(0, depth, planes):
        count = min(planes, depth - first)
        flat = image[:count].reshape(-1)
        flat[:] = noise.random_raw((flat.size + 1) // 2).view(np.int32)[: flat.size]
        flat *= step
        flat += middle
        flat[: flat.size // _RUN_VOXELS * _RUN_VOXELS].reshape(-1, _RUN_VOXELS)[:, noisy:] = layout.IMAGE_LOW
        mask[:count] = 0
        ends = [(organ, organ.centre[0] - organ.radii[0], organ.centre[0] + organ.radii[0]) for organ in organs]
        here = [organ for organ, low, end in ends if low < first + count and first <= end]
        for organ in here:
            _paint(organ, first, mask[:count])
        for organ in here:
            if organ.label == 1:  # the tumour lies inside a kidney
                box = _box(organ, first, (count, height, width))
                part, classes = image[:count][box], mask[:count][box]
                inside = classes > 0
                part[inside] = high - (high - part[inside]) * _KEPT_DISTANCE[classes[inside]]
        yield image[:count], mask[:count]


def write_case(
    layout: Unet3dLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write both files of the case at index `unit` under temporary names, and return their pieces."""
    image_name, mask_name = layout.case_names(unit)
    shape = layout.shape(seed, unit)
    with PieceWriter(directory, image_name, written) as images, PieceWriter(directory, mask_name, written) as masks:
        images.write(npy_header(layout.IMAGE_DTYPE, shape))
        masks.write(npy_header(layout.MASK_DTYPE, shape))
        for image, mask in blocks(layout, seed, unit):
            images.write(image.data)
            masks.write(mask.data)
        return [images.piece(), masks.piece()]
