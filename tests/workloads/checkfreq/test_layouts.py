"""The original's files: their names, what they hold, and what a restart makes of them."""

import os

import pytest
import torch

from iotwin.common.errors import IotwinError
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.manager import CFManager, CFMode
from tests.conftest import small_disk
from tests.workloads.checkfreq.job import BATCH, Job

pytestmark = pytest.mark.torch


def files(store):
    return sorted(str(path.relative_to(store)) for path in store.rglob("*.chk"))


def theirs(store, **options):
    return Job(store, manager={"layout": "theirs", **options.pop("manager", {})}, **options)


def test_files_have_the_original_s_names_and_numbers_go_on_after_a_restart(tmp_path):
    theirs(tmp_path / "a", chk_freq=4, steps_to_run=11).train().close()
    assert files(tmp_path / "a") == ["epoch/model_v_1_0.chk", "model_v_2.chk"]
    theirs(tmp_path / "a", chk_freq=4, steps_to_run=3).train().close()  # from step 10 on
    assert files(tmp_path / "a") == ["epoch/model_v_1_0.chk", "epoch/model_v_3_1.chk", "model_v_3.chk"]
    keep_all = {"overwrite": False, "chk_prefix": "chk_"}
    theirs(tmp_path / "b", mode=CFMode.MANUAL, chk_freq=4, manager=keep_all).train(2).close()
    assert files(tmp_path / "b") == [
        *(f"chk_{number}_sync.chk" for number in range(4)),
        "epoch/chk_1_0_sync.chk",
        "epoch/chk_3_1_sync.chk",
    ]
    others = [path.name for path in (tmp_path / "a").iterdir() if not path.name.endswith(".chk")]
    assert others == ["epoch"]  # the original takes every file for a checkpoint


def test_a_file_is_the_states_by_name_with_what_the_job_adds(tmp_path):
    job = theirs(tmp_path / "store", chk_freq=4, steps_to_run=5).train().close()
    state = torch.load(tmp_path / "store" / "model_v_0.chk", weights_only=True)
    assert list(state) == ["model", "optimizer", "scheduler", "iter", "steps_so_far", "start_index", "epoch"]
    assert (state["iter"], state["start_index"], state["epoch"]) == (4, 4 * BATCH, 0)
    assert state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    job.model.load_state_dict(state["model"])


@pytest.mark.parametrize("stop", [2, 5, 9])
def test_a_restart_takes_each_sample_once(tmp_path, stop):
    first = theirs(tmp_path / "store", chk_freq=1, steps_to_run=stop).train().close()
    second = theirs(tmp_path / "store", chk_freq=1)
    assert second.resumed_step == stop and second.iterator.epoch == stop // 6
    second.train().close()
    whole = Job(tmp_path / "whole").train().close()
    assert first.taken + second.taken == whole.taken


def test_what_the_original_wrote_is_read_and_what_is_damaged_or_foreign_passed_over(tmp_path, capsys):
    job = theirs(tmp_path / "store")
    wanted = {name: value + 1 for name, value in job.model.state_dict().items()}
    whole = {"model": wanted, "optimizer": job.optimizer.state_dict(), "scheduler": job.scheduler.state_dict()}
    store = tmp_path / "store"
    torch.save({**whole, "iter": 2, "epoch": 1, "steps_so_far": 8, "start_index": 8}, store / "model_v_9.chk")
    torch.save({"model": wanted}, store / "model_v_12.chk")
    (store / "model_v_11.chk").write_bytes((store / "model_v_9.chk").read_bytes()[:-200])
    (store / "model_v_13.chk").mkdir()
    (store / "zebra_99.chk").write_bytes(b"")
    left = job.manager.restore()
    assert left == {"iter": 2, "epoch": 1, "steps_so_far": 8, "start_index": 8}
    assert all(torch.equal(value, wanted[name]) for name, value in job.model.state_dict().items())
    assert job.manager.get_latest_checkpoint() == str(store / "model_v_9.chk")
    told = capsys.readouterr().err
    assert (
        "model_v_12.chk is not used: it does not hold model, optimizer, scheduler" in told
        and "model_v_11.chk is not used" in told
    )
    job.close()


class Foreign:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_nothing_in_a_file_is_run(tmp_path):
    job = theirs(tmp_path / "store")
    torch.save({"model": Foreign(), "optimizer": 1, "scheduler": 2}, tmp_path / "store" / "model_v_0.chk")
    assert job.manager.restore() is None and not (tmp_path / "ran").exists()
    job.close()


def test_the_end_of_an_epoch_comes_back_by_its_number(tmp_path):
    theirs(tmp_path / "store", mode=CFMode.MANUAL).train(3).close()
    job = theirs(tmp_path / "store")
    assert job.manager.restore(latest=False, epoch=1)["steps_so_far"] == 12
    with pytest.raises(IotwinError, match="no valid checkpoint of the end of epoch 7"):
        job.manager.restore(latest=False, epoch=7)
    job.close()


def test_a_job_that_ended_between_the_two_names_of_a_file_is_no_obstacle(tmp_path):
    (tmp_path / "store" / "epoch").mkdir(parents=True)
    (tmp_path / "store" / "epoch" / "model_v_0_0_sync.chk").write_bytes(b"of the job before")
    theirs(tmp_path / "store", mode=CFMode.MANUAL).train(1).close()
    job = theirs(tmp_path / "store")
    assert job.manager.restore(latest=False, epoch=0)["steps_so_far"] == 6
    job.close()


def test_a_directory_has_one_job_and_a_layout_is_one_of_two(tmp_path):
    job = theirs(tmp_path / "store")
    chk = CFCheckpoint(model=job.model)
    with pytest.raises(ValueError, match="layout must be one of ours, theirs"):
        CFManager(tmp_path / "other", chk, layout="mine")
    job.close()
    (tmp_path / "file").touch()
    with pytest.raises(IotwinError, match="choose another directory"):
        theirs(tmp_path / "file")


@pytest.mark.root
@pytest.mark.parametrize(("layout", "worker"), [("ours", "thread"), ("ours", "process"), ("theirs", "thread")])
def test_a_disk_that_fills_beside_training_is_told_and_leaves_the_checkpoint_before(tmp_path, layout, worker):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        job = Job(disk / "store", chk_freq=2, manager={"layout": layout})
        job.manager.worker = worker
        job.train(1)
        job.manager.wait()
        before = job.manager.get_latest_checkpoint()
        job.manager.chk.tracked["ballast"] = torch.nn.Linear(700, 700)  # 2 MB where 1 MB is all there is
        with pytest.raises(IotwinError, match="cannot be written"):
            job.train(2)
        job.manager.chk.tracked.pop("ballast")
        assert job.manager.get_latest_checkpoint() == before
        assert not [path for path in disk.rglob("*") if path.name.endswith((".tmp", "unfinished"))]
        job.train(2)  # what is small enough is written again
        job.manager.wait()
        assert job.manager.get_latest_checkpoint() != before
        job.close()
