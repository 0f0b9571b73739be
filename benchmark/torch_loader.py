"""Loading by PyTorch's own DataLoader (`reader.data_loader: pytorch`)."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

from benchmark.config import Config
from benchmark.loader import Fetched, Fetcher
from benchmark.order import Batch
from tracing_tools.trace.errors import IotwinError


class _Keys:
    """The sampler: the epoch and the indices of every batch, as the data set below takes them."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batches: Sequence[Batch] = ()

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return ((self.epoch, batch) for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Batches:
    """The data set: an item is a batch, of which what was read is told and, if the workload says so, a tensor handed over."""

    def __init__(self, fetcher: Fetcher, handed_bytes: int) -> None:
        self._fetcher, self._handed_bytes = fetcher, handed_bytes

    def __getitem__(self, key: tuple[int, Batch]) -> tuple[str, tuple[int, ...], Any]:
        import torch

        epoch, batch = key
        try:
            fetched = self._fetcher.fetch(epoch, batch)
        except IotwinError as error:  # as a string: DataLoader would wrap it into a traceback
            return str(error), (), 0
        return "", fetched[:4], torch.zeros((len(batch), self._handed_bytes), dtype=torch.uint8) if self._handed_bytes else 0


class TorchLoader:
    """A DataLoader over batches; samples are read by the same readers as natively."""

    def __init__(self, fetcher: Fetcher, config: Config, workers: int, prefetch: int, handed_bytes: int) -> None:
        try:
            import torch
            from torch.utils.data import DataLoader
        except ImportError:
            raise IotwinError(
                "reader.data_loader pytorch needs PyTorch; install it with: pip install 'iotwin[torch]', or use native"
            ) from None
        self._keys = _Keys()
        parallel: dict[str, Any] = {}
        if workers:
            parallel = {
                "prefetch_factor": prefetch,
                "persistent_workers": config.twin.persistent_workers,
                "multiprocessing_context": config.reader.multiprocessing_context,
            }
        self._loader: Any = DataLoader(
            _Batches(fetcher, handed_bytes),
            batch_size=None,
            sampler=self._keys,
            num_workers=workers,
            pin_memory=config.reader.pin_memory and torch.cuda.is_available(),
            **parallel,
        )

    def __enter__(self) -> Self:
        """Return the loader; workers start with the first epoch."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers."""
        self._loader = None

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch, in order; IotwinError when reading fails or a worker dies."""
        self._keys.epoch, self._keys.batches = epoch, batches
        try:
            for problem, numbers, _ in self._loader:
                if problem:
                    raise IotwinError(problem)
                samples, size_bytes, read_ns, preprocess_ns = map(int, numbers)
                yield Fetched(samples, size_bytes, read_ns, preprocess_ns)
        except RuntimeError as error:  # a worker that was killed
            raise IotwinError(f"PyTorch's DataLoader failed in epoch {epoch}: {' '.join(str(error).split())}") from None
