"""The job's command line options; the defaults are the published job's (BERT-large)."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.datagen.layouts import BertLayout
from iotwin.workloads.common.program import require_at_least
from iotwin.workloads.common.variant import INSTRUMENTED, ORIGINAL, PROFILER, SLEEP, add_variant_options, check_variant
from iotwin.workloads.state.options import StateOptions, add_state_options, take_state_options


@dataclass(frozen=True)
class BertConfig:
    """One pretraining job."""

    data: Path
    output: Path
    batch_size: int  # per rank
    steps: int
    eval_steps: int  # batches of the evaluation after training; 0: none
    layers: int
    hidden: int
    heads: int
    sequence: int  # tokens of a record that the model sees
    learning_rate: float
    profile_every: int  # the variant profiler writes a timeline of every Nth step
    threads: int  # of the computation; 0 leaves TensorFlow's choice
    seed: int
    deterministic: bool
    variant: str
    sleep: str | None  # model of the variant sleep
    state: StateOptions

    @property
    def network(self) -> dict[str, int]:
        """The sizes of the model, which must equal those in a checkpoint."""
        return {"layers": self.layers, "hidden": self.hidden, "heads": self.heads, "sequence": self.sequence}


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the job's options to `parser`."""
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="directory of part-NNNNN-of-NNNNN and eval_10k")
    add("--output", type=Path, required=True, metavar="DIR", help="directory for checkpoints, timelines and result.json")
    add("--batch-size", type=int, default=6, help="records per step and rank (default %(default)s)")
    add("--steps", type=int, default=2400, help="training steps (default %(default)s)")
    add("--eval-steps", type=int, default=100, help="batches of the evaluation after training; 0: none (default %(default)s)")
    add("--layers", type=int, default=24, help="layers of the encoder (default %(default)s)")
    add("--hidden", type=int, default=1024, help="width of the encoder (default %(default)s)")
    add("--heads", type=int, default=16, help="attention heads of a layer (default %(default)s)")
    add("--sequence", type=int, default=BertLayout.SEQUENCE, help="first tokens of a record that are used (default %(default)s)")
    add("--learning-rate", type=float, default=1e-4, help="highest rate, of Adam with weight decay (default %(default)s)")
    add(
        "--profile-every",
        type=int,
        default=10,
        metavar="N",
        help="steps between timelines of the variant profiler (default %(default)s)",
    )
    add("--threads", type=int, default=0, help="CPU threads that compute; 0: TensorFlow's choice (default %(default)s)")
    add("--seed", type=int, default=1, help="seed of weights and order (default %(default)s)")
    add(
        "--deterministic",
        action="store_true",
        help="read shards in a fixed order and compute the same in each run, so that a resumed job repeats an uninterrupted one",
    )
    add_state_options(parser)
    add_variant_options(parser, (ORIGINAL, INSTRUMENTED, SLEEP, PROFILER))


def parse_config(args: Namespace) -> BertConfig:
    """Return the job that `args` describe; UsageError for a value that no job can have."""
    values = dict(vars(args))
    values["state"] = take_state_options(values)
    check_variant(args.variant, args.sleep, values.pop("variants"))
    config = BertConfig(**values)
    require_at_least(1, batch_size=config.batch_size, steps=config.steps, layers=config.layers, hidden=config.hidden,
                     heads=config.heads, profile_every=config.profile_every)  # fmt: skip
    require_at_least(2, sequence=config.sequence)
    require_at_least(
        0, eval_steps=config.eval_steps, learning_rate=config.learning_rate, threads=config.threads, seed=config.seed
    )
    if config.hidden % config.heads:
        raise UsageError(f"--hidden {config.hidden} must be a multiple of --heads {config.heads}")
    if config.sequence > BertLayout.SEQUENCE:
        raise UsageError(f"--sequence {config.sequence} is more than the {BertLayout.SEQUENCE} tokens that a record has")
    if config.sleep is not None and config.state.used:
        raise UsageError("--variant sleep of bert only reads: it cannot be resumed, stopped or asked for its indices")
    return config
