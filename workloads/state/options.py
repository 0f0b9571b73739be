"""The command line options of jobs that can stop and resume at any step."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.workloads.common.options import check_least, option

AUTO, NEVER = "auto", "never"


@dataclass(frozen=True)
class StateOptions:
    """When a job saves its state, where it resumes and when it stops."""

    checkpoint_steps: int = option(
        "save the whole state in OUTPUT/checkpoints after every Kth step; 0: never", 0, least=0, metavar="K"
    )
    checkpoint_seconds: float = option("save the state every S seconds; 0: never", 0.0, least=0, metavar="S")
    keep: int = option("saved states to keep, the newest; 0: all", 0, least=0, metavar="N")
    resume: str = option(
        "resume from the newest state in OUTPUT/checkpoints, if any, or from a store or checkpoint", NEVER,
        metavar="auto|never|PATH",
    )  # fmt: skip
    stop_after: int = option("save the state and stop after STEPS steps of this run; 0: do not stop", 0, least=0, metavar="STEPS")
    index_log: Path | None = option("append a line per batch: rank epoch step index index ...", None, type=Path, metavar="FILE")

    @property
    def keeps(self) -> bool:
        """True if the job writes checkpoints to a store."""
        return self.checkpoint_steps > 0 or self.checkpoint_seconds > 0

    @property
    def used(self) -> bool:
        """True if any of these options is given."""
        return self.keeps or self.resume != NEVER or self.stop_after > 0 or self.index_log is not None


def take_state_options(values: dict[str, Any]) -> StateOptions:
    """Remove the fields of StateOptions from `values` and return them. Raises UsageError if a value is impossible."""
    options = StateOptions(**{each.name: values.pop(each.name) for each in fields(StateOptions)})
    check_least(options)
    if options.keeps and values["sleep"] is not None:
        raise UsageError("--variant sleep computes nothing, so there is no state for --checkpoint-steps or --checkpoint-seconds")
    return options
