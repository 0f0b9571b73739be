"""AdamW, with a learning rate that rises over the first tenth of the steps and then falls to zero."""

from collections.abc import Sequence

import tensorflow as tf

_BETA_1, _BETA_2, _EPSILON, _DECAY = 0.9, 0.999, 1e-6, 0.01  # as published (Devlin et al., 2018)
_LARGEST_NORM = 1.0


class Adam(tf.Module):
    """AdamW (Loshchilov and Hutter, 2019). It stores two moments per weight, so a checkpoint is three times the model's size."""

    def __init__(self, weights: Sequence[tf.Variable], learning_rate: float, steps: int) -> None:
        super().__init__()
        self._weights, self._rate, self._steps = list(weights), learning_rate, steps
        self.step = tf.Variable(0, dtype=tf.int64)
        self.first = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        self.second = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update the weights by one step, with one gradient per weight. `gradients` are scaled to a joint norm of at most 1."""
        gradients, _ = tf.clip_by_global_norm([tf.convert_to_tensor(each) for each in gradients], _LARGEST_NORM)
        step = tf.cast(self.step.assign_add(1), tf.float32)
        warm_up = max(1, self._steps // 10)
        rate = self._rate * tf.minimum(step / warm_up, (self._steps + 1 - step) / (self._steps + 1 - warm_up))
        rate *= tf.sqrt(1 - _BETA_2**step) / (1 - _BETA_1**step)
        for weight, gradient, first, second in zip(self._weights, gradients, self.first, self.second, strict=True):
            first.assign(_BETA_1 * first + (1 - _BETA_1) * gradient)
            second.assign(_BETA_2 * second + (1 - _BETA_2) * tf.square(gradient))
            decay = _DECAY * weight if len(weight.shape) > 1 else 0.0
            weight.assign_sub(rate * (first / (tf.sqrt(second) + _EPSILON) + decay))
