"""Drawn times follow the distribution asked for, and are keyed by what they are for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.numbers.draws import DrawnTime, even_strata, inverse_cdf
from iotwin.common.numbers.keyed import Purpose
from iotwin.workload_yaml import Duration, Normal, Quantiles

DRAWS = 4000
# The Kolmogorov-Smirnov distance that DRAWS true draws exceed once in a million: sqrt(ln(2 / 1e-6) / 2 / DRAWS).
FARTHEST = np.sqrt(np.log(2e6) / 2 / DRAWS)

quantiles = st.lists(st.floats(0, 1e3), min_size=1, max_size=30).map(lambda values: Quantiles(values=sorted(values)))
normals = st.builds(Normal, mean=st.floats(0, 100), stdev=st.floats(0, 100))


def draws(duration: Duration, seed: int = 7) -> np.ndarray:
    drawn = DrawnTime(duration, seed, Purpose.TRAIN_STEP)
    return np.array([drawn.seconds(0, 1 + step // 104, step % 104) for step in range(DRAWS)])


def test_quantiles_are_drawn_as_they_were_given() -> None:
    # Bimodal, as preprocessing times are: no normal curve comes near it.
    values = [0.004, 0.005, 0.006, 0.008, 0.2, 0.25, 0.4, 0.9]
    drawn = np.sort(draws(Quantiles(values=values)))
    expected = np.interp(drawn, values, np.linspace(0, 1, len(values)))
    assert np.abs(expected - np.arange(1, DRAWS + 1) / DRAWS).max() < FARTHEST


def test_a_normal_curve_is_truncated_at_zero_and_not_folded() -> None:
    from statistics import NormalDist

    mean, stdev = 0.1, 0.1
    drawn = np.sort(draws(Normal(mean=mean, stdev=stdev)))
    curve = NormalDist(mean, stdev)
    below = curve.cdf(0)
    expected = (np.array([curve.cdf(value) for value in drawn]) - below) / (1 - below)
    assert drawn.min() >= 0
    assert np.abs(expected - np.arange(1, DRAWS + 1) / DRAWS).max() < FARTHEST


@given(duration=quantiles | normals, probabilities=st.lists(st.floats(0, 1), min_size=2).map(sorted))
def test_the_inverse_rises_and_stays_in_bounds(duration: Quantiles | Normal, probabilities: list[float]) -> None:
    values = [inverse_cdf(duration, probability) for probability in probabilities]
    assert all(low <= high * (1 + 1e-12) + 1e-12 for low, high in pairwise(values))
    assert all(np.isfinite(values)) and min(values) >= 0
    if isinstance(duration, Quantiles):
        assert duration.values[0] * (1 - 1e-12) <= values[0] and values[-1] <= duration.values[-1] * (1 + 1e-12)


@pytest.mark.parametrize("duration", [0.25, Normal(mean=0.25), Quantiles(values=[0.25])])
def test_a_constant_is_a_constant(duration: Duration) -> None:
    assert set(draws(duration).tolist()) == {0.25}


@given(
    epoch=st.integers(1, 10**6), steps=st.integers(1, 12), values=st.lists(st.floats(0, 1), min_size=2, max_size=9).map(sorted)
)
def test_the_sum_of_few_draws_is_near_its_expectation(epoch: int, steps: int, values: list[float]) -> None:
    drawn = DrawnTime(Quantiles(values=values), 3, Purpose.TRAIN_STEP)
    total = sum(drawn.seconds(0, epoch, step) for step in range(8 * steps))
    mean = float(np.mean([(low + high) / 2 for low, high in pairwise(values)]))
    # Within a stratum a draw strays by at most the stratum's width, and the widths add up to the whole range.
    assert abs(total - 8 * steps * mean) <= steps * (values[-1] - values[0]) + 1e-9


@given(steps=st.integers(1, 500))
def test_an_epoch_draws_once_from_each_part_of_a_distribution_or_as_often_from_each(steps: int) -> None:
    strata = even_strata(steps)
    drawn = DrawnTime(Quantiles(values=[0.0, 1.0]), 3, Purpose.TRAIN_STEP, strata)
    parts = np.floor(np.array([drawn.seconds(0, 1, step) for step in range(steps)]) * strata).astype(int)
    counts = np.bincount(parts, minlength=strata)
    blocks = -(-steps // strata)
    assert len(counts) == strata <= 32 and counts.max() <= blocks and np.ptp(counts) <= 1
    assert blocks * strata - steps < blocks  # the last block lacks fewer parts than there are blocks


def test_draws_depend_on_their_key_and_on_nothing_else() -> None:
    duration = Quantiles(values=[0.0, 1.0])
    drawn = DrawnTime(duration, 7, Purpose.TRAIN_STEP)
    keys = [(rank, epoch, step) for rank in range(3) for epoch in range(4) for step in range(5)]
    forwards = [drawn.seconds(*key) for key in keys]
    assert [drawn.seconds(*key) for key in reversed(keys)] == forwards[::-1]
    assert len(set(forwards)) == len(keys)
    other_purpose = [DrawnTime(duration, 7, Purpose.TRAIN_SAMPLE).seconds(*key) for key in keys]
    other_seed = [DrawnTime(duration, 8, Purpose.TRAIN_STEP).seconds(*key) for key in keys]
    assert not set(forwards) & set(other_purpose) and not set(forwards) & set(other_seed)
