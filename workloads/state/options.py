"""The command line options of jobs that can be stopped anywhere."""

from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UsageError
from workloads.common.program import require_at_least

AUTO, NEVER = "auto", "never"
_NAMES = ("checkpoint_steps", "checkpoint_seconds", "keep", "resume", "stop_after", "index_log")


@dataclass(frozen=True)
class StateOptions:
    """When a job keeps its state, what it goes on from and where it stops; 0: never, or all."""

    checkpoint_steps: int
    checkpoint_seconds: float
    keep: int
    resume: str  # auto, never, or a path
    stop_after: int
    index_log: Path | None

    @property
    def keeps(self) -> bool:
        """Whether the job writes checkpoints in a store."""
        return self.checkpoint_steps > 0 or self.checkpoint_seconds > 0

    @property
    def used(self) -> bool:
        """Whether any of them is given."""
        return self.keeps or self.resume != NEVER or self.stop_after > 0 or self.index_log is not None


def add_state_options(parser: ArgumentParser) -> None:
    """Add the options to `parser`."""
    add = parser.add_argument
    add(
        "--checkpoint-steps",
        type=int,
        default=0,
        metavar="K",
        help="keep the whole state in OUTPUT/checkpoints after every Kth step, to resume from; 0: never (default)",
    )
    add("--checkpoint-seconds", type=float, default=0, metavar="S", help="the same every S seconds; 0: never (default)")
    add("--keep", type=int, default=0, metavar="N", help="of these, the newest N stay; 0: all (default)")
    add(
        "--resume",
        default=NEVER,
        metavar="auto|never|PATH",
        help="go on from the newest of OUTPUT/checkpoints, if any, or from a store or checkpoint (default never)",
    )
    add("--stop-after", type=int, default=0, metavar="STEPS", help="stop after STEPS steps of this run, and keep the state")
    add("--index-log", type=Path, metavar="FILE", help="append a line a batch: rank epoch step index index ...")


def take_state_options(values: dict[str, Any]) -> StateOptions:
    """Return the options, taken out of the arguments `values`; UsageError for impossible ones."""
    options = StateOptions(**{name: values.pop(name) for name in _NAMES})
    require_at_least(
        0,
        checkpoint_steps=options.checkpoint_steps,
        checkpoint_seconds=options.checkpoint_seconds,
        keep=options.keep,
        stop_after=options.stop_after,
    )
    if options.keeps and values["sleep"] is not None:
        raise UsageError("--variant sleep computes nothing, so there is no state for --checkpoint-steps or --checkpoint-seconds")
    return options
