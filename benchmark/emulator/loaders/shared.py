"""Loaders that share files which the main process opened before it started them."""

from collections.abc import Iterator, Sequence
from typing import Self

from benchmark.emulator.data.dataset import SharedFiles
from benchmark.emulator.data.order import Batch
from benchmark.emulator.loaders.base import Fetched, Loader


class OpenedEachPass:
    """Another loader, whose files are opened here before each pass and closed after it."""

    def __init__(self, loader: Loader, files: SharedFiles) -> None:
        self._loader, self._files = loader, files

    def __enter__(self) -> Self:
        """Return the loader."""
        self._loader.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the other loader."""
        self._loader.__exit__(*exception)

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch, in order; IotwinError when reading fails or a worker dies."""
        self._files.open()
        try:
            yield from self._loader.epoch(epoch, batches)
        finally:
            self._files.close()
