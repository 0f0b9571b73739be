"""Command line options of the DLRM training job. The defaults come from the published job."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.workloads.common.options import add_options, check_least, option
from iotwin.workloads.common.variant import add_variant_options, check_variant
from iotwin.workloads.state.options import StateOptions, take_state_options


@dataclass(frozen=True, kw_only=True)
class DlrmConfig:
    """The options of a DLRM job: one process over all devices, as MLPerf's job, or several ranks that share each batch.

    "Every N steps" counts steps from 1; 0 means never. The network has a dense tower (`bottom`) for the 13 numbers of a sample. A
    second tower (`top`) reads the interaction of the first tower's output with the embeddings.
    """

    data: Path = option("directory of terabyte_processed_train.bin and _test.bin", metavar="DIR")
    output: Path = option("directory for checkpoints and result.json", metavar="DIR")
    batch_size: int = option("samples per step over all devices", 32768, least=1)
    steps: int = option("training batches; past the file's end it starts over", 32768, least=1)
    shuffle: bool = option("read the batches in random order instead of the file's")
    eval_every: int = option("evaluate and save after every Nth step; 0: never", 16384, least=0, metavar="N")
    eval_batches: int = option("test batches of an evaluation", 2048, least=1, metavar="N")
    eval_batch_size: int = option("samples of a test batch", 16384, least=1)
    embedding_size: int = option("width of an embedding", 128, least=1)
    most_categories: int = option(
        "rows of the largest embedding tables; categories are taken modulo N", 40_000_000, least=1, metavar="N"
    )
    bottom: tuple[int, ...] = option("hidden widths of the dense tower", "512,256", type=str, metavar="W,...")
    top: tuple[int, ...] = option("hidden widths above the interaction", "1024,1024,512,256", type=str, metavar="W,...")
    learning_rate: float = option("learning rate of SGD", 1.0, least=0)
    threads: int = option("CPU threads that compute; 0: torch's choice", 0, least=0)
    seed: int = option("seed of weights and order", 1, least=0)
    variant: str
    sleep: str | None  # value of --sleep: the model of step times for the variant sleep
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
    """Add the options of DlrmConfig to `parser`."""
    add_options(parser, DlrmConfig)
    add_options(parser, StateOptions)
    add_variant_options(parser)


def parse_config(args: Namespace) -> DlrmConfig:
    """Return the job that the parsed options `args` describe. Raises UsageError if a value is impossible."""
    values = vars(args) | {name: _parse_widths(name, getattr(args, name)) for name in ("bottom", "top")}
    values["state"] = take_state_options(values)
    check_variant(args.variant, args.sleep, values.pop("variants"))
    config = DlrmConfig(**values)
    check_least(config)
    if config.sleep is not None and config.state.used:
        raise UsageError("--variant sleep of dlrm only reads: it cannot be resumed, stopped or asked for its indices")
    return config


def _parse_widths(name: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"--{name} '{text}' must be numbers above 0; write for example 512,256")
    return tuple(int(part) for part in parts)
