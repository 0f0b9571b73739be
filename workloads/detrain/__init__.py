"""DETrain: makes any training script resumable at every batch and repeatable bit for bit, without changing its files."""

from importlib import import_module
from typing import Any

# The names that training scripts use, and their modules, which are imported when a name is first used: they import torch.
_MODULES = {
    "keyed": "randomness.keyed_data",
    "KeyedDataset": "randomness.keyed_data",
    "CountedSampler": "randomness.keyed_data",
    "KeyedIterableDataset": "randomness.keyed_stream",
    **dict.fromkeys(("record_epoch", "record_batch", "ignore_start", "ignore_end", "checkpoint", "next_batch"), "markers"),
    **dict.fromkeys(("register_iter", "enter_main", "train_loop_start", "train_loop_end", "hint"), "markers"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
