"""Command line options of the training job with a memory budget."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.common.units import parse_size
from iotwin.workloads.common.options import check_least, option
from iotwin.workloads.dtr.simulator.heuristics import heuristic_named
from iotwin.workloads.models import IMAGE_CLASSIFIERS, PRESETS

UNET3D = "unet3d"  # trains on volumes, the others on images


@dataclass(frozen=True, kw_only=True)
class DtrConfig:
    """The options of the job."""

    data: Path = option("directory of images as `iotwin generate checkfreq` writes them, or for unet3d of volumes", metavar="DIR")
    output: Path = option("directory for result.json", metavar="DIR")
    model: str = option("network to train", "resnet18", choices=(*IMAGE_CLASSIFIERS, UNET3D))
    preset: str = option("size of the network and of images", "tiny", choices=PRESETS)
    memory_budget: str | None = option(
        "bytes that tensors may take, such as 4GiB; default: no limit", None, type=str, metavar="SIZE"
    )
    heuristic: str = option("what chooses the tensor to evict", "h_eq", metavar="NAME")
    offload: Path | None = option("save evicted tensors to a file in DIR if that is faster", None, type=Path, metavar="DIR")
    operations: Path | None = option(
        "write the operations of the last step to FILE, and log what other budgets would cost", None, type=Path, metavar="FILE"
    )
    epochs: int = option("epochs to train", 1, least=1)
    batch_size: int = option("images in a step", 16, least=1)
    workers: int = option("loader processes; 0: none", 1, least=0)
    learning_rate: float = option("learning rate of SGD with momentum 0.9", 0.01, least=0)
    device: str = option("device to train on", "cpu")
    threads: int = option("CPU threads that compute; 0: torch's choice", 0, least=0)
    seed: int = option("seed of weights, order and crops", 1, least=0)

    @property
    def budget_bytes(self) -> int | None:
        """The memory budget in bytes; None if there is no limit."""
        return None if self.memory_budget is None else parse_size(self.memory_budget)


def parse_config(args: Namespace) -> DtrConfig:
    """Return the job that the parsed options `args` describe. Raises UsageError if a value is impossible."""
    config = DtrConfig(**vars(args))
    check_least(config)
    heuristic_named(config.heuristic)
    if config.budget_bytes is not None and config.budget_bytes <= 0:
        raise UsageError(f"--memory-budget {config.memory_budget} is not above 0")
    if config.operations and config.offload:
        raise UsageError("--operations predicts the cost of computing again, not of files; leave out --offload")
    return config
