import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.trace_visuals.histogram import RELATIVE_ERROR, LogHistogram


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=300), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
@settings(max_examples=200)
def test_percentiles_are_within_the_stated_error(values, share):
    histogram = LogHistogram()
    for part in np.array_split(np.array(values), 3):
        histogram.add(np.zeros(len(part), dtype=np.int64), part)
    exact = np.quantile(values, share, method="inverted_cdf")
    assert histogram.percentile([0], share) == pytest.approx(exact, rel=RELATIVE_ERROR, abs=1e-9)
    assert histogram.total([0]) == pytest.approx(sum(values)) and histogram.most([0]) == max(values)
    assert histogram.count(0) == len(values)


def test_equal_values_are_exact():
    histogram = LogHistogram()
    histogram.add(np.zeros(9, dtype=np.int64), np.full(9, 131072))
    assert histogram.percentile([0], 0.5) == 131072


def test_rows_are_apart_and_add_up():
    histogram = LogHistogram()
    histogram.add(np.array([0, 2, 2]), np.array([1, 1000, 1000]))
    histogram.add(np.array([4]), np.array([7]))
    assert histogram.percentile([2], 0.5) == 1000 and histogram.percentile([0, 2], 0.3) == 1
    assert np.isnan(histogram.percentile([1], 0.5))
    assert histogram.total([0, 2, 99]) == 2001 and histogram.count(99) == 0


def test_coarse_buckets_keep_every_value():
    histogram = LogHistogram()
    values = np.array([0, 1, 2, 3, 4096, 5000, 2**40])
    histogram.add(np.zeros(len(values), dtype=np.int64), values)
    counts, edges = histogram.coarse([0], 4)
    assert counts.sum() == len(values) and counts[0] == 1 and len(edges) == len(counts) + 1
    place = np.searchsorted(edges, 4096, side="right") - 1
    assert edges[place] == 4096 and counts[place] == 1
