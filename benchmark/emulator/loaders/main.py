"""Loading in the main process."""

from collections.abc import Iterator, Sequence
from typing import Self

from benchmark.emulator.data.order import Batch
from benchmark.emulator.loaders.base import Fetched, Fetcher


class MainLoader:
    """Reads in the calling process, when the batch is asked for (num_workers=0)."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch; IotwinError when reading fails."""
        for batch in batches:
            yield self._fetcher.fetch(epoch, batch)

    def __enter__(self) -> Self:
        """Return the loader; it holds nothing."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: there is no process to end."""
