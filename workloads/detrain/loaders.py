"""Iterators of PyTorch's DataLoader that know their position, and that a resumed run starts at a position without reading.

The first batches that such an iterator yields are placeholders: the loop's `enumerate`, `zip` or progress bar counts them, and
the session takes them before the loop's body would.
"""

from collections import deque
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import count
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as torch_loader

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.randomness.keyed_data import KeyedDataset
from iotwin.workloads.detrain.randomness.keyed_stream import KeyedIterableDataset
from iotwin.workloads.detrain.saving.generators import generator_states, set_generator_states
from iotwin.workloads.detrain.saving.provider import Provider
from iotwin.workloads.detrain.saving.providers import provider_of
from iotwin.workloads.detrain.saving.tensorflow_states import DatasetTracker, TrackedDatasetIterator

_MOST_PASSES = 200  # whose beginnings are remembered, each some kilobytes
_NUMBERS = count()


class IteratorState(NamedTuple):
    """Where an iterator is.

    `position`: batches that it has yielded; `began`, `drawn`: the generators' states before it was made, and before its first
    indices were drawn, None if that has not happened; `passes`: iterators of its loader before.
    """

    position: int
    began: dict[str, Any]
    drawn: dict[str, Any] | None
    passes: int


class Placeholder:
    """What a resumed iterator yields for a batch that nobody reads. Whatever uses it ends in an error."""

    def __getattr__(self, name: str) -> Any:
        raise _processed()

    def __iter__(self) -> Iterator[Any]:
        raise _processed()

    def __getitem__(self, key: Any) -> Any:
        raise _processed()


def _processed() -> IotwinError:
    return IotwinError(
        "the script changes batches between its loader and its loop, so the loader cannot begin in the middle of an epoch; "
        "resume with --replay replay-data"
    )


class TrackedIterator:
    """The iterator that a DataLoader gives to a script."""

    def __init__(self, loader: "DataLoader[Any]", tracker: "LoaderTracker", start: IteratorState | None) -> None:
        self.loader, self._tracker = loader, tracker
        self.requested: deque[list[Any]] = deque()  # indices of the batches to come, and of the one that was yielded last
        self.reads_ahead = loader.num_workers > 0
        self._awaited: IteratorState | None = None  # where it is to start when its first batch is fetched
        self._start(start)

    def _start(self, start: IteratorState | None) -> None:
        self.position, self._placeholders = 0, start.position if start else 0
        self.passes = self._tracker.passes_of(self.loader, start.passes if start else None)
        self.requested.clear()
        self._start_state = start
        self._drawn: dict[str, Any] | None = None
        if start is not None:
            set_generators(self.loader, start.began)
        self._began = generators_of(self.loader)
        self._real: Any = None
        self._real = self._tracker.make(self)
        if start is not None and not self.reads_ahead:
            self.draw(lambda: next(self._real._sampler_iter))

    def draw(self, next_index: Callable[[], object]) -> None:
        """Draw the indices of the batches that are not read, before others are drawn."""
        if self._drawn is None:
            if self._start_state is not None and self._start_state.drawn is not None:
                set_generators(self.loader, self._start_state.drawn)
            self._drawn = generators_of(self.loader)
            self._tracker.remember(self)
            for _ in range(self._placeholders):
                next_index()

    def state(self) -> IteratorState:
        """Return where it is."""
        return self._awaited or IteratorState(self.position, self._began, self._drawn, self.passes)

    def go_to(self, state: IteratorState) -> None:
        """Begin anew, and go on as an iterator in this state does, without reading what it had yielded.

        If it had not drawn its first indices, it draws them with its first batch, as without workers: here it may have workers,
        which draw them when they begin.
        """
        if state.drawn is None:
            self._awaited = state
            return
        self._awaited = None
        self._start(state)
        self.position, self._placeholders = state.position, 0

    @property
    def restorable(self) -> bool:
        """False if what comes next is only known by reading."""
        return not isinstance(self.loader.dataset, IterableDataset)

    def __iter__(self) -> "TrackedIterator":
        return self

    def __next__(self) -> Any:
        if self._placeholders:
            self._placeholders -= 1
            self.position += 1
            return Placeholder()
        if self._awaited is not None:
            self.go_to(self._awaited._replace(drawn=generators_of(self.loader)))
        item = next(self._real)
        self.position += 1
        self._tracker.yielded(self)
        return item

    def __len__(self) -> int:
        return len(self._real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


class LoaderTracker:
    """Patches DataLoader, so that each iterator is tracked.

    `on_batch` is called with the indices of each batch that is yielded. `workers`: processes of all loaders, in place of the
    script's number. With an `item_seed`, what the items of a data set draw depends on the pass and the item alone.
    """

    def __init__(
        self, on_batch: Callable[[list[Any]], None] | None = None, workers: int | None = None, item_seed: int | None = None
    ) -> None:
        self._on_batch, self._workers, self._item_seed = on_batch, workers, item_seed
        self._make = DataLoader.__iter__
        self._making: list[TrackedIterator] = []
        self._starts: deque[IteratorState] = deque()
        self.opened: list[TrackedIterator | TrackedDatasetIterator] | None = None  # those that began since `opens`
        self._datasets = DatasetTracker(lambda begun: self.opened.append(begun) if self.opened is not None else None)
        self._history: dict[str, Any] = {}
        self._replayed: dict[str, Any] = {}
        self._expected: dict[str, Any] = {}
        self._last: dict[str, Any] = {}  # by loader: the indices of its last batch
        self._patch()

    def _patch(self) -> None:
        tracker, next_index = self, torch_loader._BaseDataLoaderIter._next_index

        def begun(loader: "DataLoader[Any]") -> TrackedIterator:
            start = tracker._starts.popleft() if tracker._starts else tracker.begun_before(loader)
            found = TrackedIterator(loader, tracker, start)
            if tracker.opened is not None:
                tracker.opened.append(found)
            return found

        def indices(iterator: Any) -> Any:
            if tracker._making:
                iterator.detrain_owner = tracker._making[-1]
            iterator.detrain_owner.draw(lambda: next_index(iterator))
            found = next_index(iterator)
            iterator.detrain_owner.requested.append(found)
            return found

        if self._workers is not None:
            _set_workers(self._workers)
        DataLoader.__iter__ = begun
        torch_loader._BaseDataLoaderIter._next_index = indices

    def make(self, owner: TrackedIterator) -> Any:
        """Return the iterator that DataLoader makes."""
        self._making.append(owner)
        try:
            made = self._make(owner.loader)
        finally:
            self._making.pop()
        made.detrain_owner = owner
        return made

    def remember(self, iterator: TrackedIterator) -> None:
        """Remember how a pass began, for checkpoints that are replayed."""
        if len(self._history) < _MOST_PASSES:
            self._history[_key(iterator.loader, iterator.passes)] = iterator.state()._replace(position=0)._asdict()

    def replays(self, history: dict[str, Any], last: dict[str, Any]) -> None:
        """Passes that begin from now on begin as those of an earlier run did. `last`: the batch of each loader to come to."""
        self._replayed, self._expected = history, last

    def replayed(self) -> None:
        """A replay has come to its checkpoint. Raises IotwinError if its loaders have not."""
        here = self.last_batches()
        if different := [name for name in here.keys() & self._expected.keys() if here[name] != self._expected[name]]:
            raise IotwinError(
                f"loader {different[0]} gives other batches than before, as its draws depend on steps; resume with --replay full"
            )
        self._replayed, self._expected = {}, {}

    def begun_before(self, loader: "DataLoader[Any]") -> IteratorState | None:
        """Return how the coming pass over a loader began in the run that is replayed."""
        found = self._replayed.get(_key(loader, loader.__dict__.get("detrain_passes", 0)))
        return IteratorState(**found) if found else None

    def history(self) -> dict[str, Any]:
        """Return how the passes over all loaders began, up to 200 of them."""
        return dict(self._history)

    def last_batches(self) -> dict[str, Any]:
        """Return the indices of the last batch of each loader."""
        return {name: repr(indices) for name, indices in self._last.items()}

    def passes_of(self, loader: "DataLoader[Any]", passes: int | None) -> int:
        """Return how many iterators of `loader` began before, or set that to `passes`; key its items by that."""
        found: int = loader.__dict__.get("detrain_passes", 0) if passes is None else passes
        loader.__dict__["detrain_passes"] = found + 1
        if self._item_seed is not None:
            keyed = KeyedIterableDataset if isinstance(loader.dataset, IterableDataset) else KeyedDataset
            if not isinstance(loader.dataset, keyed):
                loader.__dict__["dataset"] = keyed(loader.dataset, self._item_seed)
            loader.dataset.item_epoch = found
        return found

    def yielded(self, iterator: TrackedIterator) -> None:
        """Learn that an iterator has yielded a batch."""
        indices = iterator.requested.popleft() if iterator.requested else []
        self._last[str(_number(iterator.loader))] = indices
        if self._on_batch is not None:
            self._on_batch(indices)

    def opens(self, starts: list[dict[str, Any] | None]) -> None:
        """A loop begins: the iterators that begin from now on start at `starts`, in order; without, at their beginning."""
        self.opened = []
        self._starts = deque(IteratorState(**each) for each in starts if each and "drawn" in each)
        self._datasets.opens([each for each in starts if each and "files" in each])

    def about_to_save(self) -> None:
        """The next batch is saved when it has been fetched: pipelines of tf.data must remember where they are."""
        for each in self.opened or ():
            if isinstance(each, TrackedDatasetIterator):
                each.remember()

    def states(self, fetched: bool) -> tuple[list[dict[str, Any] | None], list[str]]:
        """Return the states of the loop's iterators, and in words which of them cannot start there.

        `fetched`: the loop has got a batch from each that it has not trained on.
        """
        found = [_state_before(each, fetched) for each in self.opened or ()]
        return found, [f"data loader {index} of the loop" for index, each in enumerate(found) if each is None]

    def opened_all(self) -> None:
        """The loop has its first batch: later iterators are others."""
        self._starts.clear()
        self._datasets.opened()


def _state_before(iterator: TrackedIterator | TrackedDatasetIterator, fetched: bool) -> dict[str, Any] | None:
    """Return where an iterator was before the batch that was `fetched`; None if it cannot start there."""
    if isinstance(iterator, TrackedDatasetIterator):
        return iterator.state(fetched)
    return iterator.state()._replace(position=iterator.position - fetched)._asdict() if iterator.restorable else None


def _number(loader: "DataLoader[Any]") -> int:
    """Return the number of a loader, in the order in which the script first iterates over them."""
    if "detrain_number" not in loader.__dict__:
        loader.__dict__["detrain_number"] = next(_NUMBERS)
    return int(loader.__dict__["detrain_number"])


def _key(loader: "DataLoader[Any]", passes: int) -> str:
    return f"{_number(loader)}:{passes}"


def generators_of(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the states of the global generators, and those of the loader's and its samplers' own generators."""
    own = [provider.save(generator, {}) for generator, provider in _own_generators(loader)]
    return {**generator_states(), "own": own}


def set_generators(loader: "DataLoader[Any]", state: dict[str, Any]) -> None:
    """Set the generators to states that `generators_of` returned."""
    set_generator_states(state)
    for (generator, provider), own in zip(_own_generators(loader), state["own"], strict=True):
        provider.load(generator, own)


def _own_generators(loader: "DataLoader[Any]") -> list[tuple[Any, Provider]]:
    samplers = [loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
    held = [loader.generator, *(value for each in samplers for value in getattr(each, "__dict__", {}).values())]
    found = ((each, provider_of(each)) for each in {id(each): each for each in held}.values())
    return [(each, provider) for each, provider in found if provider is not None and provider.draws]


def _set_workers(workers: int) -> None:
    """Let all loaders have so many worker processes."""
    make = DataLoader.__init__

    def made(loader: "DataLoader[Any]", *arguments: Any, **options: Any) -> None:
        given = signature(make).bind(loader, *arguments, **options)
        given.arguments["num_workers"] = workers
        if not workers:
            for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                given.arguments.pop(name, None)
        make(*given.args, **given.kwargs)

    DataLoader.__init__ = made
