"""What the jobs on PyTorch share: ranks, loaders, passes over the data, a step that an accelerator would compute, saved state."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from command_line import JobOptions, command_line
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

torch.set_num_threads(1)

# Python keeps the last reduction until the next one. If a thread of gloo released it last, that thread would take locks of Python
# while the next loaders are forked, and a loader could hang.
_reductions: deque[dist.Work] = deque(maxlen=1)


def launch(make: Callable[[JobOptions], Any], main: Callable[[JobOptions, Any], None], *flags: str, **defaults: int) -> None:
    """Run `main` with the data that `make` returns: in this process, or in several ranks that use gloo over loopback."""
    job = command_line(*flags, **defaults)
    data = make(job)
    job.out.mkdir(exist_ok=True)
    if max(job.ranks, defaults.get("ranks", 1)) == 1:
        main(job, data)
        return
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    (store := job.folder / f"store{job.seed}").unlink(missing_ok=True)
    mp.start_processes(_rank, (main, job, data, store), nprocs=job.ranks, start_method="fork")


def _rank(rank: int, main: Callable[[JobOptions, Any], None], job: JobOptions, data: Any, store: Path) -> None:
    job.rank = rank
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=job.ranks)
    main(job, data)
    dist.destroy_process_group()


def loader(job: JobOptions, samples: Dataset, batch: int, shuffle: bool = False, epoch: int = 0, **options: Any) -> DataLoader:
    """Return a loader of the samples, or of this rank's share of them."""
    sampler = None
    if job.ranks > 1 and not isinstance(samples, IterableDataset):
        sampler = DistributedSampler(samples, shuffle=shuffle, seed=job.seed)
        sampler.set_epoch(epoch)
    return DataLoader(samples, batch, shuffle if sampler is None else None, sampler, num_workers=job.workers, **options)


def train(batches: Iterable[Any], compute_s: float) -> Iterator[int]:
    """Take batches, compute for each as long as an accelerator would, and yield the steps done; end if any rank has no batch."""
    for step, batch in enumerate(chain(batches, [None]), 1):
        if batch is not None:
            time.sleep(compute_s + 0.0 * float(batch.flatten()[0]))
        if not _all_ranks(batch is not None):
            return
        yield step


def _all_ranks(have_batch: bool) -> bool:
    """Reduce a gradient over the ranks, and return whether each of them had a batch."""
    if not dist.is_initialized():
        return have_batch
    gradient = torch.full((10_000,), float(have_batch))
    _reductions.append(dist.all_reduce(gradient, dist.ReduceOp.MIN, async_op=True))
    _reductions[-1].wait()
    return bool(gradient[0])


def train_and_validate(
    job: JobOptions,
    training: Dataset,
    validation: Dataset | None = None,
    *,
    batch: int = 8,
    step_s: float = 0.06,
    epochs: int = 4,
    state_bytes: int = 6_000_000,
    renamed: bool = False,
    after_step: Callable[[int, int], None] | None = None,
) -> None:
    """Pass over the training samples, shuffled, and then the validation samples in order; save a state after each epoch.

    Each pass has fresh loaders. `after_step` gets the epoch and the step. No state is saved if `state_bytes` is 0.
    """
    torch.manual_seed(job.seed + 1000 * job.rank)
    for epoch in range(job.epochs(epochs)):
        for step in train(loader(job, training, job.batch(batch), True, epoch), job.step_s(step_s)):
            if after_step:
                after_step(epoch, step)
        if validation is not None:
            validate(job, validation, batch)
        if state_bytes:
            save(job.out / f"epoch_{epoch}.pt", state_bytes, renamed)


def validate(job: JobOptions, validation: Dataset, batch: int = 8) -> None:
    """Pass over the validation samples in order."""
    for _ in train(loader(job, validation, batch), job.validation_s(0.03)):
        pass


def save(path: Path, size_bytes: int, renamed: bool = False) -> None:
    """Save a state of this size by torch.save on the first rank, under a temporary name first if it is renamed."""
    if dist.is_initialized() and dist.get_rank():
        return
    state = {"model": torch.zeros(size_bytes // 8), "optimizer": torch.zeros(size_bytes // 8)}
    target = path.with_suffix(".tmp") if renamed else path
    torch.save(state, target)
    if renamed:
        target.replace(path)
