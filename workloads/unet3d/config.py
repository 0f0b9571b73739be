"""The job's command line options; the defaults are the published job's."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.workloads.common.program import require_at_least
from iotwin.workloads.common.variant import add_variant_options, check_variant
from iotwin.workloads.state.options import StateOptions, add_state_options, take_state_options

Size = tuple[int, int, int]  # voxels along D, H, W


@dataclass(frozen=True)
class Unet3dConfig:
    """One training job. "Every N epochs" counts epochs from 1; 0 means never."""

    data: Path
    output: Path
    epochs: int
    batch_size: int  # per rank
    workers: int  # loader processes per rank; 0 loads in the rank itself
    prefetch: int  # batches ahead per worker
    persistent_workers: bool
    eval_every: int
    checkpoint_every: int
    base_channels: int
    depth: int
    crop: Size
    overlap: float  # share of an evaluation window that the next one covers too
    learning_rate: float
    threads: int  # of the rank's computation; 0 leaves torch's choice
    seed: int
    variant: str
    sleep: str | None  # model of the variant sleep
    state: StateOptions

    @property
    def network(self) -> dict[str, int]:
        """The sizes of the network, which must equal those in a checkpoint."""
        return {"base_channels": self.base_channels, "depth": self.depth}


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the job's options to `parser`."""
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="directory of case_NNNNN_x.npy and case_NNNNN_y.npy")
    add("--output", type=Path, required=True, metavar="DIR", help="directory for checkpoints and result.json")
    add("--epochs", type=int, default=50, help="epochs to train (default %(default)s)")
    add("--batch-size", type=int, default=4, help="cases per step and rank (default %(default)s)")
    add("--workers", type=int, default=1, help="loader processes per rank; 0: none (default %(default)s)")
    add("--prefetch", type=int, default=2, help="batches that each loader process keeps ready (default %(default)s)")
    add(
        "--persistent-workers", action="store_true", help="keep loader processes from epoch to epoch instead of starting new ones"
    )
    add("--eval-every", type=int, default=25, metavar="N", help="evaluate after every Nth epoch; 0: never (default %(default)s)")
    add(
        "--checkpoint-every", type=int, default=50, metavar="N", help="save after every Nth epoch; 0: never (default %(default)s)"
    )
    add("--base-channels", type=int, default=32, metavar="C", help="channels at full resolution (default %(default)s)")
    add("--depth", type=int, default=5, metavar="L", help="times the resolution is halved (default %(default)s)")
    add("--crop", default="128", metavar="D[,H,W]", help="voxels of a training crop and evaluation window (default %(default)s)")
    add("--overlap", type=float, default=0.5, help="share of a window that the next one covers too (default %(default)s)")
    add("--learning-rate", type=float, default=0.3, help="learning rate of SGD with Nesterov momentum 0.9 (default %(default)s)")
    add("--threads", type=int, default=0, help="CPU threads that compute; 0: torch's choice (default %(default)s)")
    add("--seed", type=int, default=1, help="seed of weights, order and augmentation (default %(default)s)")
    add_state_options(parser)
    add_variant_options(parser)


def parse_config(args: Namespace) -> Unet3dConfig:
    """Return the job that `args` describe; UsageError for a value that no job can have."""
    values = {**vars(args), "crop": _parse_crop(args.crop)}
    values["state"] = take_state_options(values)
    check_variant(args.variant, args.sleep, values.pop("variants"))
    config = Unet3dConfig(**values)
    require_at_least(
        1,
        epochs=config.epochs,
        batch_size=config.batch_size,
        prefetch=config.prefetch,
        base_channels=config.base_channels,
        depth=config.depth,
    )
    require_at_least(0, workers=config.workers, eval_every=config.eval_every, checkpoint_every=config.checkpoint_every,
                     threads=config.threads, seed=config.seed, learning_rate=config.learning_rate)  # fmt: skip
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
