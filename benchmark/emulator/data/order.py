"""Compute the order in which samples are read, on demand, so that it takes no memory.

An order is a bijection from positions to samples, and each rank reads a share of the positions. Each epoch permutes the whole
training data set anew (`common.numbers.permutation`). No sample is repeated. Samples that do not fill a batch on every rank
are dropped (drop_last).

| shuffled | the sample at position p | the position of the j-th sample of rank r of R |
|---|---|---|
| nothing | p | j * R + r, as torch's DistributedSampler |
| samples | permutation(p) | the same |
| files of S samples | permutation(p // S) * S + p % S | r * (N // R) + j: a rank reads whole files |
| batches of B samples | permutation(p // B) * B + p % B | ((j // B) * R + r) * B + j % B |
"""

import math
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.plugins import SAMPLERS, load_plugin
from iotwin.common.numbers.permutation import Permutation
from iotwin.workload_yaml import Config

Batch = NDArray[np.int64]  # indices of samples, in the order they are read
_Mapping = Callable[[NDArray[np.int64]], NDArray[np.int64]]

_DLIO_SAMPLERS = ("iterative", "index")  # DLIO's samplers, which do not change the order
_BLOCK_SAMPLES = 8192  # samples computed at a time: enough to amortise numpy's calls, in 64 KiB


class Batches(Sequence[Batch]):
    """The batches of one rank, `size` samples each; the last may be shorter. `at` maps positions below `samples` to samples."""

    def __init__(self, samples: int, size: int, count: int, at: _Mapping) -> None:
        self._samples, self._size, self._count, self._at = samples, size, count, at
        # (index of the first batch, samples) of the batches computed last. It is one tuple, since several threads may replace it.
        self._computed = (0, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Batch: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Batch]: ...

    def __getitem__(self, number: int | slice) -> Batch | Sequence[Batch]:
        """Return the batch at index `number`, or the batches of a slice, which are also computed on demand."""
        if isinstance(number, slice) and number.stop is number.step is None:
            first, _, _ = number.indices(self._count)
            skipped = first * self._size
            return Batches(
                max(self._samples - skipped, 0), self._size, self._count - first, lambda positions: self._at(positions + skipped)
            )
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self._count))]
        number = range(self._count)[number]
        first, block = self._computed
        low = (number - first) * self._size
        if not 0 <= low < len(block):
            low, begin = 0, number * self._size
            length = self._size * max(1, _BLOCK_SAMPLES // self._size)
            block = self._at(np.arange(begin, min(begin + length, self._samples), dtype=np.int64))
            self._computed = (number, block)
        return block[low : low + self._size]


def epoch_batches(config: Config, phase: str, samples: int, epoch: int, rank: int, ranks: int) -> Sequence[Batch]:
    """Return the batches of `rank` in an epoch of training or, if `phase` is evaluation, in an evaluation after that epoch."""
    if phase == "evaluation":
        return evaluation_batches(config, samples, rank, ranks)
    return training_batches(config, samples, epoch, rank, ranks)


def training_batches(config: Config, samples: int, epoch: int, rank: int = 0, ranks: int = 1) -> Sequence[Batch]:
    """Return the batches of `rank` in training epoch `epoch`. Every rank has equally many, and all batches are full.

    `train.total_training_steps`, if given, is the most batches.
    If the workload names a plug-in as its sampler, the batches of the plug-in are returned.
    """
    name = config.reader.data_loader_sampler
    if name is not None and name not in _DLIO_SAMPLERS:
        sampler = load_plugin(SAMPLERS, name, "reader.data_loader_sampler", list(_DLIO_SAMPLERS))
        batches: Sequence[Batch] = sampler(config=config, samples=samples, epoch=epoch, rank=rank, ranks=ranks)
        return batches
    size, steps = config.reader.batch_size, config.train.total_training_steps
    count = samples // (size * ranks)
    at = _order(config, samples, epoch, rank, ranks)
    if steps > 0:
        count = min(count, steps)
    return Batches(count * size, size, count, at)


def _order(config: Config, samples: int, epoch: int, rank: int, ranks: int) -> _Mapping:
    """Return the function from the positions 0, 1, 2, ... of a rank to samples."""
    reader, each, size = config.reader, config.dataset.num_samples_per_file, config.reader.batch_size
    shuffles = {reader.sample_shuffle, reader.file_shuffle}
    seed, epoch = config.train.seed, epoch if config.train.seed_change_epoch or "random" in shuffles else 0
    if reader.sample_shuffle == "batches":
        batches = Permutation(max(1, samples // size), seed, epoch)
        return lambda positions: _within(batches, size, (positions // size * ranks + rank) * size + positions % size)
    if reader.sample_shuffle == "off" and reader.file_shuffle != "off" and each > 1:
        files = Permutation(samples // each, seed, epoch)
        return lambda positions: _within(files, each, positions + rank * (samples // ranks))
    if shuffles == {"off"}:
        return lambda positions: positions * ranks + rank
    order = Permutation(samples, seed, epoch)
    return lambda positions: order(positions * ranks + rank)


def _within(order: Permutation, each: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the samples at `positions` if `order` permutes runs of `each` samples, within which the order remains."""
    run, inner = np.divmod(positions, each)
    return order(run) * each + inner


def evaluation_batches(config: Config, samples: int, rank: int = 0, ranks: int = 1) -> Batches:
    """Return the batches of `rank` in one evaluation, which reads every sample once over all ranks, in order.

    `evaluation.total_eval_steps`, if given, is the most batches. Every rank has equally many batches, so that no rank waits for
    one that has ended. The last batch may be short or empty.
    """
    size = config.reader.batch_size_eval
    own, most = (math.ceil(max(0, samples - each) / ranks) for each in (rank, 0))
    count, limit = math.ceil(most / size), config.evaluation.total_eval_steps
    return Batches(own, size, min(count, limit) if limit > 0 else count, lambda positions: positions * ranks + rank)
