"""iotwin plot steps: what it reads from logs of every kind, what it leaves out, and the models it makes."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.trace_visuals.steps.distributions import fit_compute_time
from iotwin.trace_visuals.steps.plot_steps import plot_steps
from iotwin.trace_visuals.steps.step_logs import read_steps
from iotwin.trace_visuals.steps.step_statistics import predicted, regressions, settled, statistics, throughputs
from iotwin.workload_yaml import load
from iotwin.workloads.common.variant import parse_sleep
from tests.conftest import ROOT
from tests.processes import call

MILLISECOND = 1_000_000


def line(key, duration_ns=None, event="INTERVAL_END", rank=0, value=None, prefix=""):
    value = {"start": 1, "duration": duration_ns} if duration_ns is not None else value
    entry = {"namespace": "", "time_ms": 1, "event_type": event, "key": key, "value": value, "metadata": {"rank": rank}}
    return f"{prefix}:::MLLOG {json.dumps(entry)}\n"


def epoch(number, computes_ms, rank=0, wait_ms=2):
    text = line("epoch", event="INTERVAL_START")
    for compute in computes_ms:
        text += line("load_batch_mem", wait_ms * MILLISECOND, rank=rank)
        text += line("all_compute", int(compute * MILLISECOND), rank=rank)
        text += line("step_end", int((compute + wait_ms) * MILLISECOND), rank=rank)
    return text


def cell(directory, text, **parameters):
    (directory / "trace" / "logs").mkdir(parents=True)
    (directory / "output").mkdir()
    (directory / "trace" / "logs" / "stdout").write_text(text)
    known = {"workload": "dlrm", "variant": "instrumented", "ranks": 1, "batch": 4, **parameters}
    (directory / "cell.json").write_text(json.dumps(known))
    return directory


def compute(frame):
    return frame.loc[frame["key"] == "all_compute", "seconds"].tolist()


def test_our_log(tmp_path):
    cell(tmp_path / "a", epoch(1, [9, 1, 2]) + "noise\n" + epoch(2, [8, 3]), workload="unet3d", ranks=2, batch=4)
    frame = read_steps([tmp_path])
    assert compute(frame) == pytest.approx([0.009, 0.001, 0.002, 0.008, 0.003])
    own = frame[frame["key"] == "all_compute"]
    assert own["block"].tolist() == [1, 1, 1, 2, 2]
    assert set(map(tuple, own[["workload", "variant", "gpus", "batch"]].to_numpy())) == {("unet3d", "instrumented", 2, 4)}


def test_the_logs_of_a_cell_on_two_hosts(tmp_path):
    """Blocks are those of rank 0, whose host alone logs them; the other rank begins its first step before the first block."""
    directory, times = cell(tmp_path / "a", "", ranks=2), iter((10, 20, 30, 40, 5, 15, 35))
    steps = [[None, 0, None, 0], [1, 1, 1]]
    for host, ranks in enumerate(steps):
        logs = directory / "trace" / f"node-{host}.trace" / "logs"
        logs.mkdir(parents=True)
        texts = (epoch(1, []) if rank is None else line("all_compute", MILLISECOND, rank=rank) for rank in ranks)
        (logs / "stdout").write_text("".join(text.replace('"time_ms": 1,', f'"time_ms": {next(times)},') for text in texts))
    (directory / "trace" / "logs" / "stdout").unlink()
    frame = read_steps([tmp_path])
    assert {rank: own["block"].tolist() for rank, own in frame.groupby("rank")} == {0: [1, 2], 1: [1, 1, 2]}


def test_the_artifact_s_log(tmp_path):
    """In directories named for GPUs and batch, with ranks before the lines and starts by key."""
    run = tmp_path / "unet3d" / "4gpus_batch3"
    run.mkdir(parents=True)
    text = line("world_size", event="POINT_IN_TIME", value=4) + line("epoch_start", event="INTERVAL_START")
    text += "".join(line("all_compute", ms * MILLISECOND, prefix="[3] ") for ms in (5, 6))
    (run / "unet3d.log").write_text(text + ":::MLLOG {torn\n" + "\xff" * 3)
    frame = read_steps([tmp_path])
    assert compute(frame) == [0.005, 0.006] and frame["rank"].tolist() == [3, 3]
    assert frame.loc[0, ["workload", "gpus", "batch"]].tolist() == ["unet3d", 4, 3]


def test_the_emulator_s_log(tmp_path):
    log = "[OUTPUT] 2024-01-01T00:00:00.000001 Starting epoch 1: 3 steps expected\n"
    log += "[OUTPUT] 2024-01-01T00:00:00.000002 Starting block 1\n"
    log += "[INFO] load_batch_mem 1000000\n[INFO] all_compute 5000000\n[INFO] something_else 7\n"
    cell(tmp_path / "a", "", variant="emulated")
    (tmp_path / "a" / "output" / "dlio.log").write_text(log)
    frame = read_steps([tmp_path])
    assert frame["block"].tolist() == [1, 1]
    assert frame["key"].tolist() == ["load_batch_mem", "all_compute"] and frame["seconds"].tolist() == [0.001, 0.005]


def test_the_emulator_s_parts_get_the_blocks_that_its_log_tells(tmp_path):
    """It prints them when the run is over."""
    log = "".join(
        f"[OUTPUT] t Starting epoch {n}: 3 steps expected\n[OUTPUT] t Starting block 1\n"
        "[OUTPUT] t Ending block 1 - 3 steps completed in 1 s\n"
        for n in (1, 2)
    )
    log += "".join(f"[INFO] all_compute {ms}000000\n" for ms in (9, 1, 2, 8, 3, 4))
    cell(tmp_path / "a", "", variant="emulated", workload="unet3d")
    (tmp_path / "a" / "output" / "dlio.log").write_text(log)
    frame = read_steps([tmp_path])
    assert frame["block"].tolist() == [1, 1, 1, 2, 2, 2]
    assert compute(settled(frame)) == [0.003, 0.004]


def timeline(path, *events):
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "x"}}, *(
        {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 0} for name, ts, dur in events)]}))  # fmt: skip


def test_tensorflow_s_timelines(tmp_path):
    """Compute starts at the end of the batch's copy: the longest one to the device; without any, at the first event."""
    cell(tmp_path / "a", "", workload="bert", variant="profiler")
    timeline(tmp_path / "a" / "output" / "timeline-10.json", ("MEMCPYHtoD", 0, 500), ("MEMCPYHtoD", 700, 1), ("MatMul", 900, 600))
    timeline(tmp_path / "a" / "output" / "timeline-20.json", ("MatMul", 100, 50), ("MatMul", 1000, 100))
    assert compute(read_steps([tmp_path])) == pytest.approx([0.001, 0.001])


def test_what_starts_cold_is_left_out(tmp_path):
    cell(tmp_path / "a", epoch(1, [9, 1, 2]) + epoch(2, [8, 3, 4]), workload="unet3d")
    cell(tmp_path / "b", epoch(1, [9, 1, 2]) + epoch(2, [8, 3, 4]))
    frame = settled(read_steps([tmp_path]))
    assert compute(frame[frame["workload"] == "unet3d"]) == pytest.approx([0.003, 0.004])
    assert compute(frame[frame["workload"] == "dlrm"]) == pytest.approx([0.001, 0.002, 0.003, 0.004])


def test_statistics_and_throughputs(tmp_path):
    cell(tmp_path / "a", epoch(1, [9, 1, 2, 3]), batch=8)
    table = statistics(settled(read_steps([tmp_path])))
    row = table.set_index("key").loc["all_compute"]
    assert row[["count", "mean", "std", "q1", "median", "q3"]].tolist() == pytest.approx([3, 0.002, 0.001, 0.0015, 0.002, 0.0025])
    rates = throughputs(table).set_index("throughput")
    assert rates.loc["compute", ["low", "median", "high"]].tolist() == pytest.approx([8 / 0.0025, 8 / 0.002, 8 / 0.0015])
    assert rates.loc["data loading", "median"] == pytest.approx(8 / 0.002)


@given(st.floats(0, 1), st.floats(0, 0.1), st.floats(0, 0.1))
@settings(max_examples=30)
def test_a_regression_finds_the_plane_that_is_there(constant, per_gpu, per_sample):
    grid = [(gpus, batch) for gpus in (1, 2, 4, 8) for batch in (1, 2, 3)]
    table = pd.DataFrame([
        {"workload": "unet3d", "variant": "v", "gpus": gpus, "batch": batch, "key": "all_compute",
         "mean": constant + per_gpu * gpus + per_sample * batch, "std": 0.01}
        for gpus, batch in grid
    ])  # fmt: skip
    (fit,) = regressions(table)
    assert [fit["mean"][key] for key in ("constant_s", "per_gpu_s", "per_sample_s")] == pytest.approx(
        [constant, per_gpu, per_sample], abs=1e-9
    )
    slopes_seen = max(per_gpu, per_sample) > 1e-6  # below, rounding is all there is to explain
    assert not slopes_seen or fit["mean"]["r2"] == pytest.approx(1)
    assert predicted(fit, 6, 5)["mean"] == pytest.approx(constant + 6 * per_gpu + 5 * per_sample, abs=1e-9)


def test_a_regression_without_relation_explains_nothing():
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"workload": "w", "variant": "v", "key": "all_compute", "gpus": rng.integers(1, 9, 400),
                          "batch": rng.integers(1, 9, 400), "mean": rng.random(400), "std": 0.1})  # fmt: skip
    assert regressions(table)[0]["mean"]["r2"] < 0.05


@pytest.mark.parametrize(
    ("expected", "draw"),
    [
        ("normal", lambda rng: rng.normal(1, 0.05, 4000)),
        ("lognormal", lambda rng: rng.lognormal(0, 0.8, 4000)),
        ("gamma", lambda rng: rng.gamma(0.8, 1, 4000)),
        ("quantiles", lambda rng: np.concatenate([rng.normal(1, 0.01, 3000), rng.normal(2, 0.01, 1000)])),
    ],
)
def test_the_likeliest_distribution_is_the_one_drawn_from(expected, draw):
    likeliest = fit_compute_time(draw(np.random.default_rng(1)))[0]
    assert likeliest.name == expected


@pytest.mark.parametrize("name", ["normal", "lognormal", "gamma", "quantiles"])
def test_densities_integrate_to_one(name):
    seconds = np.random.default_rng(2).gamma(4, 0.1, 500)
    fit = next(each for each in fit_compute_time(seconds) if each.name == name)
    at = np.linspace(1e-6, 5, 400_000)
    assert np.trapezoid(np.exp(fit.log_density(at)), at) == pytest.approx(1, abs=0.01)


def test_few_or_equal_steps_do_no_harm():
    assert fit_compute_time(np.array([1.0] * 9)) == []
    assert all(np.isfinite(fit.log_likelihood) for fit in fit_compute_time(np.array([0.5] * 20)))


def test_everything_is_written_and_models_are_taken_by_emulator_and_sleep(tmp_path):
    rng = np.random.default_rng(1)
    for ranks in (1, 2):
        for batch in (1, 2, 4):
            text = epoch(1, rng.normal(10 + 2 * ranks + 3 * batch, 0.5, 40))
            cell(tmp_path / "cells" / f"{ranks}-{batch}", text, ranks=ranks, batch=batch)
    output = tmp_path / "out"
    document = plot_steps([tmp_path / "cells"], output)
    assert document["runs"] == document["configurations"] == 6
    assert {path.name for path in output.iterdir()} == {
        "steps.csv", "throughputs.csv", "fits.json", "regressions.json", "computation_times",
        "dlrm_breakdown.png", "dlrm_latencies.png", "dlrm_throughputs.png", "dlrm_compute_times.png",
    }  # fmt: skip
    assert all((output / name).stat().st_size > 5000 for name in ("dlrm_breakdown.png", "dlrm_compute_times.png"))
    assert document["regressions"][0]["mean"]["r2"] > 0.95
    model = output / "computation_times" / "dlrm-instrumented-2x4.json"
    slept = DrawnTime(parse_sleep(str(model)), 1, Purpose.SLEPT_STEP).seconds(0, 0, 0)
    assert slept == pytest.approx(0.026, abs=0.003)
    fits = json.loads((output / "fits.json").read_text())
    (tmp_path / "twin.yaml").write_text("dataset: {data_folder: x}\ntrain: {epochs: 1}\n")
    for found in [fit["computation_time"] for fit in fits[0]["fits"]] + [json.loads(model.read_text())]:
        config = load(tmp_path / "twin.yaml", [f"++workload.train.computation_time={json.dumps(found)}"])
        assert config.train.computation_time is not None


def test_a_picture_that_is_not_drawn_is_named_with_the_reason(tmp_path, capsys):
    cell(tmp_path / "a", epoch(1, [10] * 9))
    plot_steps([tmp_path / "a"], tmp_path / "out")
    told = capsys.readouterr().err
    assert "dlrm_compute_times.png is not drawn: no configuration of dlrm has 10 steps with a compute time" in told


def test_refusals(tmp_path):
    with pytest.raises(UsageError, match="not a directory"):
        read_steps([tmp_path / "none"])
    with pytest.raises(IotwinError, match="no instrumented run"):
        read_steps([tmp_path])
    cell(tmp_path / "a", "", variant="profiler")
    (tmp_path / "a" / "output" / "timeline-1.json").write_text("{")
    with pytest.raises(IotwinError, match="no timeline of TensorFlow"):
        read_steps([tmp_path])
    done = call("plot", "steps", tmp_path, "-o", tmp_path / "out", "--zoom", "init")
    assert done.returncode == 2 and "are for timelines" in done.stderr


@pytest.mark.parametrize("of", ["", "_dlio", "_bert"])
def test_the_artifact_s_script_draws_what_is_asked_for(tmp_path, of):
    for name, batch in (("a", 128), ("b", 512)):
        cell(tmp_path / name, epoch(1, [10] * 30), batch=batch)
    script = ROOT / "trace_visuals" / f"proc_instru_data{of}.py"
    options = ["-o", tmp_path / "out", "-pb", "-bh", "-pt", "-t", "as bought", "-l"]
    command = [sys.executable, script, tmp_path / "a", tmp_path / "b", "dlrm", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == [
        "dlrm_breakdown.png",
        "dlrm_compute_times.png",
        "dlrm_throughputs.png",
    ]
    none = subprocess.run([sys.executable, script, tmp_path / "a", "dlrm"], capture_output=True, text=True, check=False)
    assert none.returncode == 2 and "add -pb" in none.stderr
