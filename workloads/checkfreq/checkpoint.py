"""What a checkpoint is of: the objects of a job that have a state."""

from typing import Any

import torch

from common.errors import IotwinError
from common.progress import note
from workloads.checkfreq.snapshot import Snapshot
from workloads.state.stateful import Generators, unflatten

State = dict[str, Any]
_GENERATORS = "generators"


class CFCheckpoint:
    """Tracks every keyword's object that has `state_dict` and `load_state_dict`, under that name and in that order.

    Models, optimizers, schedulers, scalers, samplers or a job's own. The random generators of the process are tracked too,
    unless an object of the name `generators` takes their place. ValueError when nothing is left to track.
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
        self.own_generators = _GENERATORS not in self.tracked
        self._latest: Snapshot | None = None

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the tracked optimizers."""
        return [each for each in self.tracked.values() if isinstance(each, torch.optim.Optimizer)]

    def state(self) -> State:
        """Return the state of each object by name, not copied."""
        return {name: each.state_dict() for name, each in self.tracked.items()}

    def updated(self) -> set[int]:
        """Return the addresses of tensors that nothing but an optimizer's step changes: parameters and optimizers' state."""
        found = set()
        for optimizer in self.optimizers:
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            held += [value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)]
            own = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in held]  # of sharded ones the part
            found |= {tensor.data_ptr() for tensor in own if tensor.numel()}
        return found

    def generators(self) -> State:
        """Return the states of this process's random generators."""
        return Generators().state_dict() if self.own_generators else {}

    @property
    def latest_snapshot(self) -> State:
        """Return the newest snapshot by name, with what the job added to it; it lives until the next one is taken."""
        if self._latest is None:
            return {}
        self._latest.copied.wait()
        state = unflatten(self._latest.values, {tensor.name: tensor for tensor in self._latest.tensors})
        return {**state["objects"], **(state["additional"] or {})}

    def taken(self, snapshot: Snapshot) -> None:
        """Take note of the newest snapshot."""
        self._latest = snapshot

    def load(self, objects: State, generators: State | None) -> None:
        """Bring the objects and the generators to what was saved; IotwinError where one is missing or is not like it."""
        if missing := [name for name in self.tracked if name not in objects]:
            raise IotwinError(f"the checkpoint has no {missing[0]}; it has {', '.join(objects) or 'nothing'}")
        for name, each in self.tracked.items():
            try:
                each.load_state_dict(objects[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise IotwinError(f"the checkpoint's {name} does not fit this job's: {str(error).splitlines()[0]}") from None
        if generators:
            Generators().load_state_dict(generators)
