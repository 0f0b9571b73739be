"""The one keyed random generator: a rerun draws the same, whatever the workers and whatever was drawn before."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of the key: changing one changes every run."""

    ORDER = 1
    TRAIN_STEP = 2
    EVALUATION_STEP = 3
    TRAIN_SAMPLE = 4
    EVALUATION_SAMPLE = 5
    INIT = 6
    FIRST_STEP = 7
    SERIALIZATION = 8
    CHECKPOINT_CONTENT = 9
    ALL_REDUCE = 10
    LEAD = 11
    TAIL = 12
    EVALUATION_LEAD = 13
    SLEPT_STEP = 14
    SNAPSHOT = 15
    LOADER_START = 16
    EPOCH_WARM_UP = 17


def generator(seed: int, purpose: Purpose, rank: int = 0, epoch: int = 0, step: int = 0) -> np.random.Generator:
    """Return the generator of one draw: Philox4x64 (Salmon et al., 2011) keyed by seed and purpose, its counter by the rest."""
    # The lowest counter word is the one that advances while numbers are drawn.
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, rank, epoch, step]))
