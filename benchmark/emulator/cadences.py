"""The cadences that a workload's YAML asks for: of evaluations and of checkpoints."""

from benchmark.config import Config, Evaluation
from workloads.policies.cadence import Cadence, Policy


def evaluation_cadence(config: Evaluation) -> tuple[Cadence | None, Cadence | None]:
    """Return the cadence over epochs and that over steps; one of them is None."""
    if config.steps_between_evals < 1:
        return Cadence(config.eval_after_epoch, config.epochs_between_evals), None
    first = config.eval_after_step if config.eval_after_step > 0 else config.steps_between_evals
    return None, Cadence(first, config.steps_between_evals)


def checkpoint_policy(config: Config) -> Policy:
    """Return what decides on every rank, over epochs or steps; what is due by time or by a policy is asked of it."""
    section, twin = config.checkpoint, config.twin.checkpoint
    if twin.seconds_between is not None:
        return Policy()
    also = section.checkpoint_after_step
    if section.steps_between_checkpoints < 1 or twin.policy is not None:
        epochs = Cadence(section.checkpoint_after_epoch, section.epochs_between_checkpoints, twin.also_after_epoch or -1)
        return Policy(epochs=epochs, listed=[also] if also > 0 else [])
    if twin.after_steps is not None:
        return Policy(listed=[*twin.after_steps, *([also] if also > 0 else [])])
    first = twin.first_after_step or section.steps_between_checkpoints
    return Policy(steps=Cadence(first, section.steps_between_checkpoints, also))
