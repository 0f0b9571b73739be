"""Step times under a memory budget grow by the overhead of its place on the curve."""

import msgspec
import pytest

from iotwin.common.errors import UsageError
from iotwin.loops.answers.what_if import ask, overrides_of
from iotwin.loops.emulation_summary import print_what_if
from iotwin.workload_yaml import Config, Normal, Quantiles, Recorded, Rematerialized, StepTime, Train
from iotwin.workload_yaml.dlio_spellings import known_name, known_value
from iotwin.workload_yaml.rematerialized import facts, overhead
from iotwin.workload_yaml.step_time_models import step_time

CURVE = [(1.0, 1.0), (0.6, 1.1), (0.3, 1.5)]


def under(budget, base=2.0):
    return Rematerialized(base=base, curve=CURVE, peak_bytes=1000, budget=budget)


@pytest.mark.parametrize(
    ("budget", "factor"), [(None, 1.0), (2000, 1.0), (1.0, 1.0), (0.7, 1.1), (600, 1.1), (599, 1.5), (0.3, 1.5)]
)
def test_the_largest_share_that_fits_gives_the_overhead(budget, factor):
    assert overhead(under(budget)) == factor
    assert step_time(under(budget), 1, 1) == pytest.approx(2.0 * factor)


def test_a_budget_that_no_schedule_meets_names_the_least_feasible_one():
    with pytest.raises(UsageError, match=r"budget of 0\.2 of the peak; the least feasible one is 0\.3 of it, 300 bytes"):
        step_time(under(200), 1, 1)


def test_distributions_grow_with_their_mean_and_recordings_are_refused():
    assert step_time(under(600, Normal(mean=1.0, stdev=0.5)), 1, 1) == Normal(mean=1.1, stdev=0.55)
    assert step_time(under(600, Quantiles(values=[1.0, 2.0])), 1, 1) == Quantiles(values=[1.1, 2.2])
    with pytest.raises(UsageError, match="poisson and recorded"):
        step_time(under(600, Recorded(file="times")), 1, 1)


def test_a_summary_tells_budget_overhead_and_share():
    assert facts(under(0.3)) == {"budget_bytes": 300, "overhead": 1.5, "recompute_share": pytest.approx(1 / 3)}
    assert facts(0.5) is None


def test_the_yaml_form_is_read_and_the_question_s_key_means_it():
    text = '{"type": "rematerialized", "base": 0.5, "curve": [[1.0, 1.0]], "peak_bytes": 10, "budget": 4e0}'
    assert isinstance(msgspec.json.decode(text, type=StepTime), Rematerialized)
    assert known_name("accelerator.memory_budget", 4e9) == "train.computation_time.budget"


def test_the_table_tells_use_with_recomputing_and_without_where_they_differ(capsys):
    def summary(value):
        remat = {"recompute_share": 0.25} if value == "4e9" else None
        own = {"estimates": {}, "rematerialization": remat, "page_cache_hit_ratio": None, "elapsed_s": 1.0}
        metric = {"train_au_mean_percentage": 80.0, "train_throughput_mean_samples_per_second": 5.0}
        return {"metric": metric, "iotwin": own, "num_accelerators": 1, "output": "out"}

    print_what_if(ask("accelerator.memory_budget", ["4e9"], summary) | {"output": "out"})
    names, plain, asked, _ = capsys.readouterr().out.splitlines()
    assert names.endswith("AU first %") and plain.split()[-1] == "80.0" and asked.split()[-1] == "60.0"
    print_what_if(ask("accelerators", ["2"], summary) | {"output": "out"})
    assert "AU first" not in capsys.readouterr().out


def test_a_recordings_table_has_use_samples_and_bytes_and_its_budget_may_have_a_unit(capsys):
    def summary(value):
        training = {"au": 0.8, "samples_per_second": 5.0, "epoch_s": [2.0, 2.0]}
        own = {"rematerialization": {"recompute_share": 0.25}, "page_cache_hit_ratio": None, "elapsed_s": 1.0}
        own |= {"training": training, "bytes_read": 8 << 20, "recorded": {"calls": {}, "data_wait_s": 0.1}}
        return {"metric": {}, "iotwin": own, "num_accelerators": 1, "output": "out"}

    print_what_if(ask("accelerator.memory_budget", ["4GB"], summary) | {"output": "out"})
    names, plain, asked, _ = capsys.readouterr().out.splitlines()
    assert names.split()[-8:] == ["samples/s", "AU", "%", "AU", "first", "%", "read", "MiB/s"]
    assert asked.split()[-4:] == plain.split()[-4:] == ["5", "80", "60", "2"]
    assert known_value("train.computation_time.budget", "4GB") == 4_000_000_000


def test_a_workload_without_a_curve_refuses_the_question():
    with pytest.raises(UsageError, match=r"does not have what memory budgets cost.*--operations"):
        overrides_of("accelerator.memory_budget", "4e9", Config())
    config = Config(train=Train(computation_time=under(600)))
    assert overrides_of("accelerator.memory_budget", "4e9", config) == ["++workload.accelerator.memory_budget=4e9"]
