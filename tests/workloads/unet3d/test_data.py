import numpy as np
import pytest
import torch
from torch.utils.data.distributed import DistributedSampler

from iotwin.common.errors import IotwinError
from iotwin.datagen.layouts import Case, Unet3dLayout
from iotwin.workloads.common.torch_ranks import TorchRanks
from iotwin.workloads.unet3d.data import EpochSampler, read_case, training_loader
from tests.workloads.unet3d.conftest import config

CPU = torch.device("cpu")


def _batches(data, tmp_path, workers, epoch, rank=0, world_size=1, **changes):
    cases = Unet3dLayout.split(Unet3dLayout.discover(data))[0]
    loader, sampler = training_loader(
        cases, config(data, tmp_path, workers=workers, **changes), TorchRanks(rank, world_size, CPU)
    )
    sampler.set_epoch(epoch)
    return [(image.clone(), label.clone()) for image, label in loader]


def _same(a, b):
    return len(a) == len(b) and all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True))


@pytest.mark.parametrize("world_size", [1, 3])
def test_order_is_that_of_torch(world_size):
    cases = range(17)
    for rank in range(world_size):
        ours = EpochSampler(cases, world_size, rank, seed=5, drop_last=True)
        theirs = DistributedSampler(cases, world_size, rank, seed=5, drop_last=True)
        for epoch in range(3):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(ours) == [(epoch, index) for index in theirs]


def test_samples_do_not_depend_on_the_loaders(data, tmp_path):
    alone = _batches(data, tmp_path, workers=0, epoch=1)
    assert len(alone) == 8 and alone[0][0].shape == (2, 1, 16, 16, 16)
    assert _same(alone, _batches(data, tmp_path, workers=2, epoch=1))


def test_epochs_and_seeds_differ(data, tmp_path):
    first = _batches(data, tmp_path, workers=0, epoch=1)
    assert not _same(first, _batches(data, tmp_path, workers=0, epoch=2))
    assert not _same(first, _batches(data, tmp_path, workers=0, epoch=1, seed=2))


def test_persistent_workers_hear_of_the_new_epoch(data, tmp_path):
    cases = Unet3dLayout.split(Unet3dLayout.discover(data))[0]
    settings = config(data, tmp_path, workers=1)
    settings = type(settings)(**{**vars(settings), "persistent_workers": True})
    loader, sampler = training_loader(cases, settings, TorchRanks(0, 1, CPU))
    passes = []
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        passes.append([(image.clone(), label.clone()) for image, label in loader])
    assert _same(passes[1], _batches(data, tmp_path, workers=0, epoch=2))


def _write_case(directory, image=None, mask=None):
    case = Case(0, directory / "case_00000_x.npy", directory / "case_00000_y.npy")
    np.save(case.image, np.zeros((1, 4, 4, 4), np.float32) if image is None else image)
    np.save(case.mask, np.zeros((1, 4, 4, 4), np.uint8) if mask is None else mask)
    return case


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"image": np.zeros((4, 4, 4), np.float32)}, r"case_00000_x\.npy has shape \(4, 4, 4\)"),
        ({"image": np.zeros((1, 4, 4, 5), np.float32)}, r"but its mask \(1, 4, 4, 4\)"),
        ({"image": np.zeros((1, 0, 4, 4), np.float32)}, r"instead of \(1, D, H, W\)"),
        ({"mask": np.full((1, 4, 4, 4), 3, np.uint8)}, r"case_00000_y\.npy has the unknown class 3"),
        ({"image": np.full((1, 4, 4, 4), None)}, r"case_00000_x\.npy is not a whole \.npy file"),
    ],
)
def test_strange_volumes_are_refused(tmp_path, arrays, message):
    with pytest.raises(IotwinError, match=message):
        read_case(_write_case(tmp_path, **arrays))


@pytest.mark.parametrize("keep", [0, 5, 60, 128, 200])
def test_damaged_files_are_refused(tmp_path, keep):
    case = _write_case(tmp_path)
    case.mask.write_bytes(case.mask.read_bytes()[: min(keep, 150)])
    with pytest.raises(IotwinError, match=r"case_00000_y\.npy is not a whole \.npy file"):
        read_case(case)


def test_a_vanished_file_is_named(tmp_path):
    case = _write_case(tmp_path)
    case.image.unlink()
    with pytest.raises(IotwinError, match=r"case_00000_x\.npy cannot be read: No such file"):
        read_case(case)
