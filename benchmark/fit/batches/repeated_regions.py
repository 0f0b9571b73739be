"""Regions of files, and the passes in which batches read these regions again."""

from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_Ints = NDArray[np.int64]
_FEWEST = 3  # least mean number of batches in a pass; if regions repeat sooner, samples are drawn with replacement
_REGION_BYTES = 1 << 16  # passes over the same regions of files are passes over one set of samples
_SAME_SET = 0.5  # passes read one set of samples if they share this much of the smaller pass's bytes or regions


def regions_of(calls: pd.DataFrame) -> pd.Series:
    """Return, by call, the number of the file region of _REGION_BYTES bytes in which the call begins."""
    return calls["file_id"] * (1 << 40) + calls["offset"].fillna(0).astype(np.int64) // _REGION_BYTES


def numbers_of_repeats(regions: list[set[int]]) -> _Ints:
    """Return the index of each batch's pass. A new pass begins with a batch that reads a region of the present pass again.

    `regions`: for each batch, the regions of files that it reads. If every pass begins with batches over the same set of regions,
    and then reads other regions, each pass is split there into an epoch and its evaluation. If consecutive passes have few
    regions in common, samples are drawn with replacement, and all batches are one pass.
    """
    seen: set[int] = set()
    begins = [0]
    for row, own in enumerate(regions):
        if own & seen:
            begins.append(row)
            seen = set()
        seen |= own
    if len(regions) < _FEWEST * len(begins):
        return np.zeros(len(regions), np.int64)
    passes = [regions[begin:end] for begin, end in pairwise([*begins, len(regions)])]
    read = [set[int]().union(*own) for own in passes]
    shared = [len(a & b) / min(len(a), len(b)) for a, b in pairwise(read)]
    if shared and np.median(shared) < _SAME_SET:
        return np.zeros(len(regions), np.int64)
    first = {_same_beginning(a, b) for a, b in pairwise(passes)}
    if len(first) == 1 and (length := first.pop()) > 1:
        begins = sorted({*begins, *(begin + length for begin, own in zip(begins, passes, strict=True) if length < len(own))})
    return np.searchsorted(begins, np.arange(len(regions)), side="right") - 1


def _same_beginning(a: list[set[int]], b: list[set[int]]) -> int:
    """Return for how many batches two passes begin with equal regions, in another order; 0 if the first batches are equal."""
    read_a: set[int] = set()
    read_b: set[int] = set()
    for number, (own_a, own_b) in enumerate(zip(a, b, strict=False), 1):
        read_a, read_b = read_a | own_a, read_b | own_b
        if len(read_a) == len(read_b) and read_a == read_b:
            return number if number > 1 else 0
    return 0
