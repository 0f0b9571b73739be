"""The class of the results of `build`: a model, its inputs and its loss."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn


class Built(NamedTuple):
    """A module, a function `make_inputs(batch_size)` of random inputs, and a `loss(module, *inputs)` that returns a scalar."""

    module: nn.Module
    make_inputs: Callable[[int], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
