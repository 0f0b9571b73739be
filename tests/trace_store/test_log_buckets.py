"""The buckets of all histograms on a logarithmic axis, against their definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iotwin.trace_store.figures import statistics
from iotwin.trace_store.figures.log_buckets import bucket_from_zero, octaves
from iotwin.trace_store.reader import Trace
from tests.synthetic import Job, write_job
from tests.trace_store.test_statistics import event_table, tallied


def test_zeros_have_a_bucket_of_their_own_and_ones_the_first():
    values = np.array([0, 1, 2, 3, 4, 7, 8, 1024])
    assert bucket_from_zero(values, 1).tolist() == [0, 1, 2, 2, 3, 3, 4, 11]
    assert bucket_from_zero(values, 4).tolist() == [0, 1, 5, 7, 9, 12, 13, 41]


@given(st.integers(1, 1 << 40), st.sampled_from([1, 2, 4, 16]))
def test_a_bucket_begins_at_a_power_and_ends_before_the_next(value, per_octave):
    bucket = int(bucket_from_zero(np.array([value]), per_octave)[0])
    assert 2 ** ((bucket - 1) / per_octave) <= value * (1 + 1e-12) and value < 2 ** (bucket / per_octave) * (1 + 1e-12)
    assert octaves(np.array([value]), per_octave)[0] == np.log2(value) * per_octave


def test_what_is_below_one_counts_as_one():
    assert octaves(np.array([-5.0, 0.0, 0.5, 1.0, 2.0]), 3).tolist() == [0, 0, 0, 0, 3]


def test_a_percentile_of_durations_of_nothing_and_of_a_nanosecond_is_exact(tmp_path):
    """They are in different buckets, so that neither is the mean of both."""
    rows = [(i, int(i % 4 == 0), "read", 1, 1, 0, 3, 0, 1, 1, 0, 0) for i in range(400)]
    trace = Trace(write_job(tmp_path / "t.trace", Job(files=1, epochs=1)))
    row = statistics.rows([tallied(event_table(rows), "op")], [trace], ["t"]).iloc[0]
    assert [row[name] for name in statistics.PERCENTILES] == [float(share > 0.75) for share in statistics.PERCENTILES.values()]
