"""The result of `build`: a model, its inputs and its loss."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn


class Built(NamedTuple):
    """A module; `make_inputs(batch_size)` returns random inputs, and `loss(module, *inputs)` a scalar tensor."""

    module: nn.Module
    make_inputs: Callable[[int], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
