"""The cadences that a workload's YAML asks for: of evaluations and of checkpoints."""

from benchmark.config import Checkpoint, Evaluation
from workloads.policies.cadence import Cadence


def evaluation_cadence(config: Evaluation) -> tuple[Cadence | None, Cadence | None]:
    """Return the cadence over epochs and that over steps; one of them is None."""
    if config.steps_between_evals < 1:
        return Cadence(config.eval_after_epoch, config.epochs_between_evals), None
    first = config.eval_after_step if config.eval_after_step > 0 else config.steps_between_evals
    return None, Cadence(first, config.steps_between_evals)


def checkpoint_cadence(config: Checkpoint, by_time: bool) -> tuple[Cadence | None, Cadence | None]:
    """Return the cadence over epochs and that over steps; both are None where time decides."""
    if by_time:
        return None, None
    if config.steps_between_checkpoints < 1:
        return Cadence(config.checkpoint_after_epoch, config.epochs_between_checkpoints), None
    return None, Cadence(config.steps_between_checkpoints, config.steps_between_checkpoints, config.checkpoint_after_step)
