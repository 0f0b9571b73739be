"""Items draw numbers by (seed, epoch, index): the same in any worker, any world size and any order."""

import copy
import hashlib
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

from iotwin.workloads.detrain import CountedSampler, KeyedDataset, KeyedIterableDataset, keyed

pytestmark = pytest.mark.torch
ITEMS, EPOCHS = 12, 3
NUMBERS = st.integers(0, 2**63 - 1)


class Augmented(Dataset):
    """Items of (index, draws of Python, numpy and torch)."""

    scale = 1.0

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        if index >= ITEMS:
            raise IndexError(index)
        draws = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]
        return torch.tensor([float(index), *draws], dtype=torch.float64) * self.scale


class Lines(IterableDataset):
    """A stream of draws, which several workers split."""

    def __iter__(self):
        worker = get_worker_info()
        for number in range(worker.id if worker else 0, ITEMS, worker.num_workers if worker else 1):
            yield number, random.random(), np.random.rand(), torch.rand(()).item()


def by_index(batches):
    """Return, for each index, the bytes of its item."""
    return {int(item[0]): item.numpy().tobytes() for batch in batches for item in batch}


def epochs_of(dataset, **loading):
    """Return the items of some epochs by index, drawn from other states of the ambient generators each time."""
    loader = DataLoader(dataset, batch_size=4, shuffle=True, **loading)
    found = []
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        found.append(by_index(loader))
    return found


def draws_of(generators):
    """Return two draws of each generator."""
    floats = torch.rand(2, generator=generators.torch, dtype=torch.float64)
    return (
        [generators.python.random(), generators.python.random()],
        generators.numpy.random(2).tolist(),
        floats.tolist(),
    )


@pytest.fixture
def _ambient():
    """Put the ambient generators back after a test that seeds them."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


def test_the_numbers_of_a_key_never_change(_ambient):
    generators = keyed(1, 2, 3, 4)
    assert generators.torch.initial_seed() == 138047269722951916
    assert (generators.python.random(), generators.numpy.random()) == (0.14784339441849936, 0.20388069015920385)
    generators.seed_global()
    assert (random.random(), np.random.rand()) == (0.14784339441849936, 0.12230931997923422)
    assert torch.initial_seed() == 138047269722951916


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 3))
def test_each_part_of_the_key_changes_all_generators(seed, epoch, index, view, changed):
    key = [seed, epoch, index, view]
    other = list(key)
    other[changed] ^= 1
    assert draws_of(keyed(*key)) == draws_of(keyed(*key))
    for own, others in zip(draws_of(keyed(*key)), draws_of(keyed(*other)), strict=True):
        assert own != others


@pytest.mark.parametrize("key", [(-1, 0, 0, 0), (0, 2**63, 0, 0), (0, 0, -3, 0), (0, 0, 0, -1)])
def test_numbers_that_are_no_key_are_refused(key):
    with pytest.raises(ValueError, match=r"must be from 0 to 2\*\*63 - 1"):
        keyed(*key)


def test_the_package_and_numpy_draws_do_without_torch():
    program = (
        "import sys, iotwin.workloads.detrain as detrain\n"
        "assert 'numpy' not in sys.modules\n"
        "detrain.keyed(1, 2, 3).numpy.random(), detrain.keyed(1, 2, 3).python.random(), detrain.KeyedDataset\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "loading",
    [
        {"num_workers": 1},
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True},
        {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "forkserver"},
    ],
)
def test_workers_do_not_change_an_item(loading):
    expected = epochs_of(KeyedDataset(Augmented(), 7))
    assert epochs_of(KeyedDataset(Augmented(), 7), **loading) == expected
    assert len({item for epoch in expected for item in epoch.values()}) == ITEMS * EPOCHS


def test_the_world_size_does_not_change_an_item():
    hashes = []
    for world_size in (1, 2):
        found = {}
        for rank in range(world_size):
            dataset = KeyedDataset(Augmented(), 7, epoch=1)
            sampler = DistributedSampler(dataset, world_size, rank, shuffle=True)
            found |= by_index(DataLoader(dataset, batch_size=4, sampler=sampler))
        hashes.append({index: hashlib.sha256(item).hexdigest() for index, item in found.items()})
    assert hashes[0] == hashes[1] and len(hashes[0]) == ITEMS


def test_seed_and_negative_index():
    dataset = KeyedDataset(Augmented(), 7)
    assert torch.equal(dataset[-1][1:], dataset[ITEMS - 1][1:])
    assert not torch.equal(dataset[0], KeyedDataset(Augmented(), 8)[0])
    assert torch.equal(dataset[np.int64(3)], dataset[torch.tensor(3)])


def ambient_draws():
    """Return the next draws of the global generators; normal ones come in pairs, of which one waits."""
    return random.gauss(0, 1), np.random.randn(), torch.rand(()).item()


def test_items_leave_the_ambient_generators_alone(_ambient):
    def training(fetch):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        drawn = [ambient_draws()]
        fetch()
        return [*drawn, ambient_draws()]

    dataset = KeyedDataset(Augmented(), 7)

    def failing():
        with pytest.raises(IndexError):
            dataset.__getitems__([0, ITEMS])

    expected = training(lambda: None)
    assert training(lambda: dataset[0]) == training(lambda: list(dataset)) == training(failing) == expected
    assert training(lambda: list(KeyedIterableDataset(Lines(), 7))) == expected


def test_wrappers_outside_and_inside():
    plain = KeyedDataset(Augmented(), 7)
    assert torch.equal(Subset(plain, [5, 6])[1], plain[6])
    inner = KeyedDataset(Subset(Augmented(), [5, 6]), 7)
    assert int(inner[1][0]) == 6 and torch.equal(inner[1][1:], plain[1][1:])
    nested = KeyedDataset(KeyedDataset(Augmented(), 7), 8)
    nested.set_epoch(2)
    plain.set_epoch(2)
    assert torch.equal(nested[4], plain[4])
    nested.item_epoch = 1
    assert torch.equal(nested[4], plain[4]), "only the outer epoch changes, and the inner data set seeds last"


def test_length_and_attributes_are_those_of_the_data_set():
    dataset = KeyedDataset(Augmented(), 7)
    assert len(dataset) == len(list(dataset)) == ITEMS and dataset.scale == 1
    single = dataset[3]
    dataset.scale = 2.0
    assert torch.equal(dataset[3], 2 * single)
    with pytest.raises(AttributeError, match="Augmented"):
        _ = dataset.nothing
    with pytest.raises(TypeError, match="integer index"):
        dataset[[1, 2]]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_has_an_epoch_of_its_own(again):
    dataset = KeyedDataset(Augmented(), 7, epoch=2)
    copied = again(dataset)
    assert torch.equal(copied[1], dataset[1])
    copied.set_epoch(0)
    assert dataset.item_epoch == 2
    loader = DataLoader(copied, batch_size=4, num_workers=1, persistent_workers=True)
    list(loader)
    copied.set_epoch(2)
    assert by_index(loader) == by_index(DataLoader(dataset, batch_size=4))


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_one_item_differ_with_a_counting_sampler(workers):
    weights = [1.0] * 3 + [0.0] * (ITEMS - 3)
    sampler = WeightedRandomSampler(weights, 30, generator=torch.Generator().manual_seed(3))
    counting = CountedSampler(sampler)
    assert len(counting) == 30 and counting.weights.shape == (ITEMS,)
    loader = DataLoader(KeyedDataset(Augmented(), 7), batch_size=5, sampler=counting, num_workers=workers)
    drawn = [item for batch in loader for item in batch]
    for index in range(3):
        views = [item for item in drawn if item[0] == index]
        assert len(views) > 1 and len({view.numpy().tobytes() for view in views}) == len(views)
        assert views[0].numpy().tobytes() == KeyedDataset(Augmented(), 7)[index].numpy().tobytes()
        expected = keyed(7, 0, index, view=1).python
        assert views[1][1] == expected.random() and views[1][2] == expected.gauss(0, 1)


def streamed(workers, epoch=0):
    stream = KeyedIterableDataset(Lines(), 7, epoch)
    return [tuple(item) for item in DataLoader(stream, batch_size=None, num_workers=workers)]


def test_streams_are_keyed_by_worker_and_number():
    alone = streamed(0)
    expected = keyed(7, 0, 3).python.random()
    assert alone[3][1] == expected and len({item[1:] for item in alone}) == ITEMS
    assert streamed(1) == alone != streamed(0, epoch=1)
    split = streamed(2)
    assert split == streamed(2) and len({item[1:] for item in split}) == ITEMS
    assert next(item for item in split if item[0] == 3)[1] == keyed(7, 0, 1, view=1).python.random()


def test_a_stream_forwards_epoch_and_attributes():
    stream = KeyedIterableDataset(Lines(), 7)
    stream.set_epoch(1)
    assert [tuple(item) for item in stream] == streamed(0, epoch=1)
    with pytest.raises(TypeError):
        len(stream)
    with pytest.raises(AttributeError, match="Lines"):
        _ = stream.nothing
    assert [tuple(item) for item in pickle.loads(pickle.dumps(stream))] == streamed(0, epoch=1)
