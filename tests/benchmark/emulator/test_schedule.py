"""After which epochs and steps a workload's YAML asks for evaluations and checkpoints."""

import pytest

from iotwin.workload_yaml import Config, Evaluation
from iotwin.workloads.policies.cadence import LoopPosition, checkpoint_policy, evaluation_cadence


def due_steps(config: Config, steps: int) -> list[int]:
    policy = checkpoint_policy(config.checkpoint, config.twin.checkpoint)
    return [step for step in range(1, steps + 1) if policy.due(LoopPosition(1, step, False), 0.0)]


def due_epochs(config: Config, epochs: int) -> list[int]:
    policy = checkpoint_policy(config.checkpoint, config.twin.checkpoint)
    return [epoch for epoch in range(1, epochs + 1) if policy.due(LoopPosition(epoch, epoch * 10, True), 0.0)]


@pytest.mark.parametrize(
    ("section", "by_epoch", "by_step"),
    [
        ({"eval_after_epoch": 2, "epochs_between_evals": 3}, [2, 5, 8], None),
        ({"steps_between_evals": 0, "epochs_between_evals": 4}, [1, 5], None),
        ({"steps_between_evals": 1}, None, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"steps_between_evals": 3}, None, [3, 6]),
        ({"steps_between_evals": 3, "eval_after_step": 0}, None, [3, 6]),
        ({"steps_between_evals": 3, "eval_after_step": 1}, None, [1, 4, 7]),
    ],
)
def test_evaluations(section, by_epoch, by_step):
    epochs, steps = evaluation_cadence(Evaluation(**section))
    for cadence, expected in ((epochs, by_epoch), (steps, by_step)):
        assert (cadence is None) == (expected is None)
        assert cadence is None or [number for number in range(1, 9) if cadence.due(number)] == expected


def test_checkpoints_by_steps_and_by_epochs():
    config = Config()
    config.checkpoint.steps_between_checkpoints = 1
    assert due_steps(config, 3) == [1, 2, 3] and due_epochs(config, 0) == []
    config.checkpoint.steps_between_checkpoints, config.checkpoint.checkpoint_after_step = 3, 4
    assert due_steps(config, 7) == [3, 4, 6]
    config.twin.checkpoint.after = [1, 7]
    assert due_steps(config, 8) == [1, 4, 7] and due_epochs(config, 6) == []
    config = Config()
    config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints = 2, 2
    assert due_epochs(config, 6) == [2, 4, 6] and due_steps(config, 40) == []
    config.checkpoint.checkpoint_after_step, config.twin.checkpoint.after = 1, [3, 5]
    assert due_steps(config, 3) == [1] and due_epochs(config, 6) == [3, 5]
    config.twin.checkpoint.seconds_between = 60.0
    assert due_steps(config, 3) == [] and due_epochs(config, 6) == []
