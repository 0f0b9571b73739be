"""Iterators of PyTorch's DataLoader that know their position, and can start at a position without reading earlier batches.

For each earlier batch, such an iterator first yields a placeholder. So the loop's `enumerate`, `zip` or progress bar counts this
batch. The session consumes the placeholders before the loop's body runs.
"""

from collections import deque
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import count
from typing import Any, NamedTuple, Protocol

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as torch_loader

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.randomness.keyed_data import KeyedDataset
from iotwin.workloads.detrain.randomness.keyed_stream import KeyedIterableDataset
from iotwin.workloads.detrain.saving.generators import generator_states, set_generator_states
from iotwin.workloads.detrain.saving.provider import Provider
from iotwin.workloads.detrain.saving.providers import provider_of
from iotwin.workloads.detrain.saving.tensorflow_states import DatasetTracker, TrackedDatasetIterator

_MOST_PASSES = 200  # most passes that are remembered; each takes some kilobytes
_NUMBERS = count()


class IteratorState(NamedTuple):
    """The position of an iterator.

    `position`: number of batches that it has yielded. `began`, `drawn`: states of the random generators before it was made, and
    before it drew its first indices (None: not yet). `passes`: how many iterators of its loader began before it.
    """

    position: int
    began: dict[str, Any]
    drawn: dict[str, Any] | None
    passes: int


class _Positioned(Protocol):
    """An iterator that knows its position, but is not a DataLoader's."""

    def state(self, fetched: bool) -> dict[str, Any] | None:
        """Return the iterator's position; if a batch was `fetched`, the one before this batch. None if it cannot start there."""


class Placeholder:
    """Stands for a batch that a resumed run does not read. Any use of it raises IotwinError."""

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
    """The iterator that a DataLoader returns to a script while a LoaderTracker is active."""

    def __init__(self, loader: "DataLoader[Any]", tracker: "LoaderTracker", start: IteratorState | None) -> None:
        self.loader, self._tracker = loader, tracker
        self.requested: deque[list[Any]] = deque()  # sample indices of drawn batches that have not been yielded
        self.reads_ahead = loader.num_workers > 0
        self._awaited: IteratorState | None = None  # the state to restore when the first batch is fetched
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
        """Draw the indices of the skipped batches, before those of the first batch that is read."""
        if self._drawn is None:
            if self._start_state is not None and self._start_state.drawn is not None:
                set_generators(self.loader, self._start_state.drawn)
            self._drawn = generators_of(self.loader)
            self._tracker.remember(self)
            for _ in range(self._placeholders):
                next_index()

    def state(self) -> IteratorState:
        """Return the iterator's present state."""
        return self._awaited or IteratorState(self.position, self._began, self._drawn, self.passes)

    def go_to(self, state: IteratorState) -> None:
        """Start again at `state`, which an earlier iterator had. Batches that the earlier iterator had yielded are not read.

        If the earlier iterator had not drawn indices yet, this one draws them with its first batch, even if worker processes
        would draw them at its start.
        """
        if state.drawn is None:
            self._awaited = state
            return
        self._awaited = None
        self._start(state)
        self.position, self._placeholders = state.position, 0

    @property
    def restorable(self) -> bool:
        """True unless the next batches can only be known by reading all earlier ones."""
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

    `on_batch` is called with the sample indices of each batch that is yielded. `workers` replaces the script's number of worker
    processes. With an `item_seed`, random draws of an item of a data set depend only on the pass and the item.
    """

    def __init__(
        self, on_batch: Callable[[list[Any]], None] | None = None, workers: int | None = None, item_seed: int | None = None
    ) -> None:
        self._on_batch, self._workers, self._item_seed = on_batch, workers, item_seed
        self._make = DataLoader.__iter__
        self._making: list[TrackedIterator] = []
        self._starts: deque[IteratorState] = deque()
        self.opened: list[TrackedIterator | _Positioned] | None = None  # iterators that began since `opens`
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
        """Return the iterator that DataLoader makes for `owner`."""
        self._making.append(owner)
        try:
            made = self._make(owner.loader)
        finally:
            self._making.pop()
        made.detrain_owner = owner
        return made

    def remember(self, iterator: TrackedIterator) -> None:
        """Remember how the pass of an iterator began, for checkpoints that are restored by replaying the run."""
        if len(self._history) < _MOST_PASSES:
            self._history[_key(iterator.loader, iterator.passes)] = iterator.state()._replace(position=0)._asdict()

    def replays(self, history: dict[str, Any], last: dict[str, Any]) -> None:
        """Let later passes begin as in the `history` of an earlier run. `last`: by loader, the last batch's sample indices."""
        self._replayed, self._expected = history, last

    def replayed(self) -> None:
        """End a replay. Raises IotwinError if a loader has not reached its expected last batch."""
        here = self.last_batches()
        if different := [name for name in here.keys() & self._expected.keys() if here[name] != self._expected[name]]:
            raise IotwinError(
                f"loader {different[0]} gives other batches than before, as its draws depend on steps; resume with --replay full"
            )
        self._replayed, self._expected = {}, {}

    def begun_before(self, loader: "DataLoader[Any]") -> IteratorState | None:
        """Return how the next pass over a loader began in the run that is replayed; None if that is unknown."""
        found = self._replayed.get(_key(loader, loader.__dict__.get("detrain_passes", 0)))
        return IteratorState(**found) if found else None

    def history(self) -> dict[str, Any]:
        """Return how the passes over each loader began, for at most _MOST_PASSES passes."""
        return dict(self._history)

    def last_batches(self) -> dict[str, Any]:
        """Return, by loader, the sample indices of its last batch."""
        return {name: repr(indices) for name, indices in self._last.items()}

    def passes_of(self, loader: "DataLoader[Any]", passes: int | None) -> int:
        """Return how many iterators of `loader` began before. `passes`, if given, replaces this number, a key of the items."""
        found: int = loader.__dict__.get("detrain_passes", 0) if passes is None else passes
        loader.__dict__["detrain_passes"] = found + 1
        if self._item_seed is not None:
            keyed = KeyedIterableDataset if isinstance(loader.dataset, IterableDataset) else KeyedDataset
            if not isinstance(loader.dataset, keyed):
                loader.__dict__["dataset"] = keyed(loader.dataset, self._item_seed)
            loader.dataset.item_epoch = found
        return found

    def yielded(self, iterator: TrackedIterator) -> None:
        """Record that an iterator has yielded a batch."""
        indices = iterator.requested.popleft() if iterator.requested else []
        self._last[str(_number(iterator.loader))] = indices
        if self._on_batch is not None:
            self._on_batch(indices)

    def read(self, name: str, content: Any) -> None:
        """Record that a batch without indices was read from the source `name`. `content`: its text is the batch's digest."""
        self._last[name] = content

    def opens(self, starts: list[dict[str, Any] | None]) -> None:
        """Prepare for a new loop: its iterators, in the order in which they begin, start at `starts`; []: at the beginning."""
        self.opened = []
        self._starts = deque(IteratorState(**each) for each in starts if each and "drawn" in each)
        self._datasets.opens([each for each in starts if each and "files" in each])

    def about_to_save(self) -> None:
        """Let tf.data pipelines remember their positions: the run is saved once the next batch is fetched."""
        for each in self.opened or ():
            if isinstance(each, TrackedDatasetIterator):
                each.remember()

    def states(self, fetched: bool) -> tuple[list[dict[str, Any] | None], list[str]]:
        """Return (by iterator of the loop, its state, None if it cannot be restored; descriptions of those without a state).

        `fetched`: the loop has fetched a batch from each iterator but has not trained on it.
        """
        found = [_state_before(each, fetched) for each in self.opened or ()]
        return found, [f"data loader {index} of the loop" for index, each in enumerate(found) if each is None]

    def opened_all(self) -> None:
        """End the preparation of `opens`: the loop has its first batch, so later iterators are not the loop's."""
        self._starts.clear()
        self._datasets.opened()


def _state_before(iterator: TrackedIterator | _Positioned, fetched: bool) -> dict[str, Any] | None:
    """Return an iterator's state; None if no new iterator can start at it.

    `fetched`: no step has used the last batch that the iterator fetched. The returned state is then that before this batch.
    """
    if not isinstance(iterator, TrackedIterator):
        return iterator.state(fetched)
    return iterator.state()._replace(position=iterator.position - fetched)._asdict() if iterator.restorable else None


def _number(loader: "DataLoader[Any]") -> int:
    """Return the number of a loader, in the order in which the script first iterates over its loaders."""
    if "detrain_number" not in loader.__dict__:
        loader.__dict__["detrain_number"] = next(_NUMBERS)
    return int(loader.__dict__["detrain_number"])


def _key(loader: "DataLoader[Any]", passes: int) -> str:
    return f"{_number(loader)}:{passes}"


def generators_of(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the states of the global generators and of the generators that the loader and its samplers own."""
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
    """Let each loader that the script makes use `workers` worker processes."""
    make = DataLoader.__init__

    def made(loader: "DataLoader[Any]", *arguments: Any, **options: Any) -> None:
        given = signature(make).bind(loader, *arguments, **options)
        given.arguments["num_workers"] = workers
        if not workers:
            for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                given.arguments.pop(name, None)
        make(*given.args, **given.kwargs)

    DataLoader.__init__ = made
