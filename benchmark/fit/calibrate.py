"""Correcting a twin by what a fit of its own run finds.

What a fit says of a time differs a little from the time that was there: a step's computation, say, seems longer by what the
system calls around it took. The twin's run has the same error, and its true times are known: the YAML says them. So each time is
moved by the difference between what the fit found in the job and what it finds in the twin (indirect inference; Gourieroux,
Monfort and Renault, Journal of Applied Econometrics 8, 1993), quantile by quantile.
"""

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.fit.times import quantiles
from iotwin.common.numbers.draws import inverse_cdf
from iotwin.workload_yaml import Config, Duration, InOrder

# Every time of a workload that a fit finds, as the attributes that lead to it.
_TIMES = (
    ("train", "computation_time"), ("evaluation", "eval_time"), ("reader", "preprocess_time"), ("twin", "init_time"),
    ("twin", "epoch_warm_up_time"), ("twin", "first_step_time"), ("twin", "reader", "start_time"),
    ("twin", "evaluation", "preprocess_time"), ("twin", "evaluation", "lead_time"),
    ("twin", "checkpoint", "lead_time"), ("twin", "checkpoint", "first_lead_time"), ("twin", "checkpoint", "tail_time"),
    ("twin", "checkpoint", "snapshot_time"),
)  # fmt: skip
_PROBABILITIES = np.linspace(0, 1, 21)


def corrected(current: Config, wanted: Config, seen: Config) -> Config:
    """Return `current` with every time moved by the difference between the fit of the job and the fit of the twin's run.

    `wanted` was fitted to the job, `seen` to the run of `current`. Counts and sizes stay as they are: a difference in those is an
    error of the fit, which no correction hides.
    """
    result = copy.deepcopy(current)
    for path in _TIMES:
        now, should, found = (_get(config, path) for config in (current, wanted, seen))
        if now is not None and should is not None and found is not None:
            _set(result, path, _moved(now, should, found))
    files = [{file.name: file.serialization_time for file in config.twin.checkpoint.files} for config in (wanted, seen)]
    for file in result.twin.checkpoint.files:
        should, found = (times.get(file.name) for times in files)
        if file.serialization_time is not None and should is not None and found is not None:
            file.serialization_time = _moved(file.serialization_time, should, found)
    return result


def _moved(now: Duration, should: Duration, found: Duration) -> Duration:
    if isinstance(should, InOrder) or isinstance(found, InOrder) or isinstance(now, InOrder):
        return _moved_in_order(now, should, found)
    moved = np.maximum(_curve(now) + _curve(should) - _curve(found), 0.0)
    # A sum of quantile curves need not rise everywhere; sorting is its closest rising rearrangement.
    return quantiles(np.sort(moved))


def _moved_in_order(now: Duration, should: Duration, found: Duration) -> Duration:
    """Each step's time by itself; as it is, where the twin's run did not show the order."""
    if not (isinstance(now, InOrder) and isinstance(should, InOrder) and isinstance(found, InOrder)):
        return now
    if not len(now.values) == len(should.values) == len(found.values):
        return now
    moved = np.maximum(np.array(now.values) + should.values - np.array(found.values), 0.0)
    return InOrder([round(float(value), 6) for value in moved])


def _curve(duration: Duration) -> NDArray[np.float64]:
    return np.array([inverse_cdf(duration, float(probability)) for probability in _PROBABILITIES])


def _get(config: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        config = getattr(config, name)
    return config


def _set(config: Any, path: tuple[str, ...], value: Duration) -> None:
    setattr(_get(config, path[:-1]), path[-1], value)
