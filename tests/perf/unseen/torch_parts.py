"""What the jobs on PyTorch share: a step that an accelerator would compute, and state that is saved."""

import time
from collections.abc import Iterable
from pathlib import Path

import torch

torch.set_num_threads(1)


def train(loader: Iterable[torch.Tensor], compute_s: float, steps: int | None = None) -> Iterable[int]:
    """Take batches, compute for each as long as an accelerator would, and yield the steps done."""
    for step, batch in enumerate(loader, 1):
        time.sleep(compute_s + 0.0 * float(batch.flatten()[0]))
        yield step
        if step == steps:
            return


def save(path: Path, size_bytes: int, renamed: bool = False) -> None:
    """Save a state of this size by torch.save, under a temporary name first if it is renamed."""
    state = {"model": torch.zeros(size_bytes // 8), "optimizer": torch.zeros(size_bytes // 8)}
    target = path.with_suffix(".tmp") if renamed else path
    torch.save(state, target)
    if renamed:
        target.replace(path)
