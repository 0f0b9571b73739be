"""The order of files: its statistics and their variances against sums over all orders."""

import re
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.tracesim.calls import FILE_KINDS, GROUPS
from iotwin.tracesim.dimensions import DEFINITIONS
from iotwin.tracesim.order import order_of
from iotwin.tracesim.phases import EVALUATION, PHASES, TRAINING
from iotwin.tracesim.profile import _name_ranks


@given(st.lists(st.text("0129ab/-.\x01z", max_size=6), max_size=12))
def test_names_are_ranked_with_their_numbers_as_numbers(names):
    parts = [[int(part) if at % 2 else part for at, part in enumerate(re.split("([0-9]+)", name))] for name in names]
    expected = sorted(range(len(names)), key=parts.__getitem__)
    assert np.argsort(_name_ranks(pa.chunked_array([names], pa.string()), np.arange(len(names)))).tolist() == expected


def exact_footrule(n):
    """Mean and variance of sum |i - p(i)| over all permutations p of n, from the chances of one and of two values of p."""
    values = range(n)
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(float)
    mean = distance.mean(axis=1).sum()
    squares = (distance**2).mean(axis=1).sum()
    crossed = sum(distance[i, a] * distance[j, b] for i, j, a, b in product(values, repeat=4) if i != j and a != b) / (
        n * (n - 1)
    )
    return mean, squares + crossed - mean**2


def exact_step(n):
    """Mean and variance of |a - b| over all pairs of different places of n."""
    distances = [abs(a - b) for a in range(n) for b in range(n) if a != b]
    return np.mean(distances), np.var(distances)


@pytest.mark.parametrize("n", [8, 9, 12])
def test_the_variances_are_those_over_all_orders(n):
    generator = np.random.default_rng(n)
    here, there = generator.permutation(n), generator.permutation(n)
    order = order_of([there, here], np.array([1, 1]), np.arange(n))
    mean, variance = exact_footrule(n)
    assert order.drift_variance[1] == pytest.approx(variance / mean**2)
    step, of_step = exact_step(n)
    assert order.scatter_variance == pytest.approx(np.full(2, of_step / (n - 1) / (step - 1) ** 2))
    moved = sum(abs(here.tolist().index(file) - there.tolist().index(file)) for file in range(n))
    assert order.drift[1] == pytest.approx(min(moved / mean, 1.0)) and np.isnan(order.drift[0])
    steps = np.mean([abs(int(a) - int(b)) for a, b in pairwise(here)])
    assert order.scatter[1] == pytest.approx(min((steps - 1) / (step - 1), 1.0))


def test_only_files_that_both_occurrences_read_have_drifted_and_phases_stand_alone():
    first, other, second = np.arange(9), np.arange(100, 108), np.array([8, 20, 1, 2, 3, 4, 5, 6, 7, 0])
    order = order_of([first, other, second], np.array([1, 2, 1]), np.arange(200))
    mean, variance = exact_footrule(9)
    assert order.drift[2] == pytest.approx(16 / mean) and order.drift_variance[2] == pytest.approx(variance / mean**2)
    assert np.isnan(order.drift[:2]).all() and np.isnan(order.drift_variance[:2]).all()


def summary_with(scatter, variance, moved_bytes=(5.0, 15.0)):
    """A summary whose training and evaluation have these orders of files, and are alike in all else."""
    of_phases = {
        name: np.full(len(PHASES), np.nan)
        for name in ("scatter", "scatter_variance", "drift", "drift_variance", "jumps", "jumps_variance")
    }
    moved = np.zeros((len(PHASES), len(FILE_KINDS), len(GROUPS)))
    for phase, value, chance, size in zip((TRAINING, EVALUATION), scatter, variance, moved_bytes, strict=True):
        of_phases["scatter"][phase], of_phases["scatter_variance"][phase], moved[phase, 0, 0] = value, chance, size
    ones = np.ones(8)
    return SimpleNamespace(**of_phases, bytes=moved, step_calls=ones, step_bytes=ones, rereads=ones)


def test_orders_are_as_alike_as_their_difference_beyond_two_deviations_of_chance():
    score = next(each.score for each in DEFINITIONS if each.name == "access_order")
    a, b = summary_with((0.9, 0.2), (0.01, 0.04)), summary_with((0.1, 0.6), (0.0025, 0.0))
    training = 1 - max(0.8 - 2 * np.sqrt(0.01 * 0.9 + 0.0025 * 0.1), 0)
    evaluation = 1 - max(0.4 - 2 * np.sqrt(0.04 * 0.2), 0)
    found = score(a, b)
    assert 0.3 < training < evaluation < 1
    assert found.parts["file_order"] == pytest.approx((5 * training + 15 * evaluation) / 20)
    assert found.total == pytest.approx(found.parts["file_order"]) and found.parts["file_order_by_epoch"] == 1
    within_chance = summary_with((0.8, 0.5), (0.01, 0.01))
    assert score(within_chance, summary_with((0.7, 0.4), (0.01, 0.01))).total == 1
