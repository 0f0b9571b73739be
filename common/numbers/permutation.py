"""A random permutation of any length n in constant memory. The value at index x is computed as follows:

    a = ceil(sqrt(n)), b = ceil(n / a); x = right * a + left, with left < a and right < b
    round i of 16: left = (left + mix(right ^ key[i])) mod a for even i, right = (right + mix(left ^ key[i])) mod b for odd i

If the result is n or larger, the rounds are applied to it again. This is a generalised Feistel network on a times b (Black and
Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002: the network FE2 and cycle walking). `mix` is the finaliser of
SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). The 64-bit keys come from Philox,
keyed by seed and epoch. As a * b < n + a, about one index in sqrt(n) needs the rounds again.
"""

import math

import numpy as np
from numpy.typing import NDArray

from iotwin.common.numbers.keyed import Purpose, generator

_ROUNDS = 16  # with fewer rounds, permutations of six items are not equally likely
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Permutation:
    """A bijection of 0 .. `length` - 1, drawn by `seed` and `epoch`. `length` must be at least 1."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self._length = np.uint64(length)
        self._a = np.uint64(math.isqrt(length - 1) + 1)
        self._b = np.uint64(-(-length // int(self._a)))
        self._keys = generator(seed, Purpose.ORDER, epoch=epoch).integers(0, 2**64, _ROUNDS, dtype=np.uint64)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the permuted value of each of `indices`, which must be below `length`; same shape."""
        items = self._pass(indices.astype(np.uint64))
        while len(beyond := np.flatnonzero(items >= self._length)):
            items[beyond] = self._pass(items[beyond])
        return items.astype(np.int64)

    def _pass(self, items: NDArray[np.uint64]) -> NDArray[np.uint64]:
        right, left = np.divmod(items, self._a)
        for index, key in enumerate(self._keys):
            if index % 2 == 0:
                left = (left + _mix(right ^ key) % self._a) % self._a
            else:
                right = (right + _mix(left ^ key) % self._b) % self._b
        return right * self._a + left


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> _SHIFTS[0])) * _FACTORS[0]
    values = (values ^ (values >> _SHIFTS[1])) * _FACTORS[1]
    return values ^ (values >> _SHIFTS[2])
