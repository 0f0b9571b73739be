import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from iotwin.tracesim import dimensions
from iotwin.tracesim.logbins import BINS, BINS_PER_OCTAVE, log_bin, shared_histogram
from iotwin.tracesim.measures import cell_ratios, hellinger, overlap, ratio, s_curve, shared_mass, weighted_mean

amounts = arrays(np.float64, 12, elements=st.floats(0, 1e12) | st.just(0.0))


def blurred_overlap(a, b):
    return overlap(a, b, 4)


@pytest.mark.parametrize("measure", [cell_ratios, shared_mass, hellinger, blurred_overlap])
@given(a=amounts, b=amounts)
def test_measures_are_bounded_symmetric_and_one_only_for_equals(measure, a, b):
    score = measure(a, b)
    assert 0.0 <= score <= 1.0
    assert score == measure(b, a)
    assert measure(a, a) == 1.0


def test_nothing_is_like_nothing_and_unlike_something():
    nothing, something = np.zeros(3), np.array([0.0, 1.0, 2.0])
    for measure in (cell_ratios, shared_mass, hellinger):
        assert measure(nothing, nothing) == 1.0
        assert measure(nothing, something) == 0.0
    assert ratio(0, 0) == 1.0 and ratio(0, 5) == 0.0


@given(st.integers(0, BINS // 3), st.integers(0, 40), st.integers(0, 40))
def test_overlap_falls_as_values_move_apart(place, near, far):
    def spike(at):
        histogram = np.zeros(BINS)
        histogram[at] = 7.0
        return histogram

    near, far = sorted((near, far))
    assert overlap(spike(place), spike(place + near), 8) >= overlap(spike(place), spike(place + far), 8)
    if far >= 16:
        assert overlap(spike(place), spike(place + far), 8) == pytest.approx(0.0)


def test_overlap_of_values_a_factor_of_two_apart_is_what_the_documentation_says():
    a, b = np.zeros(BINS), np.zeros(BINS)
    a[log_bin(np.array([4096]))] = 1.0
    b[log_bin(np.array([8192]))] = 1.0
    assert overlap(a, b, 8) == pytest.approx((1 - 1 / 4) ** 2, abs=0.01)


def test_a_rare_operation_that_is_missing_costs_more_than_its_share():
    with_sync, without = np.array([990.0, 10.0]), np.array([990.0, 0.0])
    assert 1 - shared_mass(with_sync, without) == pytest.approx(0.01, abs=0.001)
    assert 1 - hellinger(with_sync, without) > 0.05
    assert cell_ratios(with_sync, without) < 0.95


def test_weighted_mean_of_ones_is_exactly_one():
    assert weighted_mean([1.0] * 7, [0.1, 0.3, 0.7, 1 / 3, 0.15, 0.05, 0.25]) == 1.0


def test_log_bins_hold_powers_of_two_at_their_lower_edge():
    assert log_bin(np.array([0, 1, 2, 4095, 4096, 1 << 60])).tolist() == [0, 0, 4, 47, 48, BINS - 1]


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_s_curve_keeps_order_and_ends_and_forgives_little_differences(a, b):
    a, b = sorted((a, b))
    assert 0.0 <= s_curve(a) <= s_curve(b) <= 1.0
    assert [s_curve(v) for v in (0.0, 0.5, 1.0)] == [0.0, 0.5, 1.0]
    assert s_curve(0.95) == pytest.approx(0.995)


def test_values_on_either_side_of_an_edge_are_nearly_the_same():
    edge = 2.0**21
    either_side = [shared_histogram(np.array([edge * factor])) for factor in (0.9999, 1.0001)]
    assert overlap(*either_side, 8) > 0.999
    assert shared_histogram(np.array([0, 1, 5, 2.0**60])).sum() == pytest.approx(4.0)


def test_values_a_factor_of_sixteen_apart_have_nothing_in_common_and_nearer_ones_have():
    def spike(octaves):
        histogram = np.zeros(BINS)
        histogram[int(40 + octaves * BINS_PER_OCTAVE)] = 1.0
        return histogram

    likeness = [overlap(spike(0), spike(apart), dimensions.HALF_WIDTH) for apart in (0, 1, 2, 3, 3.5, 4)]
    assert likeness[0] == 1 and likeness[-1] == 0
    assert likeness == sorted(set(likeness), reverse=True)
