"""Pictures of data files: what is in each bar and curve, and what the authors' pictures leave out."""

import json

import pytest

from iotwin.common.errors import UsageError
from iotwin.workloads.dtr.experiments.pictures import documents_of, medians_table, read_data
from tests.processes import call, one_line
from tests.workloads.dtr.experiments import CONFIG, written


def entry(kind, time, batch=4, **params):
    """An entry of a data file as the authors' programs write it; time None: the run failed."""
    columns = {"time": time, "gpu_time": time, "total_mem": 9e3}
    columns |= {"base_compute_time": 6, "remat_compute_time": 2, "search_time": 1, "cost_time": 0.5}
    if kind is None:
        columns |= {"base_compute_time": -1e-6, "remat_compute_time": -1e-6, "search_time": -1e-6, "cost_time": -1e-6}
    statistics = {key: {"mean": value, "median": value, "std": 0} for key, value in columns.items()}
    kinds = {"type": "baseline"} if kind is None else {"type": "dtr", "kind": kind}
    if time is not None and "slowdown" in params:
        slowdown = params.pop("slowdown")
        statistics["slowdown"] = {"mean": slowdown, "median": slowdown, "mean_conf": [slowdown - 0.1, slowdown + 0.1]}
    if time is not None and kind in (None, "param_sweep"):
        statistics["throughput"] = {"mean": batch / time, "median": batch / time}
    params = {**kinds, "batch_size": batch, **params}
    return {"specific_params": params, "summary": "error" if time is None else [statistics], "command_id": 0}


def test_bars_go_from_no_budget_to_the_smallest_and_sum_up_to_the_time():
    entries = [entry("fixed", 11, memory_budget=2e9), entry("fixed", 12, memory_budget=4e9), entry(None, 10)]
    document = documents_of(("unet",), {"unet": entries})["combined-breakdown-comparison.png"]
    (panel,) = document["panels"]
    plain, larger, smaller = panel["bars"]
    assert (panel["title"], plain["label"], larger["label"], smaller["label"]) == ("unet (4)", "9.0\n(none)", "4", "2")
    assert plain["values"] == {"without a budget": 10} and sum(larger["values"].values()) == pytest.approx(12)
    assert larger["values"]["recomputation"] == 2 and larger["values"]["not profiled"] == pytest.approx(2.5)


def test_what_failed_or_takes_three_times_as_long_is_a_dashed_line():
    entries = [entry(None, 10), entry("fixed", 31, memory_budget=2e9), entry("fixed", None, memory_budget=1e9)]
    (panel,) = documents_of(("unet",), {"unet": entries})["combined-breakdown-comparison.png"]["panels"]
    assert [bar["failed"] for bar in panel["bars"]] == [False, True, True]
    (panel,) = documents_of(("unet",), {"unet": entries[1:]})["combined-breakdown-comparison.png"]["panels"]
    assert [(bar["label"], bar["failed"]) for bar in panel["bars"]] == [("none", True), ("2", False), ("1", True)]


def test_slowdowns_have_intervals_and_end_at_two():
    entries = [
        entry(None, 10), entry("ratio", 15, ratio=0.5, slowdown=1.5), entry("ratio", 21, ratio=0.4, slowdown=2.1),
        entry("ratio", None, ratio=0.3), entry("ratio", 13, ratio=0.9),
    ]  # fmt: skip
    (panel,) = documents_of(("unet",), {"unet": entries})["combined-comparison-ratio.png"]["panels"]
    failed, thrashed, half, mild = panel["curves"][0]["points"]
    assert (failed, thrashed) == ({"x": 0.3, "state": "failed"}, {"x": 0.4, "state": "thrash"})
    assert half == {"x": 0.5, "y": 1.5, "low": pytest.approx(1.4), "high": pytest.approx(1.6)}
    assert mild == {"x": 0.9, "y": pytest.approx(1.3)}  # computed from the two times: the data has no slowdown


def test_throughput_by_batch_size():
    entries = [entry(None, 10), entry(None, None, 8), entry("param_sweep", 20, memory_budget=6e9)]
    entries.append(entry("param_sweep", 40, 8, memory_budget=6e9))
    document = documents_of(("unet",), {"unet": entries})["throughput-comparison-unet.png"]
    bars = document["panels"][0]["bars"]
    assert [bar["label"] for bar in bars] == ["4", "4", "8", "8"] and document["parts"] == ["without a budget", "6 GB"]
    assert [bar["values"] for bar in bars] == [{"without a budget": 0.4}, {"6 GB": 0.2}, {}, {"6 GB": 0.2}]
    assert "time-breakdown-unet.png" in documents_of(("unet",), {"unet": entries})


def test_the_table_of_medians_has_a_line_for_each_run():
    lines = medians_table(("unet",), {"unet": [entry(None, 10), entry("fixed", None, memory_budget=1e9)]}).splitlines()
    assert lines[0].startswith("model,command_id,type,kind,batch_size,memory_budget,ratio,state,time,")
    assert lines[1].startswith("unet,0,baseline,,4,,,pass,10.0,") and lines[2].startswith(
        "unet,0,dtr,fixed,4,1000000000.0,,failed,,"
    )


@pytest.mark.parametrize(
    "data",
    [
        [], {"unet": [1]}, {"unet": [{}]}, {"unet": [{"specific_params": {"type": "dtr", "batch_size": "x"}, "summary": []}]},
        {"unet": [{"specific_params": {"type": "baseline", "batch_size": 1}, "summary": [{"time": 3}]}]},
        {"unet": [{"specific_params": {"type": "dtr", "batch_size": 1, "memory_budget": "much"}, "summary": "error"}]},
    ],
)  # fmt: skip
def test_other_files_are_named(tmp_path, data):
    (tmp_path / "data.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"data\.json"):
        read_data(tmp_path / "data.json")


def test_the_command_draws_a_directory(tmp_path):
    config = written(tmp_path, {"models": ["unet"], "dtr_settings": CONFIG["dtr_settings"]})
    (tmp_path / "data.json").write_text(
        json.dumps({"timestamp": "x", "unet": [entry(None, 10), entry("fixed", 11, memory_budget=4e9)]})
    )
    done = call("dtr", "plot", config, tmp_path / "data.json", "-o", tmp_path / "pictures")
    assert done.returncode == 0 and "medians.csv" in done.stdout, done.stderr
    assert (tmp_path / "pictures/combined-breakdown-comparison.png").stat().st_size > 10_000
    (tmp_path / "data.json").write_text("{}")
    done = call("dtr", "plot", config, tmp_path / "data.json", "-o", tmp_path / "pictures")
    assert done.returncode == 2 and "no measured run" in one_line(done)
