import os
import pickle

import pytest
import torch

from iotwin.common.errors import IotwinError
from iotwin.workloads.state.save import save
from iotwin.workloads.unet3d import checkpoint
from tests.workloads.unet3d.conftest import names

CPU = torch.device("cpu")
NETWORK = {"base_channels": 4, "depth": 2}


def _state(epoch=1):
    return {
        "epoch": epoch,
        "best_score": 0.5,
        "network": NETWORK,
        "model": {"weight": torch.arange(1000.0)},
        "optimizer": {"state": {}, "param_groups": []},
    }


def test_what_is_saved_is_what_is_read(tmp_path):
    save(_state(7), tmp_path / "a.pt")
    state = checkpoint.load(tmp_path / "a.pt", CPU, NETWORK)
    assert state["epoch"] == 7 and torch.equal(state["model"]["weight"], torch.arange(1000.0))
    assert names(tmp_path) == ["a.pt"]


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    save(_state(1), path)

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(IotwinError, match="No space left"):
        save(_state(2), path)
    assert names(tmp_path) == ["a.pt"]
    assert checkpoint.load(path, CPU, NETWORK)["epoch"] == 1


def test_bytes_are_on_disk_before_the_name_is(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def watch(descriptor):
        synced.append((os.fstat(descriptor).st_size, (tmp_path / "a.pt").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    save(_state(), tmp_path / "a.pt")
    assert synced == [((tmp_path / "a.pt").stat().st_size, False)]


class _Evil:
    def __reduce__(self):
        return (os.mkdir, ("pwned",))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", pickle.dumps(_Evil(), protocol=2)])
def test_foreign_files_are_refused(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(IotwinError, match=r"a\.pt is not a readable checkpoint"):
        checkpoint.load(tmp_path / "a.pt", CPU, NETWORK)
    assert names(tmp_path) == ["a.pt"]


def test_code_inside_a_checkpoint_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**_state(), "model": _Evil()}, tmp_path / "a.pt")
    with pytest.raises(IotwinError):
        checkpoint.load(tmp_path / "a.pt", CPU, NETWORK)
    assert not (tmp_path / "pwned").exists()


def test_truncated_missing_and_other_checkpoints_are_refused(tmp_path):
    path = tmp_path / "a.pt"
    with pytest.raises(IotwinError, match="no such checkpoint"):
        checkpoint.load(path, CPU, NETWORK)
    save(_state(), path)
    with pytest.raises(IotwinError, match="resume it with --base-channels 4 and --depth 2"):
        checkpoint.load(path, CPU, {"base_channels": 8, "depth": 2})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(IotwinError, match="not a readable checkpoint"):
        checkpoint.load(path, CPU, NETWORK)
    torch.save({"weights": torch.zeros(3)}, path)
    with pytest.raises(IotwinError, match="lacks the epoch"):
        checkpoint.load(path, CPU, NETWORK)
