"""Keyed random numbers: the same (seed, index, purpose) results in the same numbers on every machine.

Only raw words of numpy's bit generators are used, which never change between versions of numpy. The results of
`Generator.uniform` and similar functions may change (numpy NEP 19).
"""

import numpy as np
from numpy.typing import NDArray

# Purposes of draws. Each has a separate stream, so that more draws for one purpose do not change others. Never renumber them.
SHAPE, CONTENT, NOISE, SIZES, COLUMNS, AUGMENT = range(1, 7)


def random_words(seed: int, index: int, purpose: int, count: int) -> NDArray[np.uint64]:
    """Return `count` random 64-bit words of the Philox stream keyed by (seed, index), at the counter of `purpose`."""
    return np.random.Philox(key=[seed, index], counter=[0, 0, 0, purpose]).random_raw(count)


def uniforms(seed: int, index: int, purpose: int, count: int) -> NDArray[np.float64]:
    """Return `count` uniform draws in [0, 1) with 53 random bits each, keyed by (seed, index, purpose)."""
    return (random_words(seed, index, purpose, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bulk_stream(seed: int, index: int, purpose: int) -> np.random.SFC64:
    """Return a fast stream of random words for gigabytes of content, keyed by (seed, index, purpose).

    SFC64 is numpy's fastest generator, more than twice as fast as Philox. 128 bits from Philox set its initial state.
    """
    high, low = (int(word) for word in random_words(seed, index, purpose, 2))
    return np.random.SFC64(high << 64 | low)
