"""Keyed random draws: the same (seed, index, purpose) gives the same numbers on any machine, whatever ran before.

Only raw words of numpy's bit generators are used: numpy promises that those never change between its versions, and
promises no such thing for `Generator.uniform` and its kin (numpy NEP 19).
"""

import numpy as np
from numpy.typing import NDArray

# What the draws are for. Each purpose is its own stream, so that adding draws to one changes no other. Never renumber.
SHAPE, CONTENT, NOISE, SIZES, COLUMNS, AUGMENT = range(1, 7)


def random_words(seed: int, index: int, purpose: int, count: int) -> NDArray[np.uint64]:
    """Return `count` random 64-bit words of the Philox stream keyed by (seed, index), at the counter of `purpose`."""
    return np.random.Philox(key=[seed, index], counter=[0, 0, 0, purpose]).random_raw(count)


def uniforms(seed: int, index: int, purpose: int, count: int) -> NDArray[np.float64]:
    """Return `count` draws uniform in [0, 1) with 53 random bits each, keyed by (seed, index, purpose)."""
    return (random_words(seed, index, purpose, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bulk_stream(seed: int, index: int, purpose: int) -> np.random.SFC64:
    """Return the stream for bulk content of (seed, index, purpose): gigabytes of words.

    SFC64 is numpy's fastest generator, more than twice as fast as Philox; its starting state is keyed by 128 bits from Philox.
    """
    high, low = (int(word) for word in random_words(seed, index, purpose, 2))
    return np.random.SFC64(high << 64 | low)
