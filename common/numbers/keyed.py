"""Random generators keyed by seed and purpose: a rerun draws the same numbers, with any number of workers and in any order."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purpose of a random number. The members are part of the generators' keys: changing a member changes all its draws."""

    ORDER = 1
    TRAIN_STEP = 2
    EVALUATION_STEP = 3
    TRAIN_SAMPLE = 4
    EVALUATION_SAMPLE = 5
    INIT = 6
    FIRST_STEP = 7
    SERIALIZATION = 8
    CHECKPOINT_CONTENT = 9
    LEAD = 11
    TAIL = 12
    SLEPT_STEP = 14
    SNAPSHOT = 15
    EPOCH_WARM_UP = 17
    ITEM = 18  # an item of a training script's data set
    BACKWARD_PASS = 20  # time of a pipeline stage's backward pass
    ENTROPY = 19  # replaces random bytes that a script draws from the operating system


def generator(seed: int, purpose: Purpose, rank: int = 0, epoch: int = 0, step: int = 0) -> np.random.Generator:
    """Return the generator for one draw: Philox4x64 (Salmon et al., 2011) with the key (seed, purpose).

    `rank`, `epoch` and `step` set the generator's counter.
    """
    # Drawing advances the lowest word of the counter, so that word starts at 0 and the arguments set the others.
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, rank, epoch, step]))
