"""Saves the random generators of persistent loader workers, which are seeded once and used by all following epochs."""

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from iotwin.workloads.checkfreq.epochs.generators import global_states, set_global_states


class WorkerGenerators:
    """Wraps a loader's `collate_fn`, which runs in the loader's workers, to share their generators' states with the rank."""

    def __init__(self, collate: Any, workers: int) -> None:
        self._collate = collate
        self._states = torch.zeros(workers, len(global_states()), dtype=torch.uint8).share_memory_()
        self._wanted = self._states.clone().share_memory_()
        # For each worker, how often it still sets its generators to `_wanted`: once after each of its next batches.
        self._left = torch.zeros(workers, dtype=torch.int64).share_memory_()
        self._drew = torch.zeros(1, dtype=torch.uint8).share_memory_()
        self._before: bytes | None = None

    def __call__(self, samples: Any) -> Any:
        """Return the batch of `samples`."""
        batch = self._collate(samples)
        if (worker := get_worker_info()) is not None:
            if self._left[worker.id] > 0:
                self._left[worker.id] -= 1
                set_global_states(self._wanted[worker.id])
            self._states[worker.id] = global_states()
            if self._before not in (None, state := self._states[worker.id].numpy().tobytes()):
                self._drew[0] = 1
            self._before = state
        return batch

    @property
    def drew(self) -> bool:
        """True if a worker has drawn random numbers."""
        return bool(self._drew[0])

    def states(self) -> torch.Tensor:
        """Return the states of each worker's generators after the worker's newest batch, of shape [workers, bytes]."""
        return self._states.clone()

    def begin_with(self, states: torch.Tensor, batches: list[int]) -> None:
        """Make new worker i set its generators to `states[i]` after each of its first `batches[i]` batches."""
        self._wanted.copy_(states)
        self._left.copy_(torch.tensor(batches))


def watch(loader: DataLoader) -> WorkerGenerators:
    """Make the workers that `loader` starts from now on share their generators' states. Return the wrapper that reads them."""
    if not isinstance(loader.collate_fn, WorkerGenerators):
        loader.collate_fn = WorkerGenerators(loader.collate_fn, loader.num_workers)
    watched: WorkerGenerators = loader.collate_fn
    return watched


def draws_behind_batches(loader: DataLoader) -> bool:
    """Return True if workers of `loader` may draw random numbers for samples that end up in no batch."""
    return isinstance(loader.dataset, IterableDataset) and loader.drop_last


def first_batches(loader: DataLoader) -> list[int]:
    """Return, for each worker of `loader`, how many batches it prefetches at the start of an epoch."""
    each = loader.prefetch_factor or 0
    count = each * loader.num_workers
    if not isinstance(loader.dataset, IterableDataset) and hasattr(loader.batch_sampler or loader.sampler, "__len__"):
        count = min(count, len(loader))
    return [len(range(worker, count, loader.num_workers)) for worker in range(loader.num_workers)]
