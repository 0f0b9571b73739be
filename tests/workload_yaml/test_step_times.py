"""Distributions of time: each against its own mean and quantiles, recordings, and the models of the paper's step times."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.numbers.draws import DrawnTime, inverse_cdf
from iotwin.common.numbers.gamma import gamma_cdf, gamma_quantile
from iotwin.common.numbers.keyed import Purpose
from iotwin.workload_yaml import (
    Duration,
    Exponential,
    Gamma,
    InOrder,
    Lognormal,
    MeasuredStepTime,
    Normal,
    Poisson,
    Quantiles,
    Recorded,
    StepTimeRegression,
    Uniform,
)
from iotwin.workload_yaml.step_time_models import _TABLE, step_time

probabilities = st.floats(0, 1)
positive = st.floats(1e-3, 1e3)


@pytest.mark.parametrize(
    ("duration", "mean", "stdev"),
    [
        (Uniform(0.2, 0.6), 0.4, 0.4 / math.sqrt(12)),
        (Exponential(0.3), 0.3, 0.3),
        (Gamma(0.5, 0.2), 0.1, math.sqrt(0.5) * 0.2),
        (Gamma(256, 0.00125), 0.32, 16 * 0.00125),
        (Lognormal(0.32, 0.1), 0.32, 0.1),
        (Poisson(3), 3, math.sqrt(3)),
    ],
)
def test_a_distribution_has_the_moments_it_says(duration: Duration, mean: float, stdev: float) -> None:
    """Integrated over equally likely values, the ends of long tails cut off at 1 in 40 000."""
    values = np.array([inverse_cdf(duration, (place + 0.5) / 20_000) for place in range(20_000)])
    assert values.mean() == pytest.approx(mean, rel=3e-3)
    assert values.std() == pytest.approx(stdev, rel=2e-2)


@settings(max_examples=200)
@given(
    duration=st.one_of(
        st.builds(Uniform, min=st.just(0.1), max=positive.map(lambda value: value + 0.1)),
        st.builds(Exponential, scale=positive),
        st.builds(Gamma, shape=st.floats(0.05, 500), scale=positive),
        st.builds(Lognormal, mean=positive, stdev=positive),
        st.builds(Poisson, lam=st.floats(0.01, 700)),
    ),
    pair=st.tuples(probabilities, probabilities).map(sorted),
)
@example(duration=Gamma(1.0, 1.0), pair=[0.0, 1.0])
@example(duration=Gamma(0.1, 1.0), pair=[0.5, 1.0])
def test_times_are_finite_never_negative_and_rise_with_probability(duration: Duration, pair: list[float]) -> None:
    low, high = (inverse_cdf(duration, probability) for probability in pair)
    assert 0 <= low <= high * (1 + 1e-9) and math.isfinite(high)


@settings(max_examples=200)
@given(shape=st.floats(0.05, 1000), probability=st.floats(1e-6, 1 - 1e-6))
def test_the_quantile_of_gamma_is_the_inverse_of_its_distribution(shape: float, probability: float) -> None:
    assert gamma_cdf(shape, gamma_quantile(shape, probability)) == pytest.approx(probability, rel=1e-6, abs=1e-9)


def test_gamma_against_values_known_in_closed_form() -> None:
    assert gamma_cdf(1, 2) == pytest.approx(1 - math.exp(-2))  # exponential
    assert gamma_cdf(0.5, 0.5) == pytest.approx(math.erf(math.sqrt(0.5)))  # chi-square of one degree, halved
    assert gamma_quantile(1, 0.9) == pytest.approx(math.log(10))


def test_ranks_draw_their_own_times_and_a_rerun_the_same() -> None:
    def draws(rank: int) -> list[float]:
        return [DrawnTime(Gamma(4, 0.1), 7, Purpose.TRAIN_STEP).seconds(rank, 1, step) for step in range(20)]

    assert draws(0) == draws(0) != draws(1)


def test_a_recording_is_replayed_in_order_from_a_place_of_each_rank_and_epoch(tmp_path: Path) -> None:
    recorded = [round(0.1 + 0.001 * number, 3) for number in range(50)]
    file = tmp_path / "times.txt"
    file.write_text("# seconds\n" + "\n".join(map(str, recorded)) + "\n\n")
    drawn = DrawnTime(Recorded(str(file)), 7, Purpose.TRAIN_STEP)
    starts = set()
    for rank, epoch in ((0, 1), (0, 2), (1, 1), (2, 1)):
        times = [drawn.seconds(rank, epoch, step) for step in range(60)]
        place = recorded.index(times[0])
        starts.add(place)
        assert times == [recorded[(place + step) % 50] for step in range(60)]
    assert len(starts) > 1


def test_times_in_order_are_those_of_each_epochs_steps() -> None:
    drawn = DrawnTime(InOrder([0.3, 0.1, 0.2]), 7, Purpose.EVALUATION_STEP)
    assert [drawn.seconds(rank, epoch, step) for rank, epoch in ((0, 1), (1, 4)) for step in range(4)] == [0.3, 0.1, 0.2, 0.2] * 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "holds no recorded times"),
        ("0.1\nslow\n", "times.txt:2: 'slow' is no number"),
        ("-1\n", "no time"),
        ("nan\n", "no time"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_recording_is_refused(content: str | None, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "times.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(IotwinError) as error:
        DrawnTime(Recorded(str(file)), 7, Purpose.TRAIN_STEP)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_the_fits_give_what_the_paper_s_configurations_took() -> None:
    for workload, gpus, batch, mean, stdev in (
        ("unet3d", 8, 4, 1.3923, 0.0384),
        ("bert", 8, 6, 1.0805, 0.0378),
        ("dlrm", 8, 32768, 0.09529, 0.00337),
    ):
        fitted = step_time(StepTimeRegression(workload), gpus, batch)  # type: ignore[arg-type]
        assert isinstance(fitted, Normal)
        assert (fitted.mean, fitted.stdev) == (pytest.approx(mean, abs=1e-4), pytest.approx(stdev, abs=1e-4))
    assert step_time(StepTimeRegression("unet3d", gpus=8, batch_size=4), 1, 1) == step_time(StepTimeRegression("unet3d"), 8, 4)
    # The fit of the deviation is negative for one GPU; a distribution has none that is.
    assert step_time(StepTimeRegression("unet3d"), 1, 1) == Normal(mean=pytest.approx(0.55400, abs=1e-4), stdev=0.0)


def test_measured_times_keep_the_measured_quartiles_and_mean() -> None:
    with _TABLE.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len(rows) >= 60
    for row in rows:
        drawn = step_time(MeasuredStepTime(row["workload"]), int(row["gpus"]), int(row["batch"]))  # type: ignore[arg-type]
        assert isinstance(drawn, Quantiles)
        least, first, median, third, most = drawn.values
        assert (first, median, third) == tuple(float(row[key]) for key in ("q1_s", "median_s", "q3_s"))
        assert 0 <= least <= first <= median <= third <= most
        mean = (least + 2 * (first + median + third) + most) / 8
        # Where the measured mean is below what the quartiles alone make, no tail can bring it there.
        assert mean == pytest.approx(float(row["mean_s"]), rel=1e-9) or most == third


def test_what_was_not_measured_or_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="unet3d was not measured with 3 GPUs and batch 4; known are 1 x 1"):
        step_time(MeasuredStepTime("unet3d"), 3, 4)
    with pytest.raises(UsageError, match="dlrm has no positive step time"):
        step_time(StepTimeRegression("dlrm", gpus=None), 0, 1)
