"""`iotwin emulate` with its options: what is shown, what several ranks leave, how time bounds a run, how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from iotwin.benchmark.emulator.ranks import Rank
from iotwin.benchmark.emulator.run import Accelerator
from iotwin.common.errors import UsageError
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.loops.answers.what_if import ask
from iotwin.workload_yaml import select
from iotwin.workload_yaml.recording import Op, RecordedFile
from tests.benchmark.recordings import recording, row, write_twin
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.processes import children, name_of, wait_for

SMALL = [
    "workload=default",
    "++workload.workflow.generate_data=true",
    "++workload.dataset.num_files_train=16",
    "++workload.reader.batch_size=2",
    "++workload.train.epochs=2",
    "++workload.train.computation_time=0.001",
    "++workload.evaluation.eval_time=0.001",
    "++workload.evaluation.epochs_between_evals=1",
]


def emulate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_iotwin("emulate", *SMALL, *words, cwd=folder)


def test_show_tells_every_value_and_where_it_comes_from(tmp_path: Path) -> None:
    done = emulate(tmp_path, "--show", "--json")
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)["values"]}
    assert rows["dataset.format"] == ("npz", "default.yaml")
    assert rows["reader.batch_size"] == (2, "++workload.reader.batch_size=2")
    assert rows["train.seed"] == (123, "default")
    assert list(tmp_path.iterdir()) == []
    query = emulate(tmp_path, "++workload.workflow.query=reader.batch_size")
    assert (query.stdout, query.returncode) == ("2\n", 0)


def test_ranks_leave_dlio_s_files_with_its_keys(tmp_path: Path) -> None:
    done = emulate(tmp_path, "--ranks", "2", "--quiet", "--instrument", "++workload.reader.pin_memory=true")
    assert done.returncode == 0, done.stderr
    output = tmp_path / "output"
    assert {path.name for path in output.iterdir()} == {
        "summary.json",
        "dlio.log",
        "metrics.parquet",
        "0_output.json",
        "1_output.json",
        "0_per_epoch_stats.json",
        "1_per_epoch_stats.json",
    }
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["num_accelerators"], summary["num_files_train"], summary["num_files_eval"]) == (2, 16, 8)
    taken = summary["machine"]["ranks"]
    assert taken["count"] == 2 and 1 << 20 < taken["memory_bytes"] < summary["iotwin"]["peak_memory_bytes"]
    assert 0 < taken["cpu_s_per_step"] < taken["cpu_s"] < summary["iotwin"]["cpu_s"] and taken["compensated_s"] > 0
    assert set(summary["metric"]) >= {
        "train_au_percentage",
        "train_au_mean_percentage",
        "train_au_stdev_percentage",
        "train_au_meet_expectation",
        "train_throughput_samples_per_second",
        "train_throughput_mean_samples_per_second",
        "train_io_mean_MB_per_second",
        "eval_au_mean_percentage",
        "eval_throughput_mean_samples_per_second",
    }
    rank = json.loads((output / "1_output.json").read_text())
    assert [len(rank["2"][part]["block1"]) for part in ("load", "proc", "compute")] == [4, 4, 4]
    assert len(rank["2"]["compute"]["eval"]) == 4 and rank["host_meminfo"]["MemTotal"].endswith("kB")
    stats = json.loads((output / "0_per_epoch_stats.json").read_text())
    assert set(stats["1"]) == {"start", "end", "duration", "block1", "eval"} and set(stats) == {"1", "2"}
    log = (output / "dlio.log").read_text()
    for expected in (
        "Running DLIO [Training] with 2 process(es)",
        "Starting epoch 1: 4 steps expected",
        "Starting block 1",
        "Ending block 1 - 4 steps completed in",
        "Accelerator Utilization [AU] (%):",
        "Ending eval",
    ):
        assert expected in log
    told = [line.split()[1] for line in log.splitlines() if line.startswith("[INFO] ")]
    step = ["sample_load", "sample_preproc"] * 2 + [
        "load_batch_inner",
        "load_batch_mem",
        "load_batch_gpu",
        "all_compute",
        "step_end",
    ]
    assert told == step * 8
    nanoseconds = pd.Series([int(line.split()[2]) for line in log.splitlines() if line.startswith("[INFO] ")], told)
    frame = pd.read_parquet(output / "metrics.parquet").query("rank == 0 and phase == 'train'")
    waits = nanoseconds["load_batch_mem"].to_numpy() + nanoseconds["load_batch_gpu"].to_numpy()
    assert waits.tolist() == frame["data_wait_ns"].tolist() and (nanoseconds["load_batch_gpu"] > 0).all()


def test_every_sample_is_read_once_an_epoch_whatever_the_ranks(tmp_path: Path) -> None:
    for ranks in ("1", "4"):
        assert emulate(tmp_path, "--ranks", ranks, "--quiet").returncode == 0
        frame = pd.read_parquet(tmp_path / "output" / "metrics.parquet")
        assert frame[frame["phase"] == "train"].groupby("epoch")["samples"].sum().tolist() == [16, 16]
        assert frame[frame["phase"] == "evaluation"].groupby("epoch")["samples"].sum().tolist() == [8, 8]


def test_time_ends_a_run_at_the_same_step_on_all_ranks(tmp_path: Path) -> None:
    done = emulate(tmp_path, "--ranks", "3", "--for", "300ms", "--quiet", "++workload.train.epochs=100000")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "output" / "summary.json").read_text())
    assert summary["iotwin"]["stopped_early"]
    frame = pd.read_parquet(tmp_path / "output" / "metrics.parquet")
    last = frame.groupby("rank")[["epoch", "step"]].last()
    assert len(last.drop_duplicates()) == 1


def test_evaluations_and_checkpoints_come_after_steps(tmp_path: Path) -> None:
    words = [
        "++workload.workflow.checkpoint=true",
        "++workload.evaluation.steps_between_evals=3",
        "++workload.checkpoint.steps_between_checkpoints=4",
        "++workload.checkpoint.checkpoint_after_step=1",
        "++workload.dataset.num_files_eval=2",
        "++workload.evaluation.total_eval_steps=1",
    ]
    done = emulate(tmp_path, *words, "--json")
    assert done.returncode == 0, done.stderr
    stats = json.loads((tmp_path / "output" / "0_per_epoch_stats.json").read_text())
    # 8 steps an epoch: evaluations after 3, 6, 9, 12, 15; checkpoints after 1, 4, 8, 12, 16.
    assert {key for key in stats["1"] if key.startswith(("eval", "save"))} == {
        "eval",
        "eval2",
        "save_ckpt1",
        "save_ckpt2",
        "save_ckpt3",
    }
    assert {key for key in stats["2"] if key.startswith(("eval", "save"))} == {
        "eval",
        "eval2",
        "eval3",
        "save_ckpt1",
        "save_ckpt2",
    }
    frame = pd.read_parquet(tmp_path / "output" / "metrics.parquet")
    blocks = frame[(frame["phase"] == "train") & (frame["epoch"] == 1)].groupby("block")["step"].apply(list).tolist()
    assert blocks == [[1], [2, 3], [4], [5, 6], [7, 8]]
    keys = [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in done.stderr.splitlines() if ":::MLLOG" in line]
    assert "epoch" not in keys and keys.count("block") == 2 * (5 + 4)


def test_what_if_varies_one_thing(tmp_path: Path) -> None:
    done = emulate(tmp_path, "--what-if", "accelerators=2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(row["value"], row["accelerators"]) for row in document["runs"]] == [(None, 1), ("2", 2)]
    assert (tmp_path / "output" / "what_if" / "accelerators=2" / "summary.json").exists()
    done = emulate(tmp_path, "--what-if", "reader.batchsize=2", "--quiet")
    assert done.returncode == 2 and "unknown key (did you mean 'batch_size'?)" in done.stderr


def test_disks_are_sampled_beside_the_run(tmp_path: Path) -> None:
    words = ["++workload.workflow.profiling=true", "++workload.train.computation_time=0.1", "--quiet"]
    assert emulate(tmp_path, *words).returncode == 0
    document = json.loads((tmp_path / "output" / "iostat.json").read_text())
    statistics = document["sysstat"]["hosts"][0]["statistics"]
    assert statistics and {"avg-cpu", "disk", "timestamp"} <= statistics[0].keys()


@pytest.mark.root
def test_a_trace_tells_the_sampler_of_disks_from_a_loader(tmp_path: Path) -> None:
    from iotwin.trace_store.reader import Trace

    words = ["++workload.workflow.profiling=true", "++workload.reader.read_threads=1", "--quiet"]
    assert emulate(tmp_path, "++workload.workflow.train=false", "--quiet").returncode == 0  # generates alone
    command = [sys.executable, "-m", "iotwin", "emulate", *SMALL, *words]
    done = run_iotwin("trace", "-o", tmp_path / "trace", "--", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    processes = Trace(tmp_path / "trace").processes()
    named = processes[processes["comm"].astype(str).str.startswith("iotwin-")]
    assert set(zip(named["comm"].astype(str), named["role"].astype(str), strict=True)) == {
        ("iotwin-iostat", "helper"),
        ("iotwin-loader0", "loader"),
    }


@pytest.mark.root
def test_a_run_can_trace_itself(tmp_path: Path) -> None:
    from iotwin.trace_store.reader import Trace

    words = ["++workload.workflow.profiling=true", "++workload.profiling.profiler=trace", "--ranks", "2", "--json"]
    done = emulate(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    phases = Trace(Path(tmp_path / json.loads(done.stdout)["trace"])).phases()
    assert set(phases["rank"]) == {0, 1} and {"init", "epoch", "evaluation"} <= set(phases["phase"].astype(str))


def test_what_was_generated_goes_where_that_is_asked_for(tmp_path: Path) -> None:
    assert emulate(tmp_path, "++workload.dataset.keep_files=false", "--quiet").returncode == 0
    assert not (tmp_path / "data" / "default").exists()


def test_what_others_put_into_a_generated_data_set_stays(tmp_path: Path) -> None:
    precious = tmp_path / "data" / "default" / "notes" / "precious.txt"
    assert emulate(tmp_path, "++workload.workflow.train=false", "--quiet").returncode == 0
    precious.parent.mkdir()
    precious.write_text("mine")
    assert emulate(tmp_path, "++workload.dataset.keep_files=false", "--quiet").returncode == 0
    assert [path for path in (tmp_path / "data" / "default").rglob("*") if path.is_file()] == [precious]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ranks", "0"], "--ranks 0 cannot be run on one machine"),
        (["--for", "soon"], "duration 'soon'"),
        (["--what-if", "accelerators=many"], "accelerators are counted from 1"),
        (["--what-if", "faster"], "--what-if 'faster' asks nothing"),
        (["--config-dir", "nowhere"], "nowhere: no such directory"),
        (["++workload.train.computation_time={type: measured, workload: bert, gpus: 3}"], "was not measured with 3 GPUs"),
        (["++workload.profiling.profiler=darshan", "++workload.workflow.profiling=true"], "not supported; use iostat or trace"),
    ],
)
def test_a_wrong_request_is_one_line(words: list[str], expected: str, tmp_path: Path) -> None:
    done = emulate(tmp_path, *words, "--quiet")
    assert done.returncode == 2
    assert expected in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture
def running(tmp_path: Path):
    """Three ranks with a loader each, in a step that does not end, and the pids of all."""
    slow = ["++workload.train.computation_time=60", "--quiet", "--ranks", "3"]
    command = [sys.executable, "-m", "iotwin", "emulate", *SMALL, *slow]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    ranks: list[int] = []
    loaders: list[int] = []

    def all_there() -> bool:
        ranks[:] = sorted((pid for pid in children(process.pid) if name_of(pid).startswith("iotwin-rank")), key=name_of)
        loaders[:] = [pid for rank in ranks for pid in children(rank) if name_of(pid).startswith("iotwin-loader")]
        return len(ranks) == len(loaders) == 3

    wait_for(all_there, "three ranks with a loader each")
    yield process, ranks, loaders
    if process.poll() is None:
        process.kill()
    process.communicate()


def _wait_for_the_end_of(pids: list[int]) -> None:
    wait_for(lambda: not any(name_of(pid).startswith("iotwin-") for pid in pids), f"the end of {pids}")


@pytest.mark.parametrize("whom", ["rank", "loader"])
def test_a_killed_process_ends_the_run_on_all_ranks(running, whom: str, tmp_path: Path) -> None:
    process, ranks, loaders = running
    os.kill((ranks if whom == "rank" else loaders)[1], signal.SIGKILL)
    if whom == "loader":
        # Its rank is asleep in a step; the loss shows when it next asks for a batch, or at once when the launcher is told to end.
        process.terminate()
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (1 if whom == "rank" else 130)
    assert error.count("\n") == 1 and ("was killed by SIGKILL" in error or "interrupted" in error)
    _wait_for_the_end_of([*ranks, *loaders])
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nobody_outlives_the_launcher(running, number: signal.Signals) -> None:
    process, ranks, loaders = running
    process.send_signal(number)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == ((-9, "") if number == signal.SIGKILL else (130, "iotwin emulate: interrupted\n"))
    _wait_for_the_end_of([*ranks, *loaders])


def test_a_clock_that_is_set_back_changes_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from iotwin.common.progress import set_quiet
    from iotwin.loops.emulation import EmulationOptions, run_workload
    from iotwin.workload_yaml import load

    real, begin = time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: real() - (3600 if time.monotonic() - begin > 0.1 else 0))
    monkeypatch.chdir(tmp_path)
    set_quiet(True)
    (tmp_path / "w.yaml").write_text("dataset: {format: synthetic, num_files_train: 30}\ntrain: {computation_time: 0.01}\n")
    document = run_workload(load("w.yaml"), EmulationOptions())
    assert document is not None and document["metric"]["train_au_mean_percentage"] > 0
    stats = json.loads((tmp_path / "output" / "0_per_epoch_stats.json").read_text())
    assert float(stats["1"]["duration"]) >= 0.29


def test_what_if_runs_have_intervals_and_mark_what_is_within_noise() -> None:
    """Against ratios that are known: three runs of each variant, in turn."""
    rates = {None: iter([10.0, 20.0, 40.0]), "2": iter([20.0, 40.0, 80.0]), "3": iter([11.0, 18.0, 41.0])}
    order, read = [], iter([1, 5, None, 2, 6, 7, 9, 7, 8])

    def run(value: str | None) -> dict[str, Any]:
        order.append(value)
        metric = {"train_throughput_mean_samples_per_second": next(rates[value])}
        own = {"page_cache_hit_ratio": None, "elapsed_s": 1.0, "bytes_read": next(read)}
        return {"metric": metric, "num_accelerators": 1, "iotwin": own, "output": "out"}

    rows = ask("accelerators", ["2", "3"], run, runs=3)["runs"]
    assert order == [None, "2", "3"] * 3
    assert rows[1]["speed_up"] == rows[1]["low"] == rows[1]["high"] == 2 and rows[1]["within_noise"] is False
    assert rows[2]["low"] < 1 < rows[2]["high"] and rows[2]["within_noise"] is True
    assert rows[0]["within_noise"] is True
    assert [row["bytes_read"] for row in rows] == [2, 6, None] and rows[1]["samples_per_second"] == 40


def test_a_question_that_a_recording_cannot_follow_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write_twin(tmp_path, recording([row(0, Op.OPEN), row(0, Op.END)], [RecordedFile("a", size_bytes=1)]))
    done = run_iotwin("emulate", path, "--what-if", "reader.batch_size=2", "--quiet")
    assert done.returncode == 2 and "this twin cannot follow it" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "edit", ["reader.read_type=memory", "twin.recorded.balanced_ranks=true", "twin.recorded.decode_scale=2.0"]
)
def test_a_recording_without_batches_refuses_edits_of_batches(tmp_path: Path, edit: str) -> None:
    path = write_twin(tmp_path, recording([row(0, Op.OPEN), row(0, Op.END)], [RecordedFile("a", size_bytes=1)]))
    done = run_iotwin("emulate", path, f"++workload.{edit}", "--quiet")
    assert done.returncode == 2 and f"{edit.partition('=')[0]}: this twin cannot follow it" in done.stderr


class RecordingSleeper(Sleeper):
    """Notes the durations for which it should sleep, in seconds, and returns at once."""

    def __init__(self) -> None:
        super().__init__(busy=False)
        self.slept: list[float] = []

    def sleep(self, seconds: float, since_ns: int | None = None) -> None:
        self.slept.append(seconds)


def computed(*words: str) -> list[float]:
    """Return the seconds of the second step of an epoch and of a step of an evaluation, of a YAML of parameters and `words`."""
    config = select([*SMALL, *words]).config
    sleeper = RecordingSleeper()
    accelerator = Accelerator(config, Rank(), sleeper, 8, 8)
    return [accelerator.step(phase, 1, 2, 0, 0)[0] / 1e9 for phase in ("train", "evaluation")]


QUANTILES = "++workload.train.computation_time={type: quantiles, values: [0.1, 0.2, 0.4]}"


def test_the_scale_of_computation_multiplies_each_draw_of_a_distribution() -> None:
    drawn, evaluated = computed(QUANTILES)
    halved = computed(QUANTILES, "++workload.train.computation_scale=0.5")
    assert halved == pytest.approx([drawn / 2, evaluated / 2]) and 0.1 <= drawn <= 0.4


def test_computation_grows_with_the_batch_where_the_batch_of_its_time_is_known() -> None:
    times = ["++workload.reader.batch_size=8", "++workload.train.computation_batch_size=2"]
    drawn, evaluated = computed(QUANTILES)
    assert computed(QUANTILES, times[0]) == [drawn, evaluated]  # as in DLIO
    assert computed(QUANTILES, *times) == pytest.approx([4 * drawn, evaluated])
    assert computed(QUANTILES, *times, "++workload.train.computation_per_sample=0.5")[0] == pytest.approx(2.5 * drawn)
    regression = "++workload.train.computation_time={type: regression, workload: unet3d, gpus: 4}"
    with pytest.raises(UsageError, match=r"computation_batch_size: the step time is that of reader.batch_size already"):
        computed(regression, *times)


def test_a_question_about_the_batch_scales_the_computation_and_states_so(tmp_path: Path) -> None:
    words = ["++workload.evaluation.eval_time=0", "++workload.train.computation_time=0.004"]
    done = emulate(tmp_path, *words, "--what-if", "reader.batch_size=8", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "in proportion to the batch; train.computation_per_sample" in document["assumptions"][0]
    config = json.loads(emulate(tmp_path, "--show", "--json", *document["recipe"]["variants"][1]["overrides"]).stdout)
    shown = {row["key"]: row["value"] for row in config["values"]}
    assert (shown["reader.batch_size"], shown["train.computation_batch_size"]) == (8, 2)
    assert json.loads((tmp_path / "output" / "what_if" / "what_if.json").read_text()) == document


def test_an_answer_holds_its_recipe(tmp_path: Path) -> None:
    """Against the programs sha256sum and uname, and the command that was run."""
    twin, question = Path("twin.yaml"), ["--what-if", "reader.read_threads=0", "--json"]
    (tmp_path / twin).write_text("twin: {}\n")
    words = [word for word in SMALL if word != "workload=default"]
    done = run_iotwin("emulate", twin, *words, "++workload.dataset.format=npz", *question, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recipe = json.loads(done.stdout)["recipe"]
    digest = subprocess.run(["sha256sum", tmp_path / twin], capture_output=True, text=True, check=True).stdout.split()[0]
    assert recipe["twin"] == {"path": str(tmp_path / twin), "sha256": digest} and recipe["recording"] is None
    assert recipe["command"].startswith("iotwin emulate ") and recipe["command"].endswith(" ".join(question))
    unchanged, changed = recipe["variants"]
    assert unchanged["values"]["train.epochs"] == 2 and changed["values"].keys() == {"reader.read_threads", "output.folder"}
    kernel = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout.strip()
    assert recipe["machine"]["kernel"] == kernel and recipe["machine"]["cpus"] == os.cpu_count()
    assert min(recipe["load"].values()) >= 0 and recipe["iotwin"]


def test_a_time_as_a_factor_names_the_scale() -> None:
    with pytest.raises(UsageError, match=r"train.computation_scale multiplies it"):
        computed("++workload.train.computation_time=0.5x")
