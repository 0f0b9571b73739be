"""What stands for computation in the variant sleep."""

import json
import statistics
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.durations import Quantiles
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workloads.common.variant import SLEEP, SleptSteps, check_variant, parse_sleep


def times(duration, seed=1):
    return DrawnTime(duration, seed, Purpose.SLEPT_STEP, 64)


def _drawn(duration, count=4000):
    drawn = times(duration)
    return [drawn.seconds(0, 0, step) for step in range(count)]


def test_a_number_is_always_the_same():
    assert set(_drawn(parse_sleep("0.25"), 10)) == {0.25}


def test_a_normal_curve_has_its_mean_and_deviation():
    drawn = _drawn(parse_sleep("1.36,0.2"))
    assert statistics.mean(drawn) == pytest.approx(1.36, abs=0.02)
    assert statistics.stdev(drawn) == pytest.approx(0.2, rel=0.05)


def test_a_wide_normal_curve_is_cut_at_zero_without_a_heap_there():
    drawn = np.array(_drawn(parse_sleep("0.1,0.2")))
    assert (drawn >= 0).all() and (drawn == 0).mean() < 0.01
    above = NormalDist(0.1, 0.2)
    expected = above.inv_cdf(above.cdf(0) + 0.5 * (1 - above.cdf(0)))
    assert np.median(drawn) == pytest.approx(expected, rel=0.05)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20), st.integers(0, 2**31), st.integers(0, 1000), st.integers(0, 10**6))
def test_quantiles_bound_what_is_drawn_and_a_rerun_draws_the_same(values, seed, rank, step):
    model = Quantiles(sorted(values))
    drawn = times(model, seed).seconds(rank, 0, step)
    assert min(values) <= drawn <= max(values)
    assert drawn == times(model, seed).seconds(rank, 0, step)


@given(st.integers(0, 2**31), st.integers(0, 1000), st.integers(0, 10**4))
def test_every_64_steps_are_spread_over_the_whole_distribution(seed, rank, block):
    model = times(Quantiles([0.0, 64.0]), seed)
    drawn = [model.seconds(rank, 0, 64 * block + place) for place in range(64)]
    assert sorted(map(int, drawn)) == list(range(64))
    assert abs(statistics.mean(drawn) - 32) <= 0.5


def test_ranks_and_steps_draw_their_own():
    model = times(parse_sleep("1,0.1"))
    assert len({model.seconds(rank, 0, step) for rank in range(10) for step in range(10)}) == 100


@pytest.mark.parametrize(
    ("document", "middle"),
    [(0.5, 0.5), ({"type": "normal", "mean": 0.5, "stdev": 0.01}, 0.5), ({"type": "quantiles", "values": [0.4, 0.5, 0.6]}, 0.5)],
)
def test_a_file_as_plot_steps_writes_it(tmp_path, document, middle):
    (tmp_path / "model.json").write_text(json.dumps(document))
    assert statistics.median(_drawn(parse_sleep(str(tmp_path / "model.json")))) == pytest.approx(middle, rel=0.02)


@pytest.mark.parametrize("text", ["-1", "nan", "1,2,3", "1,-1", "inf"])
def test_impossible_models(text):
    with pytest.raises(UsageError):
        parse_sleep(text)


def test_files_that_are_no_model(tmp_path):
    with pytest.raises(IotwinError, match="existing file"):
        parse_sleep(str(tmp_path / "none"))
    for number, content in enumerate(["{", '{"type": "quantiles", "values": []}', '{"type": "gamma"}', '["a"]']):
        path = tmp_path / f"{number}.json"
        path.write_text(content)
        with pytest.raises(IotwinError, match="plot steps"):
            parse_sleep(str(path))


def test_a_late_sleep_shortens_the_next(monkeypatch):
    now_ns = [0]

    def sleep(seconds):
        now_ns[0] += round(seconds * 1e9) + 4_000_000  # a timer that is always late

    monkeypatch.setattr("iotwin.workloads.common.variant.Sleeper", lambda: Sleeper(now_ns=lambda: now_ns[0], sleep=sleep))
    slept = SleptSteps(parse_sleep("0.01"), 1, 0)
    for _ in range(100):
        slept.next_step()
    assert now_ns[0] / 1e9 == pytest.approx(100 * 0.01 + 0.004)


@pytest.mark.parametrize(
    ("variant", "sleep", "message"),
    [("slep", None, "did you mean 'sleep'"), (SLEEP, None, "needs --sleep"), ("original", "1", "not for original")],
)
def test_variants_that_cannot_be(variant, sleep, message):
    with pytest.raises(UsageError, match=message):
        check_variant(variant, sleep, ("original", "instrumented", "sleep"))
