"""The controller on made series of many shapes, held against what is asked of it: a bound that is kept, and few changes."""

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.workloads.policies.adaptive_interval import Controller, StepWindow
from tests.workloads.common.test_adaptive_interval import during, windows_after

BOUND, K, STALL, WRITTEN = 0.05, 14, 0.7, 6  # stalls of 0.7 steps every 14 are 5 %; writing lasts 6 steps

Factor = Callable[[random.Random, int], float]  # what a step's time, or a stall, is multiplied by


def uniform(draw: random.Random, step: int) -> float:
    return 1 + draw.uniform(-0.2, 0.2)


def normal(draw: random.Random, step: int) -> float:
    return max(0.5, draw.gauss(1, 0.1))


def heavy(draw: random.Random, step: int) -> float:
    """Mostly within 20 %, but one step in a hundred takes three times as long or more."""
    return uniform(draw, step) + (0.02 * draw.paretovariate(1.5) if draw.random() > 0.5 else 0.0)


def spikes(draw: random.Random, step: int) -> float:
    return 5.0 if draw.random() < 0.01 else uniform(draw, step)


def period(length: float) -> Factor:
    return lambda draw, step: 1 + 0.15 * math.sin(2 * math.pi * step / length) + draw.uniform(-0.05, 0.05)


def run(steps: int, noise: Factor, stall: Callable[[int], float], seed: int, writing: bool = True) -> list[StepWindow]:
    """Windows of a job of which a step takes a second and each checkpoint stalls for `stall` of its step."""
    draw, controller, windows, since = random.Random(seed), Controller(BOUND, K), [], 99
    for step in range(steps):
        begins = controller.due
        since = 0 if begins else since + 1
        stalled = begins * stall(step) * min(noise(draw, step), 1.2)
        ended = controller.step(noise(draw, step) + stalled, begins, stalled, writing and since < WRITTEN)
        windows += [ended] if ended else []
    return windows


def changes_in_three(windows: list[StepWindow]) -> int:
    """The most changes of the interval in three windows that follow one another."""
    changed = [a != b for a, b in itertools.pairwise([K, *(window.interval for window in windows)])]
    return max(sum(changed[first : first + 3]) for first in range(len(changed)))


@pytest.mark.parametrize("noise", [uniform, normal, heavy, spikes, period(7), period(14), period(15), period(90)])
def test_noise_of_any_shape_moves_the_interval_at_most_once_in_three_windows(noise):
    for seed in range(60):
        windows = run(600, noise, lambda step: STALL, seed, writing=seed % 2 == 0)
        assert changes_in_three(windows) <= 1, seed
        assert all(K / 2 <= window.interval <= 3 * K for window in windows), seed


@pytest.mark.parametrize("seed", [647, 884])
def test_series_that_once_moved_it_twice(seed):
    assert changes_in_three(run(600, uniform, lambda step: STALL, seed)) <= 1


@settings(max_examples=60)
@given(st.integers(100, 200), st.integers(100, 300), st.floats(1.35, 1.9), st.booleans())
def test_dearer_checkpoints_are_answered_within_two_windows_and_forgotten_within_four(begin, length, factor, writing):
    slow, end = during(begin, begin + length, factor), begin + length
    windows = run(end + 200, lambda draw, step: 1.0, lambda step: STALL * slow(step), 0, writing)
    answered = windows_after(windows, begin, 3)[-1].last_step
    held = [window for window in windows if answered <= window.last_step < end]
    assert all(window.overhead <= BOUND + 1e-9 for window in held)
    assert abs(windows_after(windows, end, 4)[-1].interval - K) <= 0.1 * K


@settings(max_examples=40)
@given(st.integers(50, 400), st.floats(1.2, 3.0), st.booleans())
def test_checkpoints_that_grow_dearer_step_by_step_are_followed(length, factor, writing):
    def stall(step: int) -> float:
        return STALL * (1 + (factor - 1) * min(max(step - 100, 0) / length, 1))

    windows = run(length + 500, lambda draw, step: 1.0, stall, 0, writing)
    settled = windows_after(windows, 100 + length, 8)[-1]  # three must agree on the last little, and three before
    assert settled.overhead <= BOUND + 1e-9
    assert settled.interval <= math.ceil(K * factor * 1.3)
    grown = [window.interval for window in windows]
    assert grown == sorted(grown)


@settings(max_examples=60)
@given(st.integers(100, 300), st.floats(2.5, 20))
def test_one_dear_checkpoint_is_forgotten(at, factor):
    windows = run(at + 400, lambda draw, step: 1.0, lambda step: STALL * (factor if at <= step < at + K else 1), 0)
    assert max(window.interval for window in windows) <= 2 * K
    assert abs(windows[-1].interval - K) <= 0.1 * K and changes_in_three(windows) <= 1
