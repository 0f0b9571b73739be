"""Iterators of DataLoader that know their position, in this process: they begin anywhere, and replay earlier passes."""

from itertools import count
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data import dataloader as torch_loader

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain import loaders
from iotwin.workloads.detrain.loaders import LoaderTracker, Placeholder


class Numbers(Dataset):
    """Numbers from 0. `read` lists those that were read in this process."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Stream(IterableDataset):
    """Yields numbers from 0 to 5."""

    def __iter__(self) -> Any:
        return iter(range(6))


@pytest.fixture(autouse=True)
def unpatched(monkeypatch):
    """Undo, after the test, what trackers change."""
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    monkeypatch.setattr(torch_loader._BaseDataLoaderIter, "_next_index", torch_loader._BaseDataLoaderIter._next_index)


@pytest.fixture
def run(monkeypatch):
    """Return a function that begins a run: it makes a tracker, a loader and a generator state as a new process would."""
    iterate, next_index, make = DataLoader.__iter__, torch_loader._BaseDataLoaderIter._next_index, DataLoader.__init__

    def begin(seed: int = 0, workers: int = 0, shuffle: bool = True, data: Any = None, **options: Any) -> Any:
        DataLoader.__iter__, DataLoader.__init__ = iterate, make
        torch_loader._BaseDataLoaderIter._next_index = next_index
        monkeypatch.setattr(loaders, "_NUMBERS", count())
        torch.manual_seed(seed)
        tracker = LoaderTracker(**options)
        loader = DataLoader(data or Numbers(), 2, shuffle=shuffle, num_workers=workers)
        return tracker, loader

    return begin


def plain(batches: Any) -> list[Any]:
    return [None if isinstance(each, Placeholder) else each.tolist() for each in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def taken(iterator: Any, number: int) -> list[Any]:
    return plain(next(iterator) for _ in range(number))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fetched", [True, False])
def test_a_pass_begins_where_another_has_come_to(run, workers, fetched):
    tracker, loader = run(workers=workers)
    tracker.opens([])
    iterator = iter(loader)
    order = taken(iterator, 3)
    [state], unrestorable = tracker.states(fetched)
    assert not unrestorable and state["position"] == 3 - fetched
    order += plain(iterator)
    assert sorted(flat(order)) == list(range(10)) and order != [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    tracker, loader = run(seed=9, workers=workers)
    tracker.opens([state])
    iterator = iter(loader)
    assert len(iterator) == 5
    assert plain(iterator) == [None] * (3 - fetched) + order[3 - fetched :]
    if not workers:
        assert loader.dataset.read == flat(order[3 - fetched :])
    tracker.opened_all()
    tracker.opens([])
    assert plain(loader) != order and tracker.opened[0].state().passes == 1


def test_the_indices_of_each_batch_are_reported_when_it_is_yielded(run):
    seen: list[Any] = []
    tracker, loader = run(workers=1, shuffle=False, on_batch=seen.append)
    iterator = iter(loader)
    assert not seen
    assert taken(iterator, 2) == seen == [[0, 1], [2, 3]]
    assert tracker.last_batches() == {"0": "[2, 3]"}
    tracker.read("x", 5)
    assert tracker.last_batches() == {"0": "[2, 3]", "x": "5"}


def test_only_iterators_of_the_loop_are_remembered(run):
    tracker, loader = run()
    iter(loader)
    assert tracker.opened is None and tracker.states(True) == ([], [])
    tracker.opens([])
    first = iter(loader)
    next(first)
    iter(loader)
    assert len(tracker.opened) == 2


def test_a_stream_cannot_begin_in_its_middle(run):
    tracker, loader = run(data=Stream(), shuffle=False)
    tracker.opens([])
    iterator = iter(loader)
    next(iterator)
    assert not iterator.restorable
    assert tracker.states(True) == ([None], ["data loader 0 of the loop"])


def test_passes_begin_as_in_the_run_that_is_replayed(run):
    tracker, loader = run()
    order = [plain(loader) for _ in range(3)]
    history, last = tracker.history(), tracker.last_batches()
    assert list(history) == ["0:0", "0:1", "0:2"] and all(each["position"] == 0 for each in history.values())
    tracker, loader = run(seed=9)
    tracker.replays(history, last)
    assert [plain(loader) for _ in range(2)] == order[:2]
    torch.rand(7)
    assert plain(loader) == order[2]
    tracker.replayed()
    assert tracker.begun_before(loader) is None
    assert plain(loader) not in order
    tracker, loader = run()
    tracker.replays({}, {"0": "[1]"})
    next(iter(loader))
    with pytest.raises(IotwinError, match="loader 0 gives other batches than before"):
        tracker.replayed()


def test_only_so_many_passes_are_remembered(run, monkeypatch):
    monkeypatch.setattr(loaders, "_MOST_PASSES", 2)
    tracker, loader = run()
    for _ in range(4):
        next(iter(loader))
    assert list(tracker.history()) == ["0:0", "0:1"]


def test_an_iterator_goes_to_the_place_of_another(run):
    _, loader = run()
    iterator = iter(loader)
    order = taken(iterator, 2)
    state = iterator.state()
    order += plain(iterator)
    _, loader = run(seed=9)
    other = iter(loader)
    taken(other, 4)
    other.go_to(state)
    assert (other.position, plain(other), other.position) == (2, order[2:], 5)


def test_an_iterator_that_goes_to_a_begin_draws_its_own_order_when_it_is_read(run):
    def drawn(seed: int) -> list[Any]:
        _, loader = run(workers=1)
        begun = iter(loader).state()._replace(drawn=None)
        iterator = iter(loader)
        iterator.go_to(begun)
        assert iterator.state() == begun
        torch.manual_seed(seed)
        return plain(iterator)

    assert drawn(1) == drawn(1) != drawn(2)


def test_own_generators_of_a_loader_are_set(run):
    _, plain_loader = run()
    made = torch.Generator().manual_seed(1)
    loader = DataLoader(Numbers(), 2, shuffle=True, generator=made)
    iterator = iter(loader)
    order = taken(iterator, 2)
    state = iterator.state()._asdict()
    order += plain(iterator)
    assert len(state["drawn"]["own"]) == 1 and not loaders.generators_of(plain_loader)["own"]
    tracker, _ = run(seed=5)
    again = DataLoader(Numbers(), 2, shuffle=True, generator=torch.Generator().manual_seed(7))
    tracker.opens([state])
    assert plain(again) == [None, None, *order[2:]]


def test_the_number_of_workers_is_replaced(run):
    for workers, left in ((0, (0, False, None, 0)), (2, (2, True, 4, 5))):
        run()
        LoaderTracker(workers=workers)
        loader = DataLoader(Numbers(), 2, num_workers=3, prefetch_factor=4, persistent_workers=True, timeout=5)
        assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor, loader.timeout) == left


def test_items_are_keyed_once_by_the_pass(run):
    tracker, loader = run(item_seed=3)
    list(loader)
    keyed = loader.dataset
    assert keyed.item_epoch == 0
    list(loader)
    assert loader.dataset is keyed and keyed.item_epoch == 1
    assert tracker.passes_of(loader, 7) == 7 and keyed.item_epoch == 7 and tracker.passes_of(loader, None) == 8


def test_a_placeholder_cannot_be_used():
    for use in (lambda each: each.shape, iter, lambda each: each[0]):
        with pytest.raises(IotwinError, match="--replay replay-data"):
            use(Placeholder())
