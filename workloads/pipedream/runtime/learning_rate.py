"""The learning rate of each update, by the policies of PipeDream's training program."""

from dataclasses import dataclass

_STEP_EPOCHS, _STEP_FACTOR = 30, 0.1
_POLYNOMIAL_POWER = 2.0
_EXPONENTIAL_FACTOR = 0.97
_WARM_UP_EPOCHS = 5


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of a stage. It begins with `base` times `share` and falls by `policy` over `epochs` epochs.

    * step: divided by 10 after every 30 epochs
    * polynomial: multiplied by (1 - epoch / epochs) squared
    * exponential_decay: multiplied by 0.97 to the power epoch / epochs

    `base` is the rate of stage 0. `share` is the stage's number of replicas divided by that of stage 0. With `warm_up`, the rate
    rises linearly over the updates of the first 5 epochs, in which the policy does not apply.
    """

    base: float
    share: float
    policy: str
    epochs: int
    warm_up: bool = False

    def at(self, epoch: int, update: int, updates: int) -> float:
        """Return the rate of the update with the index `update` among the `updates` of an epoch. Epochs count from 0."""
        rate = self.base * self.share
        if self.warm_up and epoch < _WARM_UP_EPOCHS:
            return rate * (1 + update + epoch * updates) / (_WARM_UP_EPOCHS * updates)
        if self.policy == "step":
            return float(rate * _STEP_FACTOR ** (epoch // _STEP_EPOCHS))
        if self.policy == "polynomial":
            return float(rate * (1 - epoch / self.epochs) ** _POLYNOMIAL_POWER)
        return float(rate * _EXPONENTIAL_FACTOR ** (epoch / self.epochs))
