"""Reads the minibatches of a pipeline's stage 0: images from files, or random data.

Minibatch m of an epoch consists of the same samples under every plan. Replica r of R replicas reads the minibatches r, r + R, ...
"""

import inspect
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from iotwin.common.processes.children import become_child
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.workloads.common.images import Images
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.models import IMAGE_SIDE, build
from iotwin.workloads.models.built import Built
from iotwin.workloads.pipedream.runtime.engine import Load
from iotwin.workloads.pipedream.runtime.options import PipeDreamConfig
from iotwin.workloads.state.batches import ResumableBatches

_IMAGENET_IMAGES, _IMAGENET_VALIDATION = 1_281_167, 50_000  # samples of an epoch of synthetic data, as in the original


class Samples(Protocol):
    """The data of stage 0. `training` and `validation` are numbers of samples, `classes` is 0 if the model sets them."""

    classes: int
    training: int
    validation: int

    def train(self, batches: ResumableBatches, minibatches: int, replica: int, replicas: int) -> Load:
        """Return a function that reads the next `minibatches` from the position of `batches` on, counted from 0."""
        ...

    def evaluate(self, replica: int, replicas: int) -> Load:
        """Return a function that reads the minibatches of an evaluation."""
        ...


class ImageFiles:
    """The images in `config.data_dir`."""

    def __init__(self, config: PipeDreamConfig, folder: Path, parts: Parts) -> None:
        self._config, self._parts = config, parts
        names, self._training = ImagenetLayout.discover(folder, "train")
        _, self._validation = ImagenetLayout.discover(folder, "val")
        self.classes, self.training, self.validation = len(names), len(self._training), len(self._validation)

    def train(self, batches: ResumableBatches, minibatches: int, replica: int, replicas: int) -> Load:
        """Return a function that reads the next `minibatches` from the position of `batches` on, counted from 0."""
        return self._loaded(self._training, _OwnBatches(batches, range(replica, minibatches, replicas)))

    def evaluate(self, replica: int, replicas: int) -> Load:
        """Return a function that reads the minibatches of an evaluation. The last one may be smaller."""
        size = self._config.eval_batch_size
        batches = [list(range(first, min(first + size, self.validation))) for first in range(0, self.validation, size)]
        return self._loaded(self._validation, batches[replica::replicas])

    def _loaded(self, files: Sequence[tuple[Path, int]], batches: Any) -> Load:
        images = Images(files, IMAGE_SIDE[self._config.size], self._config.seed, self._parts)
        begin = partial(_become_loader, os.getpid())
        # A separate generator, so that the random numbers of dropout do not depend on loaders.
        loader = DataLoader(
            images, num_workers=self._config.workers, worker_init_fn=begin, batch_sampler=batches, generator=torch.Generator()
        )
        waiting: Iterator[list[Tensor]] = iter(loader)

        def load(_: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            pixels, labels = next(waiting)
            return (pixels,), (labels,)

        return load


class _OwnBatches:
    """The batches with the indices `own`, as a batch_sampler."""

    def __init__(self, batches: ResumableBatches, own: range) -> None:
        self._batches, self._own = batches, own

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._batches), self._own.start, self._own.stop, self._own.step)


def _become_loader(parent_pid: int, index: int) -> None:
    """Make a loader process end with its rank, even if the rank is killed."""
    become_child(f"loader {index}", parent_pid)


class RandomSamples:
    """Random samples of the shapes that the model requires; each minibatch depends on the seed and its index only."""

    def __init__(self, config: PipeDreamConfig) -> None:
        self._config = config
        self._built: Built = build(config.arch, config.size, config.classes)
        self._inputs = len(inspect.signature(self._built.module.forward).parameters)
        self.classes, self.training, self.validation = 0, _IMAGENET_IMAGES, _IMAGENET_VALIDATION

    def train(self, batches: ResumableBatches, minibatches: int, replica: int, replicas: int) -> Load:
        """Return a function that makes minibatch n after the position of `batches`, n >= 0."""
        position = batches.position
        first = (position.epoch - 1) * self.training + position.position
        return lambda minibatch: self._made(first + minibatch * self._config.batch_size, self._config.batch_size)

    def evaluate(self, replica: int, replicas: int) -> Load:
        """Return a function that makes the minibatches of an evaluation."""
        size = self._config.eval_batch_size
        return lambda minibatch: self._made(-1 - minibatch * size, size)

    def _made(self, index: int, samples: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        torch.manual_seed((self._config.seed * 1_000_003 + index) % 2**63)
        tensors = self._built.make_inputs(samples)
        return tensors[: self._inputs], tensors[self._inputs :]
