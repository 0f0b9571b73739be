"""DLRM killed at a step and resumed: the same weights and the same samples; on another number of ranks the same samples."""

import os
import shutil
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install iotwin[torch])")

from iotwin.common.checkpoints import checkpoints
from iotwin.common.commit import Store
from iotwin.common.tensor_file import crc32c
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workloads.dlrm.__main__ import main
from tests.conftest import ROOT
from tests.workloads import killed
from tests.workloads.dlrm.test_job import options
from tests.workloads.killed import indices, same, until

pytestmark = pytest.mark.torch
STEPS, BATCH = 11, 64  # in passes of 7 batches


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("criteo")
    generate(DlrmLayout(), directory, samples=7 * BATCH + 30, seed=3, workers=1)
    return directory


def run(data, tmp_path, output, ranks=1, killed_at=0, flags=("--shuffle",), **changes):
    values = {"batch_size": BATCH, "steps": STEPS, "eval_every": 4, "eval_batch_size": 8, "eval_batches": 1,
              "most_categories": 50, "embedding_size": 4, "bottom": "8", "top": "8", **changes}  # fmt: skip
    return killed.run(main, [*options(data, tmp_path / output, **values), *flags], tmp_path, output, ranks, killed_at)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    return run(data, tmp_path_factory.mktemp("whole"), "whole")


def test_an_uninterrupted_job_takes_each_sample_once_a_pass(whole):
    result, log = whole
    assert result["resumed_from"] is None and result["steps"] == STEPS and result["stopped"] is False
    first = {(epoch, index): times for (epoch, index), times in indices(log).items() if epoch == 1}
    assert first == Counter((1, index) for index in range(7 * BATCH))
    assert sum(indices(log).values()) == STEPS * BATCH and max(indices(log).values()) == 1


@pytest.mark.parametrize(("killed_at", "every"), [(1, 1), (5, 4), (8, 7), (11, 3)])
def test_killed_at_a_step_and_resumed_it_ends_as_if_nothing_had_been(data, tmp_path, whole, killed_at, every):
    _, before = run(data, tmp_path, "out", killed_at=killed_at, checkpoint_steps=every)
    result, rest = run(data, tmp_path, "out", resume="auto", checkpoint_steps=every)
    step = (killed_at - 1) // every * every
    same(whole, result, until(before, step), rest)
    assert result["steps"] == STEPS - step
    assert result["evaluations"] == whole[0]["evaluations"][step // 4 :]
    if step:
        position = {"step": step, "epoch": 1 + step // 7, "position": step % 7 * BATCH}
        assert result["resumed_from"] == {"name": f"step-{step}", **position}


def test_two_ranks_killed_and_resumed_and_then_one(data, tmp_path, whole):
    uninterrupted = run(data, tmp_path, "whole", ranks=2)
    assert indices(uninterrupted[1]) == indices(whole[1])
    assert uninterrupted[0]["last_loss"] == pytest.approx(whole[0]["last_loss"], rel=1e-4)  # the same batches, shared
    _, before = run(data, tmp_path, "out", ranks=2, killed_at=6, checkpoint_steps=5)
    result, rest = run(data, tmp_path, "out", ranks=2, resume="auto")
    same(uninterrupted, result, until(before, 5), rest)
    result, rest = run(data, tmp_path, "alone", resume=tmp_path / "out" / "checkpoints")
    assert indices(until(before, 5), rest) == indices(uninterrupted[1])
    assert result["order_sha256"] == uninterrupted[0]["order_sha256"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 32}, "is of batch size 64, this job is of batch size 32"),
        ({"steps": 2}, "the checkpoint ended step 2; give --steps a higher number to go on"),
        ({"embedding_size": 8}, "this job is of network {'embedding_size': 8"),
        ({"resume": "never", "variant": "sleep", "sleep": 0, "stop_after": 1}, "cannot be resumed, stopped or asked"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(data, tmp_path, stopped, capsys, changes, message):
    values = {"batch_size": BATCH, "steps": STEPS, "eval_every": 0, "most_categories": 50, "embedding_size": 4, "bottom": "8",
              "top": "8", "resume": stopped / "out" / "checkpoints", **changes}  # fmt: skip
    assert main([*options(data, tmp_path / "out", **values), "--shuffle"]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "manifest.json is of version 2, newer than this program's 1; use the newer program"),
        ({"world_size": 0}, "manifest.json is no manifest: Expected `int` >= 1 - at `$.world_size`"),
        ({"position": {"position": 10**6}}, "the checkpoint is at sample 1000000 of 448 in epoch 1: beyond the epoch"),
        ({"files": {"name": "../x"}}, "manifest.json is no manifest: Expected `str` matching regex"),
    ],
)
def test_a_manifest_that_cannot_be_of_this_job_is_one_line(data, tmp_path, stopped, capsys, changes, message):
    store = shutil.copytree(stopped / "out" / "checkpoints", tmp_path / "store")
    [found] = checkpoints(store)
    with_change = msgspec.to_builtins(found.manifest)
    for key, value in changes.items():
        inner = with_change[key][0] if key == "files" else with_change[key]
        with_change[key] = value if not isinstance(value, dict) else [inner | value] if key == "files" else inner | value
    content = msgspec.json.encode({**with_change, "crc32c": 0}).removesuffix(b"0}")
    (found.path / "manifest.json").write_bytes(content + b"%d}" % crc32c(content))
    values = {"batch_size": BATCH, "steps": STEPS, "eval_every": 0, "most_categories": 50, "embedding_size": 4, "bottom": "8",
              "top": "8", "resume": found.path}  # fmt: skip
    assert main([*options(data, tmp_path / "out", **values), "--shuffle"]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error


def test_the_newest_is_the_last_written_whatever_clocks_and_latest_say(data, tmp_path, stopped):
    out = shutil.copytree(stopped / "out", tmp_path / "out")
    os.utime(out / "checkpoints" / "step-2", (4e9, 4e9))  # as if the clock had been set back since
    (out / "checkpoints" / "LATEST").write_text("step-999\n")
    result, _ = run(data, tmp_path, "out", resume="auto", checkpoint_steps=3)
    assert result["resumed_from"]["name"] == "step-2"
    assert [found.name for found in checkpoints(out / "checkpoints")] == ["step-9", "step-6", "step-3", "step-2"]
    assert (out / "checkpoints" / "LATEST").read_text() == "step-9\n"


def test_a_store_that_another_job_writes_to_is_refused(data, tmp_path):
    job = options(data, tmp_path, batch_size=BATCH, steps=1, eval_every=0, checkpoint_steps=1)
    command = [sys.executable, "-m", "iotwin.workloads.dlrm", *job]
    with Store(tmp_path / "checkpoints"):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "is being written by another job; wait for it or choose another directory" in done.stderr


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("stopped")
    result, _ = run(data, directory, "out", stop_after=2, checkpoint_seconds=1000)
    assert result["stopped"] is True and result["steps"] == 2
    return directory


def test_another_jobs_store_is_refused(tmp_path, data, stopped, capsys):
    from iotwin.workloads.unet3d.__main__ import main as unet3d
    from tests.workloads.unet3d.conftest import options as of_unet3d

    generate_cases(tmp_path / "cases")
    assert unet3d(of_unet3d(tmp_path / "cases", tmp_path / "out", resume=stopped / "out" / "checkpoints")) == 1
    assert "is of job dlrm, this job is of job unet3d" in capsys.readouterr().err


def generate_cases(directory):
    from iotwin.datagen.layouts import Unet3dLayout

    generate(Unet3dLayout(scale=0.1), directory, samples=10, seed=3, workers=1)
