"""Loads classified images. The crop and mirroring of an image depend only on the seed, the epoch and the image's index."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

from iotwin.common.errors import IotwinError
from iotwin.workloads.common.parts import Parts

_MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # mean value of red, green and blue in ImageNet
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)  # standard deviation of red, green and blue in ImageNet
_MARGIN = 8 / 7  # side length of the resized image divided by the side length of the crop


class Images(Dataset):
    """A data set of images and their classes. An item's key is (epoch, index) for training, and an index for evaluation."""

    def __init__(self, files: Sequence[tuple[Path, int]], crop: int, seed: int, parts: Parts) -> None:
        self._files, self._crop, self._seed, self._parts = files, crop, seed, parts

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, key: tuple[int, int] | int) -> tuple[torch.Tensor, int]:
        """Return the image [3, crop, crop] (float32) and its class."""
        epoch, index = key if isinstance(key, tuple) else (0, key)
        path, label = self._files[index]
        with self._parts.measure("sample_load", epoch_num=epoch, sample_num=index):
            content = path.read_bytes()
        with self._parts.measure("sample_preproc", epoch_num=epoch, sample_num=index):
            pixels = decode(path, content, round(self._crop * _MARGIN))
            left, top, mirrored = (len(pixels) - self._crop) // 2, (len(pixels) - self._crop) // 2, False
            if epoch:
                rng = np.random.default_rng((self._seed, epoch, index))
                top, left = rng.integers(0, len(pixels) - self._crop + 1, 2)
                mirrored = bool(rng.integers(2))
            cropped = pixels[top : top + self._crop, left : left + self._crop]
            values = (cropped[:, ::-1] if mirrored else cropped).astype(np.float32) / np.float32(255)
            values = (values - _MEAN) / _DEVIATION
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))), label


def decode(path: Path, content: bytes, size: int) -> NDArray[np.uint8]:
    """Return an image's pixels, resized to (size, size, 3). Raises IotwinError if it cannot be decoded."""
    try:
        image = Image.open(io.BytesIO(content))
        image.draft("RGB", (size, size))  # lets the decoder shrink a JPEG to about this size
        return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BOX))
    except (UnidentifiedImageError, OSError, ValueError):
        raise IotwinError(f"{path} is no image that can be decoded; generate the data set again or remove the file") from None
