"""Scripts of the original: only their import path changes."""

import os
import re
import subprocess
import sys

import pytest
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from iotwin.common.checkpoints import newest
from iotwin.common.errors import IotwinError
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager, CFMode
from tests.conftest import ROOT
from tests.workloads.checkfreq.job import BATCH, SAMPLES, Job

pytestmark = pytest.mark.torch
COMPAT = ROOT / "workloads" / "checkfreq" / "compat"
TRAINER = ROOT / "tests" / "workloads" / "checkfreq" / "imagenet_trainer.py"


def trainer(folder, *words):
    command = [sys.executable, TRAINER, "--cf_iterator", "--chk-prefix", "./chk/", *words]
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{COMPAT}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights(printed):
    return re.search(r"^weights (\S+)", printed, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trainer(tmp_path_factory.mktemp("whole") / "own", "--chk-freq", "4")


@pytest.mark.parametrize("mode", [("--chk-freq", "4"), ("--chk_mode_baseline", "--chk-freq", "4", "--persist")])
def test_a_trainer_in_the_original_s_shape_stops_and_resumes_with_only_its_import_changed(tmp_path, whole, mode):
    first = trainer(tmp_path / "own", *mode, "--resume", "--steps_per_run", "17")  # the first one finds no checkpoint
    assert "populated" not in first and "latest chk/step-14" in first
    second = trainer(tmp_path / "own", *mode, "--resume")
    assert "populated: 1 24 14" in second
    assert weights(second) == weights(whole)


def test_a_trainer_that_cuts_its_epochs_short_begins_each_anew(tmp_path):
    printed = trainer(tmp_path / "own", "--chk-freq", "4", "--iters", "2", "--epochs", "2", "--noeval")
    assert "latest chk/step-4" in printed
    assert len((tmp_path / "own" / "time-split0.csv").read_text().splitlines()) == 6


def test_the_library_s_names_are_there(tmp_path):
    job = Job(tmp_path / "store", mode=CFMode.MANUAL).train(2)
    assert list(job.manager.chk.tracking_map) == ["model", "optimizer", "scheduler"]
    assert job.manager.get_latest_checkpoint(latest=True) == str(tmp_path / "store" / "step-12")
    assert job.manager.get_latest_checkpoint(latest=False, epoch=0) == str(tmp_path / "store" / "step-6")
    assert job.manager.get_latest_checkpoint(latest=False, epoch=7) is None
    before = job.iterator.state_dict()
    job.iterator.load_state_dict(None)
    assert job.iterator.state_dict() == before
    with pytest.raises(ValueError, match="is not iterable"):
        CFIterator(5)
    job.close()


def test_what_writes_a_checkpoint_can_be_joined(tmp_path):
    with CFManager(tmp_path / "store", CFCheckpoint(model=nn.Linear(2, 2))) as manager:
        assert manager.chk_process is None
        held = manager._persister.buffer()  # as if one were on its way
        assert manager.chk_process.is_alive()
        manager._persister.give_back(held)
        manager.save()
        if (writing := manager.chk_process) is not None:
            writing.join()
        assert manager.chk_process is None and newest(tmp_path / "store", print).manifest.step == 1


def test_the_size_is_that_of_the_epoch_in_whole_batches():
    assert CFIterator(DataLoader(range(10)), bs=1)._size == 10
    shard = DataLoader(range(10), 2, sampler=DistributedSampler(range(10), 2, 0))
    assert -(-CFIterator(shard, bs=2)._size // 2) == len(shard) == 3
    job = CFIterator([0] * 6, bs=BATCH)
    next(job)
    assert job._size == SAMPLES


def test_a_job_that_begins_within_an_epoch_begins_there():
    iterator = CFIterator(DataLoader(range(20), 2), bs=2, steps_this_epoch=3, epoch=2)
    assert iterator.state_dict() == {"iter": 3, "steps_so_far": 23, "start_index": 6, "epoch": 2}
    assert next(iterator).tolist() == [6, 7]


@pytest.mark.parametrize("layout", ["ours", "theirs"])
def test_a_directory_has_one_manager_in_one_process_too(tmp_path, layout):
    chk = CFCheckpoint(model=nn.Linear(1, 1))
    first = CFManager(tmp_path / "store", chk, layout=layout)
    with pytest.raises(IotwinError, match="is being written by another job"):
        CFManager(tmp_path / "store", chk, layout=layout)
    first.close()
    CFManager(tmp_path / "store", chk, layout=layout).close()
