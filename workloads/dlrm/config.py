"""The job's command line options; the defaults are the published job's."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.workloads.common.program import require_at_least
from iotwin.workloads.common.variant import add_variant_options, check_variant
from iotwin.workloads.state.options import StateOptions, add_state_options, take_state_options


@dataclass(frozen=True)
class DlrmConfig:
    """One training job: one process over all devices, as published, or several ranks that share each batch.

    "Every N steps" counts steps from 1; 0 means never.
    """

    data: Path
    output: Path
    batch_size: int  # over all devices
    steps: int
    shuffle: bool  # batches in random order instead of the file's
    eval_every: int
    eval_batches: int
    eval_batch_size: int
    embedding_size: int
    most_categories: int  # of any feature: larger numbers are taken modulo this
    bottom: tuple[int, ...]  # widths of the dense tower after its 13 inputs
    top: tuple[int, ...]  # widths of the tower above the interaction, without the last, which is 1
    learning_rate: float
    threads: int  # of the computation; 0 leaves torch's choice
    seed: int
    variant: str
    sleep: str | None  # model of the variant sleep
    state: StateOptions

    @property
    def network(self) -> dict[str, int | list[int]]:
        """The sizes of the model, as a checkpoint records them."""
        return {
            "embedding_size": self.embedding_size,
            "most_categories": self.most_categories,
            "bottom": list(self.bottom),
            "top": list(self.top),
        }


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the job's options to `parser`."""
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="directory of terabyte_processed_train.bin and _test.bin")
    add("--output", type=Path, required=True, metavar="DIR", help="directory for checkpoints and result.json")
    add("--batch-size", type=int, default=32768, help="samples per step over all devices (default %(default)s)")
    add("--steps", type=int, default=32768, help="training batches; past the file's end it starts over (default %(default)s)")
    add("--shuffle", action="store_true", help="read the batches in random order instead of the file's")
    add(
        "--eval-every",
        type=int,
        default=16384,
        metavar="N",
        help="evaluate and save after every Nth step; 0: never (default %(default)s)",
    )
    add("--eval-batches", type=int, default=2048, metavar="N", help="test batches of an evaluation (default %(default)s)")
    add("--eval-batch-size", type=int, default=16384, help="samples of a test batch (default %(default)s)")
    add("--embedding-size", type=int, default=128, help="width of an embedding (default %(default)s)")
    add(
        "--most-categories",
        type=int,
        default=40_000_000,
        metavar="N",
        help="rows of the largest embedding tables; categories are taken modulo N (default %(default)s)",
    )
    add("--bottom", default="512,256", metavar="W,...", help="hidden widths of the dense tower (default %(default)s)")
    add("--top", default="1024,1024,512,256", metavar="W,...", help="hidden widths above the interaction (default %(default)s)")
    add("--learning-rate", type=float, default=1.0, help="learning rate of SGD (default %(default)s)")
    add("--threads", type=int, default=0, help="CPU threads that compute; 0: torch's choice (default %(default)s)")
    add("--seed", type=int, default=1, help="seed of weights and order (default %(default)s)")
    add_state_options(parser)
    add_variant_options(parser)


def parse_config(args: Namespace) -> DlrmConfig:
    """Return the job that `args` describe; UsageError for a value that no job can have."""
    values = vars(args) | {name: _parse_widths(name, getattr(args, name)) for name in ("bottom", "top")}
    values["state"] = take_state_options(values)
    check_variant(args.variant, args.sleep, values.pop("variants"))
    config = DlrmConfig(**values)
    require_at_least(
        1,
        batch_size=config.batch_size,
        steps=config.steps,
        eval_batches=config.eval_batches,
        eval_batch_size=config.eval_batch_size,
        embedding_size=config.embedding_size,
        most_categories=config.most_categories,
    )
    require_at_least(
        0, eval_every=config.eval_every, learning_rate=config.learning_rate, threads=config.threads, seed=config.seed
    )
    if config.sleep is not None and config.state.used:
        raise UsageError("--variant sleep of dlrm only reads: it cannot be resumed, stopped or asked for its indices")
    return config


def _parse_widths(name: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"--{name} '{text}' must be numbers above 0; write for example 512,256")
    return tuple(int(part) for part in parts)
