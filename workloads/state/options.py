"""The command line options of jobs that can stop and resume at any step."""

from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.workloads.common.program import require_at_least

AUTO, NEVER = "auto", "never"
_NAMES = ("checkpoint_steps", "checkpoint_seconds", "keep", "resume", "stop_after", "index_log")


@dataclass(frozen=True)
class StateOptions:
    """When a job saves its state, where it resumes and when it stops. 0 means never, or all for `keep`."""

    checkpoint_steps: int
    checkpoint_seconds: float
    keep: int
    resume: str  # auto, never, or a path
    stop_after: int
    index_log: Path | None

    @property
    def keeps(self) -> bool:
        """True if the job writes checkpoints to a store."""
        return self.checkpoint_steps > 0 or self.checkpoint_seconds > 0

    @property
    def used(self) -> bool:
        """True if any option is given."""
        return self.keeps or self.resume != NEVER or self.stop_after > 0 or self.index_log is not None


def add_state_options(parser: ArgumentParser) -> None:
    """Add the options to `parser`."""
    add = parser.add_argument
    add(
        "--checkpoint-steps",
        type=int,
        default=0,
        metavar="K",
        help="save the whole state in OUTPUT/checkpoints after every Kth step; 0: never (default)",
    )
    add("--checkpoint-seconds", type=float, default=0, metavar="S", help="save the state every S seconds; 0: never (default)")
    add("--keep", type=int, default=0, metavar="N", help="saved states to keep, the newest; 0: all (default)")
    add(
        "--resume",
        default=NEVER,
        metavar="auto|never|PATH",
        help="resume from the newest state in OUTPUT/checkpoints, if any, or from a store or checkpoint (default never)",
    )
    add("--stop-after", type=int, default=0, metavar="STEPS", help="save the state and stop after STEPS steps of this run")
    add("--index-log", type=Path, metavar="FILE", help="append a line per batch: rank epoch step index index ...")


def take_state_options(values: dict[str, Any]) -> StateOptions:
    """Remove the options from the arguments `values` and return them. Raises UsageError for impossible ones."""
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
