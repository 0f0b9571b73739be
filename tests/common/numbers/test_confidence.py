"""Intervals of medians against the exact coverage, by counting all outcomes; estimates of parts against those of the whole."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.numbers.confidence import mean, mean_of_parts, median, quantile, quantiles


@pytest.mark.parametrize("count", range(1, 15))
def test_the_interval_of_a_median_is_the_narrowest_that_covers_it(count):
    """Each value lies above the true median or below it, with equal probability; count the outcomes that the interval misses."""
    found = median(np.arange(count, dtype=float)[::-1])
    assert found.value == (count - 1) / 2
    below = np.array([sum(signs) for signs in itertools.product((0, 1), repeat=count)])  # values below the true median

    def missed(rank: int) -> float:  # of the bounds, from both ends
        return float(((below < rank) | (below > count - rank)).mean())

    if found.low is None or found.high is None:
        assert count < 6 and missed(1) > 0.05
    else:
        rank = int(found.low) + 1
        assert found.high == count - rank
        assert missed(rank) <= 0.05 < missed(rank + 1)


@given(st.lists(st.lists(st.integers(-(2**40), 2**40)), min_size=1).filter(any))
def test_estimates_of_parts_are_those_of_all_values_together(parts: list[list[int]]):
    arrays = [np.array(part, np.int64) for part in parts]
    whole, shares = np.concatenate(arrays), [0, 0.01, 0.3, 0.5, 0.77, 0.99, 1]
    assert mean_of_parts(arrays, len(whole)) == mean(whole)
    assert quantiles(lambda: arrays, shares) == [quantile(whole, share) for share in shares]
