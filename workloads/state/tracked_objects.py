"""Tracks the objects of a PyTorch job whose states are saved in checkpoints."""

from typing import Any

import torch

from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.workloads.state.torch_state import TorchGenerators

State = dict[str, Any]
_GENERATORS = "generators"


class TrackedObjects:
    """Tracks objects, passed as keywords, that have `state_dict` and `load_state_dict`: models, optimizers, schedulers ...

    Objects without these methods are ignored with a note. The random generators of the process are tracked too, unless an object
    is named `generators`. Raises ValueError if no object can be tracked.
    """

    def __init__(self, **objects: Any) -> None:
        self.tracked: dict[str, Any] = {}
        for name, each in objects.items():
            if hasattr(each, "state_dict") and hasattr(each, "load_state_dict"):
                self.tracked[name] = each
            else:
                note(f"checkpoints leave {name} out: a {type(each).__name__} has no state_dict")
        if not self.tracked:
            raise ValueError("nothing to checkpoint: give objects that have state_dict and load_state_dict, as model=model")

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the tracked optimizers."""
        return [each for each in self.tracked.values() if isinstance(each, torch.optim.Optimizer)]

    def state(self) -> State:
        """Return the state of each object by name. Tensors are not copied."""
        return {name: each.state_dict() for name, each in self.tracked.items()}

    def updated(self) -> set[int]:
        """Return the addresses of the tensors that only an optimizer's step changes: parameters and the optimizers' states."""
        found = set()
        for optimizer in self.optimizers:
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            held += [value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)]
            local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in held]  # this rank's shard
            found |= {tensor.data_ptr() for tensor in local if tensor.numel()}
        return found

    def generators(self) -> State:
        """Return the states of this process's random generators; {} if an object named `generators` is tracked."""
        return {} if _GENERATORS in self.tracked else TorchGenerators().state_dict()

    def load(self, objects: State, generators: State | None) -> None:
        """Restore the objects and generators. Raises IotwinError if a tracked object is missing in `objects` or does not fit."""
        if missing := [name for name in self.tracked if name not in objects]:
            raise IotwinError(f"the checkpoint has no {missing[0]}; it has {', '.join(objects) or 'nothing'}")
        for name, each in self.tracked.items():
            try:
                each.load_state_dict(objects[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise IotwinError(f"the checkpoint's {name} does not fit this job's: {str(error).splitlines()[0]}") from None
        if generators:
            TorchGenerators().load_state_dict(generators)
