"""Times as quantiles."""

import numpy as np
import pytest

from benchmark.config import Quantiles
from benchmark.fit.times import quantiles
from common.draws import inverse_cdf


def test_one_stall_among_thousands_does_not_become_many():
    values = np.append(np.random.default_rng(1).uniform(0.001, 0.0012, 3999), 0.053)
    found = quantiles(values)
    assert isinstance(found, Quantiles) and found.values[0] >= 0.001
    mean = np.mean([inverse_cdf(found, float(place)) for place in np.linspace(0, 1, 2001)])
    assert mean == pytest.approx(values.mean(), rel=0.01)
