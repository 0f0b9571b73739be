"""Correcting a twin's times by the error that a fit of its own run shows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.calibrate import corrected
from iotwin.common.numbers.draws import inverse_cdf


def _config(computation: c.Duration, first: c.Duration | None = None) -> c.Config:
    return c.Config(
        dataset=c.Dataset(data_folder="data"), train=c.Train(computation_time=computation), twin=c.Twin(first_step_time=first)
    )


def test_a_time_moves_by_what_the_fit_of_the_twin_was_off():
    # The job was fitted at 50 ms; the twin, told 50, shows 53: the fit adds 3, so that the job's true time was 47.
    assert corrected(_config(0.050), _config(0.050), _config(0.053)).train.computation_time == pytest.approx(0.047, abs=1e-6)


def test_nothing_moves_once_the_twin_shows_what_the_job_showed():
    config = _config(0.047)
    assert corrected(config, _config(0.050), _config(0.050)) == config


def test_each_checkpoint_file_is_corrected_by_its_own_name():
    def saving(**times: c.Duration | None) -> c.Config:
        files = [c.CheckpointFile(name=name, write_sizes=[(1, 1)], serialization_time=time) for name, time in times.items()]
        return c.Config(dataset=c.Dataset(data_folder="data"), twin=c.Twin(checkpoint=c.TwinCheckpoint(files=files)))

    result = corrected(saving(a=0.050, b=0.020, c=None), saving(a=0.050, b=0.020), saving(b=0.020, a=0.053))
    assert [file.serialization_time for file in result.twin.checkpoint.files] == [pytest.approx(0.047, abs=1e-6), 0.020, None]


def test_times_in_order_move_step_by_step_and_stay_where_the_run_shows_no_order():
    now, should, found = c.InOrder([0.2, 0.1]), c.InOrder([0.3, 0.1]), c.InOrder([0.2, 0.15])
    moved = corrected(_config(now), _config(should), _config(found)).train.computation_time
    assert moved == c.InOrder([0.3, 0.05])
    for other in (c.InOrder([0.2]), c.Quantiles([0.1, 0.2])):
        assert corrected(_config(now), _config(should), _config(other)).train.computation_time == now


def test_times_never_fall_below_zero_and_unknown_ones_stay_unknown():
    result = corrected(_config(0.001), _config(0.001, 0.2), _config(0.010, 0.2))
    assert result.train.computation_time == 0.0 and result.twin.first_step_time is None


curves = st.lists(st.floats(0, 1), min_size=2, max_size=21).map(lambda values: c.Quantiles(values=sorted(values)))


@given(curves, curves, curves)
def test_corrected_quantiles_rise_and_keep_the_mean_shift(now, should, found):
    moved = corrected(_config(now), _config(should), _config(found)).train.computation_time
    at = np.linspace(0, 1, 21)
    curve = [inverse_cdf(moved, p) for p in at]
    assert np.all(np.diff(curve) >= 0) and curve[0] >= 0
    raw = [max(inverse_cdf(now, p) + inverse_cdf(should, p) - inverse_cdf(found, p), 0.0) for p in at]
    assert np.mean(curve) == pytest.approx(np.mean(raw), abs=1e-5)
