"""Times of a job as quantiles, in order, or with a first value apart."""

import numpy as np
import pytest

from iotwin.benchmark.fit.parameters.distributions import by_step, quantiles, warm_first, warm_up
from iotwin.common.numbers.draws import inverse_cdf
from iotwin.workload_yaml import InOrder, Quantiles


def test_a_first_value_is_warm_up_when_half_as_long_again_as_nearly_all_others():
    others = np.full(20, 2.0)
    assert warm_up(np.append(3.01, others))[0] == 1.01 and warm_up(np.append(3.0, others))[0] == 0
    assert warm_up(np.append(3.01, others))[1].tolist() == others.tolist() and warm_up(np.array([9.0]))[0] == 0
    assert warm_first(np.array([9.0, 2, 3])) == InOrder([9.0, 2.0, 3.0])
    for values in (np.array([3.0, 2, 3]), np.append(9.0, np.arange(2, 2.3, 0.01))):  # the others hardly show one of many
        assert warm_first(values) == quantiles(values)


def test_values_become_as_many_quantiles_as_tell_something():
    assert quantiles(np.zeros(0)) == 0.0 and quantiles(np.full(5, 0.25)) == 0.25
    assert quantiles(np.array([3.0, 1.0, 2.0])).values == [1.0, 2.0, 3.0]
    many = quantiles(np.arange(1.0, 101.0)).values
    assert len(many) == 21 and many[0] == 1.0 and many[10] == pytest.approx(50.5)
    assert many[-1] == pytest.approx(2 * np.mean([96, 97, 98, 99, 100]) - many[-2])


def test_steps_that_take_as_long_in_each_pass_have_an_order():
    first, second = np.array([0.3, 0.1, 0.1, 0.2, 0.6]), np.array([0.32, 0.1, 0.12, 0.2, 0.6])
    assert by_step([first, second], 5) == InOrder([0.31, 0.1, 0.11, 0.2, 0.6])
    assert by_step([first, second[:-1]], 5) == InOrder([0.31, 0.1, 0.11, 0.2, 0.2])  # the last one's is not known
    for passes, steps in (
        ([first], 5),  # once is no order
        ([first, first[::-1]], 5),
        ([first, second[:3]], 5),
        ([first[:3], second[:3]], 3),
        ([1 + first / 10, 1 + second / 10], 5),  # much alike
    ):
        assert by_step(passes, steps) == quantiles(np.concatenate(passes))


def test_one_stall_among_thousands_does_not_become_many():
    values = np.append(np.random.default_rng(1).uniform(0.001, 0.0012, 3999), 0.053)
    found = quantiles(values)
    assert isinstance(found, Quantiles) and found.values[0] >= 0.001
    mean = np.mean([inverse_cdf(found, float(place)) for place in np.linspace(0, 1, 2001)])
    assert mean == pytest.approx(values.mean(), rel=0.01)
