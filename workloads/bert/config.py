"""Command line options of the BERT training job. The defaults come from the published job (BERT-large)."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.datagen.layouts import BertLayout
from iotwin.workloads.common.options import add_options, check_least, option
from iotwin.workloads.common.variant import INSTRUMENTED, ORIGINAL, PROFILER, SLEEP, add_variant_options, check_variant
from iotwin.workloads.state.options import StateOptions, take_state_options


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The options of a BERT pretraining job."""

    data: Path = option("directory of part-NNNNN-of-NNNNN and eval_10k", metavar="DIR")
    output: Path = option("directory for checkpoints, timelines and result.json", metavar="DIR")
    batch_size: int = option("records per step and rank", 6, least=1)
    steps: int = option("training steps", 2400, least=1)
    eval_steps: int = option("batches of the evaluation after training; 0: none", 100, least=0)
    layers: int = option("layers of the encoder", 24, least=1)
    hidden: int = option("width of the encoder", 1024, least=1)
    heads: int = option("attention heads of a layer", 16, least=1)
    sequence: int = option("first tokens of a record that are used", BertLayout.SEQUENCE, least=2)
    learning_rate: float = option("highest rate, of Adam with weight decay", 1e-4, least=0)
    profile_every: int = option("steps between timelines of the variant profiler", 10, least=1, metavar="N")
    threads: int = option("CPU threads that compute; 0: TensorFlow's choice", 0, least=0)
    seed: int = option("seed of weights and order", 1, least=0)
    deterministic: bool = option(
        "read shards in a fixed order and compute the same in each run, so that a resumed job repeats an uninterrupted one"
    )
    variant: str
    sleep: str | None  # value of --sleep: the model of step times for the variant sleep
    state: StateOptions

    @property
    def network(self) -> dict[str, int]:
        """The sizes of the model. A checkpoint can be restored only by a job with the same sizes."""
        return {"layers": self.layers, "hidden": self.hidden, "heads": self.heads, "sequence": self.sequence}


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the options of BertConfig to `parser`."""
    add_options(parser, BertConfig)
    add_options(parser, StateOptions)
    add_variant_options(parser, (ORIGINAL, INSTRUMENTED, SLEEP, PROFILER))


def parse_config(args: Namespace) -> BertConfig:
    """Return the job that the parsed options `args` describe. Raises UsageError if a value is impossible."""
    values = dict(vars(args))
    values["state"] = take_state_options(values)
    check_variant(args.variant, args.sleep, values.pop("variants"))
    config = BertConfig(**values)
    check_least(config)
    if config.hidden % config.heads:
        raise UsageError(f"--hidden {config.hidden} must be a multiple of --heads {config.heads}")
    if config.sequence > BertLayout.SEQUENCE:
        raise UsageError(f"--sequence {config.sequence} is more than the {BertLayout.SEQUENCE} tokens that a record has")
    if config.sleep is not None and config.state.used:
        raise UsageError("--variant sleep of bert only reads: it cannot be resumed, stopped or asked for its indices")
    return config
