"""Random numbers keyed by seed, epoch and item: an item's augmentation is equal in any worker and for any world size."""

import operator
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.workloads.state.nested_state import NumpyGenerators

if TYPE_CHECKING:
    import torch

_KEY_WORDS = 5  # words of 64 bits that seed torch (1), Python (2) and numpy's global generator (2)


class KeyedGenerators:
    """The generators of one item, each made when it is first used. Equal arguments give equal generators."""

    def __init__(self, seed: int, epoch: int, index: int, view: int = 0) -> None:
        self._numpy = generator(seed, Purpose.ITEM, rank=view, epoch=epoch, step=index)
        self._words = self._numpy.bit_generator.random_raw(_KEY_WORDS)

    @property
    def numpy(self) -> np.random.Generator:
        """Numpy's generator, on Philox."""
        return self._numpy

    @cached_property
    def python(self) -> random.Random:
        """Python's generator."""
        return random.Random(self._python_seed)  # noqa: S311  # not for secrets

    @cached_property
    def torch(self) -> "torch.Generator":
        """A generator of torch on the CPU."""
        import torch

        return torch.Generator().manual_seed(self._torch_seed)

    @property
    def _torch_seed(self) -> int:
        return int(self._words[0])

    @property
    def _python_seed(self) -> int:
        return int(self._words[1]) << 64 | int(self._words[2])

    def seed_global(self) -> None:
        """Seed the global generators of Python, numpy and torch (on the CPU)."""
        import torch

        random.seed(self._python_seed)
        np.random.seed(self._words[3:].view(np.uint32))
        torch.default_generator.manual_seed(self._torch_seed)  # torch.manual_seed would seed the accelerators too


def keyed(seed: int, epoch: int, index: int, view: int = 0) -> KeyedGenerators:
    """Return the generators of item `index` in `epoch`: `.torch`, `.numpy` and `.python`.

    `view` separates several augmentations of one item. Raises ValueError unless all are from 0 to 2**63 - 1.
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("index", index), ("view", view)):
        if not 0 <= value < 1 << 63:
            raise ValueError(f"{name} must be from 0 to 2**63 - 1 (got {value})")
    return KeyedGenerators(seed, epoch, index, view)


class GlobalGenerators:
    """A context manager that restores the states of the global generators of Python, numpy and torch (on the CPU) at its end."""

    def __enter__(self) -> None:
        import torch

        self._torch = torch.default_generator.get_state()
        self._others = NumpyGenerators().state_dict()

    def __exit__(self, *_: object) -> None:
        import torch

        NumpyGenerators().load_state_dict(self._others)
        torch.default_generator.set_state(self._torch)


def shared_epoch(epoch: int = 0) -> "torch.Tensor":
    """Return a number in shared memory, so that worker processes see its changes, even those that live longer than an epoch."""
    import torch

    return torch.tensor([epoch]).share_memory_()


class KeyedItems:
    """What data sets and streams with keyed items share: the wrapped `dataset`, whose attributes they have, and the epoch."""

    def __init__(self, dataset: Any, seed: int, epoch: int = 0) -> None:
        self._keyed_dataset = dataset
        self._keyed_seed = seed
        self._keyed_epoch = shared_epoch(epoch)

    @property
    def item_epoch(self) -> int:
        """The epoch in the items' keys. Setting it leaves the wrapped data set alone."""
        return int(self._keyed_epoch)

    @item_epoch.setter
    def item_epoch(self, epoch: int) -> None:
        self._keyed_epoch[0] = epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch in the items' keys, and call the `set_epoch` of the wrapped data set if it has one."""
        self.item_epoch = epoch
        if hasattr(self._keyed_dataset, "set_epoch"):
            self._keyed_dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._keyed_dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_keyed_"):  # not yet set: this object is being unpickled
            raise AttributeError(name)
        return getattr(self._keyed_dataset, name)


class KeyedDataset(KeyedItems):
    """A data set that seeds the global generators of Python, numpy and torch for each item by (seed, epoch, index).

    * The items depend neither on the worker that fetches them, nor on the world size, nor on earlier items.
    * After an item the global generators continue as if it had drawn nothing. So dropout does not depend on the items.
    * Call `set_epoch` before each epoch's iterator is made. Workers see the epoch, also persistent ones.
    * An item that is drawn again in the same epoch gets the same numbers, unless the sampler is a `CountedSampler`.
    * Draws outside of items, as in `collate_fn`, are not keyed. Neither are generators that the data set made itself.

    Length, items and attributes are those of `dataset`; attributes set on this object are set on `dataset`. Items are fetched one
    by one, also if `dataset` has `__getitems__`. Fetching an item raises TypeError if its index is not an integer.
    """

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        # The states are saved and restored once per batch, not per item: for numpy's state, this takes longer than seeding.
        epoch = self.item_epoch
        with GlobalGenerators():
            return [self._item(epoch, index) for index in indices]

    def _item(self, epoch: int, index: int) -> Any:
        view = index.view if isinstance(index, CountedIndex) else 0
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"KeyedDataset: items need an integer index (got {type(index).__name__})") from None
        keyed(self._keyed_seed, epoch, number if number >= 0 else number + len(self), view).seed_global()
        return self._keyed_dataset[number if view else index]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_keyed_") or name == "item_epoch":
            object.__setattr__(self, name, value)
        else:
            setattr(self._keyed_dataset, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._keyed_dataset, self._keyed_seed, self._keyed_epoch)


def _rebuilt(dataset: Any, seed: int, epoch: "torch.Tensor") -> KeyedDataset:
    """Return the KeyedDataset that was pickled or copied. Worker processes share the epoch with the original; a copy does not."""
    rebuilt = KeyedDataset(dataset, seed)
    rebuilt._keyed_epoch = epoch if epoch.is_shared() else epoch.share_memory_()
    return rebuilt


class CountedIndex(int):
    """An index into a data set. `view`: how often the sampler has drawn it before in this epoch."""

    view = 0


class CountedSampler:
    """Counts how often `sampler` draws each index in an epoch, so that a KeyedDataset seeds each draw of an index differently.

    Use it for sampling with replacement. The counts are those of this process: ranks that draw the same index count separately.
    """

    def __init__(self, sampler: Iterable[int]) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # some samplers have a length

    def __iter__(self) -> Iterator[CountedIndex]:
        drawn: dict[int, int] = {}
        for index in self.sampler:
            counted = CountedIndex(index)
            counted.view = drawn.get(counted, 0)
            drawn[counted] = counted.view + 1
            yield counted

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # not yet set: this object is being unpickled
            raise AttributeError(name)
        return getattr(self.sampler, name)  # as `set_epoch`
