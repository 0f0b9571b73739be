"""The whole job on tiny cases: it learns, logs, saves, resumes, and ends clearly when it cannot go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from iotwin.common.ranks import claimed_ports
from iotwin.trace_store.reader import Trace
from iotwin.workloads.unet3d.__main__ import main
from tests.conftest import PATIENCE_S
from tests.processes import call
from tests.workloads.mllog import entries, parts
from tests.workloads.unet3d.conftest import CASES, names, options

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[3]
JOB = [sys.executable, "-m", "iotwin.workloads.unet3d"]


def _learns(result):
    """The last epoch's mean loss is at least a quarter below the first's."""
    return result["train_loss"][-1] < 0.75 * result["train_loss"][0]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_loss_falls(job, seed):
    result, _ = job(epochs=5, eval_every=5, seed=seed)
    assert _learns(result), result["train_loss"]


def test_without_learning_the_loss_does_not_fall(job):
    result, _ = job(epochs=5, eval_every=5, learning_rate=0)
    assert not _learns(result)
    assert max(result["train_loss"]) < 1.1 * min(result["train_loss"])


def test_evaluation_sees_what_was_learnt(job, tmp_path):
    learnt, _ = job(epochs=6, eval_every=6)
    untouched, _ = job(epochs=1, learning_rate=0, output=tmp_path / "untouched")
    assert learnt["evaluations"][0]["mean_dice"] > untouched["evaluations"][0]["mean_dice"] + 0.1


def test_same_seed_same_training_whatever_the_loaders(job, tmp_path):
    one, _ = job(workers=0, output=tmp_path / "a")
    two, _ = job(workers=2, output=tmp_path / "b")
    assert one["train_loss"] == two["train_loss"]
    assert one["evaluations"] == two["evaluations"]


def test_a_resumed_job_ends_like_an_uninterrupted_one(job, tmp_path):
    whole, _ = job(epochs=4, output=tmp_path / "whole")
    first, _ = job(epochs=2, output=tmp_path / "parts")
    rest, log = job(epochs=4, output=tmp_path / "parts", resume=tmp_path / "parts" / "checkpoint_last.pt")
    assert rest["first_epoch"] == 3 and rest["steps"] == 16
    assert first["train_loss"] + rest["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-6)
    assert [e["metadata"]["epoch_num"] for e in log if e["key"] == "epoch" and e["event_type"] == "INTERVAL_START"] == [3, 4]
    states = [torch.load(tmp_path / part / "checkpoint_last.pt", weights_only=True) for part in ("whole", "parts")]
    for name, weight in states[0]["model"].items():
        torch.testing.assert_close(weight, states[1]["model"][name])


def test_log_is_what_the_phases_are_read_from(job):
    result, log = job(epochs=3, eval_every=2, checkpoint_every=3)
    assert all(set(e) == {"namespace", "time_ms", "time_ns", "event_type", "key", "value", "metadata"} for e in log)
    times = [e["time_ns"] for e in log]
    assert times == sorted(times) and all(e["time_ms"] == e["time_ns"] // 1_000_000 for e in log)
    marks = [
        (e["key"], e["event_type"].removeprefix("INTERVAL_"), e["metadata"].get("epoch_num"))
        for e in log
        if e["event_type"] != "POINT_IN_TIME"
    ]
    assert marks == [
        ("init", "START", None), ("init", "END", None), ("run", "START", None),
        ("epoch", "START", 1), ("epoch", "END", 1), ("epoch", "START", 2), ("epoch", "END", 2),
        ("eval", "START", 2), ("eval", "END", 2), ("epoch", "START", 3), ("epoch", "END", 3),
        ("checkpoint", "START", 3), ("checkpoint", "END", 3), ("run", "END", None),
    ]  # fmt: skip
    points = {(e["key"], e["metadata"].get("epoch_num")): e["value"] for e in log if e["event_type"] == "POINT_IN_TIME"}
    expected = {"seed": 1, "world_size": 1, "num_workers": 0, "global_batch_size": 2, "train_samples": 16, "eval_samples": 4}
    assert {key: points[key, None] for key in expected} == expected
    assert [points["train_loss", epoch] for epoch in (1, 2, 3)] == result["train_loss"]
    assert points["eval_accuracy", 2] == result["evaluations"][0]["mean_dice"]


def test_result_adds_up(job):
    result, _ = job(epochs=2)
    assert result["steps"] == 16 and result["epochs"] == 2 and len(result["train_loss"]) == 2
    assert [e["epoch"] for e in result["evaluations"]] == [1, 2]
    assert result["seconds_per_step"] == pytest.approx(result["wait_seconds_per_step"] + result["compute_seconds_per_step"])
    assert 0 < result["steps"] * result["seconds_per_step"] < result["run_seconds"]
    assert result["configuration"]["batch_size"] == 2 and result["torch"] == torch.__version__


def test_checkpoints_hold_the_last_and_the_best(job, tmp_path):
    result, _ = job(epochs=4, checkpoint_every=2)
    out = tmp_path / "out"
    assert names(out) == ["checkpoint_best.pt", "checkpoint_last.pt", "result.json"]
    last, best = (torch.load(out / f"checkpoint_{name}.pt", weights_only=True) for name in ("last", "best"))
    scores = [e["mean_dice"] for e in result["evaluations"]]
    assert last["epoch"] == 4 and last["optimizer"]["state"]
    assert best["epoch"] == 1 + scores.index(max(scores)) and best["best_score"] == max(scores)


def test_no_checkpoint_and_no_evaluation_when_asked_so(job, tmp_path):
    result, _ = job(eval_every=0, checkpoint_every=0)
    assert result["evaluations"] == [] and names(tmp_path / "out") == ["result.json"]


# Bad input


def _fails(capsys, arguments, status, message):
    assert main(arguments) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("unet3d: ") and error.count("\n") == 1, error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop": "20,16"}, "one number of voxels or three"),
        ({"crop": "18"}, "every side must be a multiple of 4"),
        ({"crop": "4"}, "more than one voxel is left"),
        ({"overlap": 1}, "--overlap 1.0"),
        ({"epochs": 0}, "--epochs 0 must be at least 1"),
        ({"workers": -1}, "--workers -1 must be at least 0"),
        ({"learning_rate": "nan"}, "--learning-rate nan"),
    ],
)
def test_impossible_requests(data, tmp_path, capsys, changes, message):
    _fails(capsys, options(data, tmp_path / "out", **changes), 2, message)
    assert not (tmp_path / "out").exists()


def test_missing_and_too_little_data(data, tmp_path, capsys):
    _fails(capsys, options(tmp_path / "none", tmp_path / "out"), 1, f"{tmp_path / 'none'}: no such directory")
    _fails(capsys, options(data, tmp_path / "out", batch_size=CASES), 1, "16 training cases, too few for one batch of 20")
    lone = tmp_path / "lone"
    lone.mkdir()
    for name in ("case_00001_x.npy", "case_00001_y.npy"):
        shutil.copy(data / name, lone)
    _fails(capsys, options(lone, tmp_path / "out", batch_size=1), 1, "no case left for evaluation")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_case_is_named(data, tmp_path, capsys, workers):
    copy = shutil.copytree(data, tmp_path / "copy")
    damaged = copy / "case_00007_x.npy"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    _fails(capsys, options(copy, tmp_path / "out", workers=workers), 1, f"{damaged} is not a whole .npy file")
    assert names(tmp_path / "out") == []


def test_nothing_to_resume(data, job, tmp_path, capsys):
    job(epochs=1)
    last = tmp_path / "out" / "checkpoint_last.pt"
    _fails(capsys, options(data, tmp_path / "b", epochs=1, resume=last), 1, "ended epoch 1; give --epochs a higher number")
    _fails(capsys, options(data, tmp_path / "b", resume=last, depth=1), 1, "holds another network")


def test_divergence_is_said(data, tmp_path, capsys):
    _fails(capsys, options(data, tmp_path / "out", learning_rate=1e30), 1, "training diverged")


def test_output_that_cannot_be_made(data, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    _fails(capsys, options(data, tmp_path / "file" / "out"), 1, str(tmp_path / "file"))


def test_a_rank_that_is_no_number(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "first")
    _fails(capsys, options(data, tmp_path / "out"), 2, "RANK is 'first'")


# As processes


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_kill_leaves_nothing_half_written(data, tmp_path, how):
    out = tmp_path / "out"
    arguments = [*JOB, *options(data, out, epochs=1000, workers=1)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if '"checkpoint"' in line:
                break
        process.send_signal(how)
        _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert error == "unet3d: interrupted\n"
    assert not [name for name in names(out) if name.endswith(".partial") or name == "result.json"]


@pytest.mark.usefixtures("forked_programs")
def test_two_ranks_share_the_work(data, tmp_path):
    arguments = [*JOB, *options(data, tmp_path / "out", epochs=3)]
    with claimed_ports(1) as port:
        environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [
            subprocess.Popen(arguments, cwd=ROOT, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        first, second = (rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert second == ""  # only rank 0 speaks
    result = json.loads(first.splitlines()[-1])
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["world_size"] == 2 and result["steps"] == 3 * 4  # 16 cases, 2 ranks, batches of 2
    assert result["train_loss"][-1] < result["train_loss"][0]
    assert names(tmp_path / "out") == ["checkpoint_best.pt", "checkpoint_last.pt", "result.json"]


# Variants


@pytest.mark.usefixtures("forked_programs")
def test_instrumented_logs_every_part_and_trains_the_same(data, job, tmp_path):
    original, _ = job(epochs=2, eval_every=2, output=tmp_path / "original")
    # As a process: loader processes write to the real stdout.
    arguments = options(data, tmp_path / "out", epochs=2, eval_every=2, workers=2, variant="instrumented")
    done = subprocess.run([*JOB, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    log = entries(done.stdout)
    assert json.loads(done.stdout.splitlines()[-1])["train_loss"] == original["train_loss"]
    found = parts(log)
    for key in ("load_batch_mem", "load_batch_gpu", "model_forward_pass", "loss_tensor_calc", "model_backward_pass",
                "model_optim_step", "cum_loss_fn_calc", "all_compute", "step_end"):  # fmt: skip
        assert len(found[key]) == 16, key
    for key in ("sample_load", "sample_preproc"):
        assert len(found[key]) == 32, key
    for key in ("eval_load_batch_mem", "eval_load_batch_gpu", "eval_sliding_window", "eval_loss_and_score_fn", "eval_step_end"):
        assert len(found[key]) == 4, key
    assert len(found["eval_scores_and_loss_reduction"]) == 1
    for step, load, compute in zip(found["step_end"], found["load_batch_mem"], found["all_compute"], strict=True):
        assert step >= load + compute


def test_sleep_reads_without_learning(job, tmp_path):
    result, log = job(epochs=2, variant="sleep", sleep="0.001")
    assert result["steps"] == 16 and result["evaluations"] == []
    assert names(tmp_path / "out") == ["result.json"]
    assert not [entry for entry in log if entry["key"] in ("eval", "checkpoint")]


# Trains with each list of options in a process of its own. All of them have PyTorch from this one.
_IN_TURN = """
import json
import multiprocessing
import sys

import torch._dynamo

from iotwin.workloads.unet3d.__main__ import main

context = multiprocessing.get_context("fork")
for options in json.loads(sys.argv[1]):
    job = context.Process(target=lambda: sys.exit(main(options)))
    job.start()
    job.join()
    assert job.exitcode == 0
"""


@pytest.mark.root
def test_sleep_reads_what_the_original_reads_in_the_same_order(data, tmp_path):
    """By the calls that eBPF sees: every process's sequence of (file, offset, bytes) on the data set."""
    jobs = {
        f"{workers}-{name}": options(
            tmp_path / f"{workers}-{name}", tmp_path / f"{workers}-{name}-out", epochs=2, eval_every=0, checkpoint_every=0,
            workers=workers, **variant,
        )
        for workers in (0, 2) for name, variant in {"original": {}, "sleep": {"variant": "sleep", "sleep": 0}}.items()
    }  # fmt: skip
    for name in jobs:
        shutil.copytree(data, tmp_path / name)
    program = [sys.executable, "-c", _IN_TURN, json.dumps([*jobs.values()])]
    done = call("trace", "-o", tmp_path / "trace", "--backend", "libbpf", "--", *program)
    assert done.returncode == 0, done.stderr
    trace = Trace(tmp_path / "trace")
    files = trace.files().set_index("file_id")["path"]
    calls = trace.events_frame(columns=["op", "pid", "file_id", "offset", "result"])
    calls = calls[calls["op"].isin(["read", "pread64"])]

    def reads(name):
        """The reads of a job's data, a list per process that reads, in the order in which they were started."""
        wanted = files[files.str.startswith(f"{tmp_path / name}/")]
        own = calls[calls["file_id"].isin(wanted.index)]
        assert len(own) >= 2 * 16 * 2  # epochs, cases, files of a case
        return [
            [(Path(wanted[row.file_id]).name, row.offset, row.result) for row in group.itertuples()]
            for _, group in own.groupby("pid")
        ]

    for workers in (0, 2):
        assert reads(f"{workers}-original") == reads(f"{workers}-sleep")
