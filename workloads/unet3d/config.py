"""Command line options of the 3-D U-Net training job. The defaults come from the published job."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.workloads.common.options import add_options, check_least, option
from iotwin.workloads.common.variant import add_variant_options, check_variant
from iotwin.workloads.state.options import StateOptions, take_state_options

Size = tuple[int, int, int]  # voxels along D, H, W


@dataclass(frozen=True, kw_only=True)
class Unet3dConfig:
    """The options of a 3-D U-Net training job. "Every N epochs" counts epochs from 1; 0 means never."""

    data: Path = option("directory of case_NNNNN_x.npy and case_NNNNN_y.npy", metavar="DIR")
    output: Path = option("directory for checkpoints and result.json", metavar="DIR")
    epochs: int = option("epochs to train", 50, least=1)
    batch_size: int = option("cases per step and rank", 4, least=1)
    workers: int = option("loader processes per rank; 0: none", 1, least=0)
    prefetch: int = option("batches that each loader process keeps ready", 2, least=1)
    persistent_workers: bool = option("keep loader processes from epoch to epoch instead of starting new ones")
    eval_every: int = option("evaluate after every Nth epoch; 0: never", 25, least=0, metavar="N")
    checkpoint_every: int = option("save after every Nth epoch; 0: never", 50, least=0, metavar="N")
    base_channels: int = option("channels at full resolution", 32, least=1, metavar="C")
    depth: int = option("times the resolution is halved", 5, least=1, metavar="L")
    crop: Size = option("voxels of a training crop and evaluation window", "128", type=str, metavar="D[,H,W]")
    overlap: float = option("share of a window that the next one covers too", 0.5)
    learning_rate: float = option("learning rate of SGD with Nesterov momentum 0.9", 0.3, least=0)
    threads: int = option("CPU threads that compute; 0: torch's choice", 0, least=0)
    seed: int = option("seed of weights, order and augmentation", 1, least=0)
    variant: str
    sleep: str | None  # value of --sleep: the model of step times for the variant sleep
    state: StateOptions

    @property
    def network(self) -> dict[str, int]:
        """The sizes of the network. A checkpoint can be restored only by a job with the same sizes."""
        return {"base_channels": self.base_channels, "depth": self.depth}


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the options of Unet3dConfig to `parser`."""
    add_options(parser, Unet3dConfig)
    add_options(parser, StateOptions)
    add_variant_options(parser)


def parse_config(args: Namespace) -> Unet3dConfig:
    """Return the job that the parsed options `args` describe. Raises UsageError if a value is impossible."""
    values = {**vars(args), "crop": _parse_crop(args.crop)}
    values["state"] = take_state_options(values)
    check_variant(args.variant, args.sleep, values.pop("variants"))
    config = Unet3dConfig(**values)
    check_least(config)
    if not 0 <= config.overlap < 1:
        raise UsageError(f"--overlap {config.overlap} must be at least 0 and below 1")
    factor = 2**config.depth
    if any(size % factor for size in config.crop) or config.crop == (factor, factor, factor):
        raise UsageError(
            f"--crop {args.crop} does not suit --depth {config.depth}: every side must be a multiple of {factor} "
            f"and not all of them {factor}, so that more than one voxel is left at the coarsest resolution"
        )
    return config


def _parse_crop(text: str) -> Size:
    parts = text.split(",")
    if len(parts) not in (1, 3) or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"--crop '{text}' must be one number of voxels or three; write for example 128 or 64,96,96")
    sizes = [int(part) for part in parts]
    return (sizes[0], sizes[0], sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1], sizes[2])
