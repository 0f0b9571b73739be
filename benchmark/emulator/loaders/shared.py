"""Loaders that share files. The main process opens the files before it starts the loaders."""

from collections.abc import Iterator, Sequence

from iotwin.benchmark.emulator.data.dataset import SharedFiles
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Loader, WrappedLoader


class OpenedEachPass(WrappedLoader):
    """Wraps a loader; the main process opens the loader's files before each pass and closes them after it."""

    def __init__(self, loader: Loader, files: SharedFiles) -> None:
        super().__init__(loader)
        self._files = files

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch, in order; IotwinError when reading fails or a worker dies."""
        self._files.open()
        try:
            yield from self._loader.epoch(epoch, batches)
        finally:
            self._files.close()
