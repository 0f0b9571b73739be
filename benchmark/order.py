"""The order in which samples are read: a fresh permutation each epoch, as from PyTorch's DistributedSampler, in batches."""

import numpy as np
from numpy.typing import NDArray

from benchmark.config import Config
from benchmark.draws import Purpose, generator

Batch = NDArray[np.int64]  # indices of samples, in the order they are read


def training_batches(config: Config, samples: int, epoch: int) -> list[Batch]:
    """Return the batches of one training epoch: no sample twice, what does not fill a batch left out (drop_last)."""
    shuffled = "seed" in (config.reader.file_shuffle, config.reader.sample_shuffle)
    order = np.arange(samples, dtype=np.int64)
    if shuffled:
        order = generator(config.train.seed, Purpose.ORDER, epoch=epoch if config.train.seed_change_epoch else 0).permutation(
            order
        )
    size = config.reader.batch_size
    steps = samples // size
    if config.train.total_training_steps > 0:
        steps = min(steps, config.train.total_training_steps)
    return list(order[: steps * size].reshape(steps, size))


def evaluation_batches(config: Config, samples: int) -> list[Batch]:
    """Return the batches of one evaluation: every sample once, in order; the last batch may be short."""
    size = config.reader.batch_size_eval
    order = np.arange(samples, dtype=np.int64)
    return [order[start : start + size] for start in range(0, samples, size)]
