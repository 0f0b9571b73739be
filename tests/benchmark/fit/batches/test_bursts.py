"""Batches of a process without loaders: bursts of one size in noise, pauses without a pattern, a pause within a batch."""

import numpy as np

from iotwin.benchmark.fit.batches.bursts import regular_batches


def test_bursts_of_one_size_are_found_in_noise():
    """Bursts of eight 10 us apart, 40 ms between them, on a machine that now and then takes a millisecond away."""
    rng = np.random.default_rng(3)
    gaps = np.where(np.arange(400) % 8 == 7, 40_000_000, 10_000) + (rng.random(400) < 0.2) * rng.integers(100_000, 3_000_000, 400)
    starts = np.cumsum(gaps)
    guess = np.append(0, np.cumsum(gaps[1:] > 100_000))
    found = regular_batches(starts, starts, guess)
    assert np.mean(np.bincount(found) == 8) > 0.9


def test_gaps_without_a_pattern_make_single_batches():
    rng = np.random.default_rng(4)
    starts = np.cumsum((rng.lognormal(0, 2, 300) * 1e6).astype(np.int64))
    found = regular_batches(starts, starts, np.arange(300) // 200)
    assert len(np.unique(found)) == 300


def test_a_pause_within_a_batch_does_not_make_two_of_it():
    gaps = [1] * 120
    gaps[::12] = [100] * 10
    gaps[1] = gaps[54] = gaps[55] = 100  # one sample alone, as in a warm-up, and one in the middle
    starts = np.cumsum(gaps) * 1_000_000
    found = regular_batches(starts, starts, np.cumsum(np.array(gaps) == 100))
    assert found.tolist() == [number // 12 for number in range(120)]
    short = np.repeat([0, 1, 2, 3, 4, 5], [12, 12, 12, 5, 12, 12])  # one that is really shorter stays
    starts = np.arange(65) * 1_000_000 + short * 100_000_000
    assert regular_batches(starts, starts, short).tolist() == short.tolist()


def test_batches_of_an_evaluation_may_be_smaller():
    """Of four training batches of two samples, and four batches of one sample each."""
    sizes = [2, 2, 2, 2, 1, 1, 1, 1] * 3
    number = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.arange(len(number)) * 1_000_000 + number * 100_000_000
    assert regular_batches(starts, starts, number).tolist() == number.tolist()
