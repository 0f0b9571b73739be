"""Versions of a stage's weights. Both passes of a minibatch use the same version, while updates already make newer versions.

A version is a set of leaf tensors. An update makes the next version out of place, or in place if no minibatch uses the newest
version any more. A version is freed when the last minibatch that uses it has been computed, so that no weights are ever copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


@dataclass
class SgdVersions:
    """Makes the next version of a weight by stochastic gradient descent; equal to torch.optim.SGD bit for bit.

    `state`: by name of the weight, the momentum of the newest version.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    state: dict[str, Tensor] = field(default_factory=dict)

    def next_value(self, name: str, weight: Tensor, gradient: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the updated weight, written to `out`, which may be `weight`; None: a new tensor."""
        if self.weight_decay:
            gradient = gradient.add(weight, alpha=self.weight_decay)
        if self.momentum:
            velocity = self.state.get(name)
            self.state[name] = gradient.clone() if velocity is None else velocity.mul_(self.momentum).add_(gradient)
            gradient = self.state[name]
        return torch.add(weight, gradient, alpha=-self.lr, out=out)


class WeightVersions:
    """The versions of a module's parameters. Version v is the result of v updates.

    The module's own tensors become version 0. The module keeps their shapes only; call it by torch.func.functional_call.
    """

    def __init__(self, module: nn.Module, optimizer: SgdVersions) -> None:
        self._optimizer = optimizer
        self._versions: dict[int, Weights] = {0: {name: p.detach().requires_grad_() for name, p in module.named_parameters()}}
        _forget_parameters(module)
        self.newest = 0

    def use(self, version: int) -> Weights:
        """Return the weights of `version` for a forward pass. Forget all older versions, since no later minibatch uses them."""
        for older in [number for number in self._versions if number < version]:
            del self._versions[older]
        return self._versions[version]

    def update(self, gradients: Sequence[Tensor], in_place: bool = False) -> None:
        """Make the next version from the newest one. `gradients` are in the order of the module's parameters.

        `in_place`: the next version overwrites the newest one, which no minibatch may use any more.
        """
        weights = self._versions[self.newest]
        with torch.no_grad():
            values = {
                name: self._optimizer.next_value(name, weight, gradient, weight if in_place else None)
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
        if in_place:
            del self._versions[self.newest]
        self.newest += 1
        self._versions[self.newest] = {name: value.requires_grad_() for name, value in values.items()}

    def restore(self, version: int, values: Weights) -> None:
        """Replace all versions by the one with the number `version` and the given values."""
        self._versions = {version: {name: values[name].detach().requires_grad_() for name in self.latest()}}
        self.newest = version

    def latest(self) -> Weights:
        """Return the newest version."""
        return self._versions[self.newest]


def _forget_parameters(module: nn.Module) -> None:
    """Replace a module's parameters by ones without memory, so that version 0 is freed as every other version is.

    Layers that shared a parameter then share its replacement, so that functional_call still treats it as one parameter.
    """
    empty: dict[nn.Parameter, nn.Parameter] = {}
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if parameter not in empty:
                empty[parameter] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            setattr(owner, name, empty[parameter])
