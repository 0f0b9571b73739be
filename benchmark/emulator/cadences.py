"""The cadences that a workload's YAML asks for: of evaluations and of checkpoints."""

from benchmark.config import Checkpoint, Evaluation
from workloads.policies.cadence import Cadence, Policy


def evaluation_cadence(config: Evaluation) -> tuple[Cadence | None, Cadence | None]:
    """Return the cadence over epochs and that over steps; one of them is None."""
    if config.steps_between_evals < 1:
        return Cadence(config.eval_after_epoch, config.epochs_between_evals), None
    first = config.eval_after_step if config.eval_after_step > 0 else config.steps_between_evals
    return None, Cadence(first, config.steps_between_evals)


def checkpoint_policy(config: Checkpoint, by_time: bool) -> Policy:
    """Return what decides on every rank, over epochs or steps; where time decides (`by_time`), it does so when it is asked."""
    if by_time:
        return Policy()
    if config.steps_between_checkpoints < 1:
        return Policy(epochs=Cadence(config.checkpoint_after_epoch, config.epochs_between_checkpoints))
    steps = config.steps_between_checkpoints
    return Policy(steps=Cadence(steps, steps, config.checkpoint_after_step))
