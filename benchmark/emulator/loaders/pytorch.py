"""Load by PyTorch's own DataLoader (`reader.data_loader: pytorch`)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Fetcher, Loader
from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import safe_path
from iotwin.workload_yaml import Config


class _Keys:
    """The sampler, which yields (epoch, indices) of every batch as keys for `_Batches`."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batches: Sequence[Batch] = ()

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return ((self.epoch, batch) for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Batches:
    """The data set, whose items are (error, numbers of the batch's reads, tensor or 0). The workload may specify a tensor."""

    def __init__(self, fetcher: Fetcher, tensor_type: np.dtype[np.void] | None) -> None:
        self._fetcher, self._tensor_type = fetcher, tensor_type

    def __getitem__(self, key: tuple[int, Batch]) -> tuple[str, tuple[int, ...], Any]:
        import torch

        epoch, batch = key
        try:
            fetched = self._fetcher.fetch(epoch, batch)
        except IotwinError as error:  # returned as a string, since DataLoader would wrap the exception in a traceback
            return str(error), (), 0
        return (
            "",
            (*fetched[:4], fetched.start_ns),
            0 if self._tensor_type is None else torch.from_numpy(np.zeros(len(batch), self._tensor_type)),
        )


class TorchLoader(Loader):
    """Loads by PyTorch's DataLoader, which reads samples by the same readers as the native loader."""

    def __init__(
        self, fetcher: Fetcher, config: Config, workers: int, prefetch: int, tensor_type: np.dtype[np.void] | None
    ) -> None:
        try:
            import torch
            from torch.utils.data import DataLoader
        except ImportError:
            raise IotwinError(
                "reader.data_loader pytorch needs PyTorch; install it with: pip install 'iotwin[torch]', or use native"
            ) from None
        self._keys = _Keys()
        self._on_demand = not workers and tensor_type is None  # making a tensor is work of the job
        parallel: dict[str, Any] = {}
        if workers:
            parallel = {
                "prefetch_factor": prefetch,
                "persistent_workers": config.twin.persistent_workers,
                "multiprocessing_context": config.reader.multiprocessing_context,
            }
        self._loader: Any = DataLoader(
            _Batches(fetcher, tensor_type),
            batch_size=None,
            sampler=self._keys,
            num_workers=workers,
            pin_memory=config.reader.pin_memory is not False and torch.cuda.is_available(),
            **parallel,
        )

    def __exit__(self, *exception: object) -> None:
        """End the workers."""
        self._loader = None

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        self._keys.epoch, self._keys.batches = epoch, batches
        asked_ns = waits.now_ns()
        try:
            with safe_path():  # spawned workers must import no module from the current directory
                loading = iter(self._loader)
            for problem, numbers, _ in loading:
                if problem:
                    raise IotwinError(problem)
                samples, size_bytes, read_ns, preprocess_ns, start_ns = map(int, numbers)
                fetched = Fetched(samples, size_bytes, read_ns, preprocess_ns, start_ns=start_ns)
                yield fetched.read_on_demand(asked_ns) if self._on_demand else fetched
                asked_ns = waits.now_ns()
        except RuntimeError as error:  # a worker was killed
            raise IotwinError(f"PyTorch's DataLoader failed in epoch {epoch}: {' '.join(str(error).split())}") from None
