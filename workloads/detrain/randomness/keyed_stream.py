"""Random numbers keyed by seed, epoch and item number, for data sets that are streams."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from iotwin.workloads.detrain.randomness.keyed_data import GlobalGenerators, KeyedItems, keyed


class KeyedIterableDataset(KeyedItems, IterableDataset):
    """A stream that seeds the global generators of Python, numpy and torch for each item by (seed, epoch, worker, item number).

    * The n-th item that a worker's iterator yields is number n - 1. The first number also seeds the making of the iterator.
    * With 0 and with 1 worker the draws are equal, since the only worker is worker 0.
    * With more workers, a rerun draws the same numbers if it has as many workers. Another number of workers divides the stream
      differently, so that the same item has another number and other draws.
    * Ranks number their items separately: give each rank its own seed.

    Attributes are those of `dataset`. Call `set_epoch` before each epoch's iterator is made.
    """

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        view = worker.id if worker else 0
        epoch = int(self._keyed_epoch)
        iterator: Iterator[Any] | None = None
        for number in count():
            with GlobalGenerators():
                keyed(self._keyed_seed, epoch, number, view).seed_global()
                iterator = iter(self._keyed_dataset) if iterator is None else iterator
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
