"""State that is sharded over ranks (DTensor): each rank keeps its own parts, and any number of ranks puts them together again.

In a checkpoint a sharded tensor is a dict: the rank's part, where it begins in the whole, and how the whole was cut. Rank 0's
state holds all that is not sharded, too; the other ranks' have None in its place.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement

from common.errors import IotwinError
from workloads.common.torch_ranks import never_destroy

_PART = "$part"
_Path = tuple[Any, ...]


def sharding_of(state: Any) -> "Sharding | None":
    """Return how the DTensors in a state are kept, None without any. Every rank must call it."""
    meshes = {leaf.device_mesh for _, leaf in _leaves(state) if isinstance(leaf, DTensor)}
    if len(meshes) > 1:
        raise IotwinError("state that is sharded over more than one mesh cannot be kept")
    return Sharding(meshes.pop()) if meshes else None


class Sharding:
    """The ranks of `mesh`, which keep and restore sharded state together; their writers agree in a group of their own.

    (Messages of two threads in one group would be taken for one another.)
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.rank: int = distributed.get_rank()
        self.world_size: int = distributed.get_world_size()
        self._mesh, self._group = mesh, distributed.new_group(backend="gloo")
        never_destroy(self._group)

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks, when all have called it."""
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total, group=self._group)
        return list(total.tolist())

    def parts(self, state: Any) -> Any:
        """Return the state as this rank keeps it: of DTensors its parts, and all else on rank 0 alone. Nothing is copied."""
        if isinstance(state, DTensor):
            return _part(state)
        if isinstance(state, dict):
            return {key: self.parts(each) for key, each in state.items()}
        if isinstance(state, (list, tuple)):
            return type(state)(self.parts(each) for each in state)
        return None if self.rank else state

    def joined(self, states: Iterator[Any]) -> Any:
        """Return rank 0's state, the first of `states`, with DTensors in place of its parts, cut over the mesh as they were.

        `states` are those of all ranks that saved, of which one at a time is held. IotwinError where the mesh is of another
        number of dimensions.
        """
        first = next(states)
        made = {path: self._empty(part) for path, part in _leaves(first) if _is_part(part)}
        for state in itertools.chain([first], states):
            for path, part in _leaves(state):
                if path in made:
                    _paste(made[path], part)
        return _replaced(first, (), made)

    def _empty(self, part: dict[str, Any]) -> DTensor:
        if self._mesh.ndim != len(part["cut"]):
            raise IotwinError(f"the checkpoint's mesh is of {len(part['cut'])} dimensions, this job's of {self._mesh.ndim}")
        placements = [Replicate() if dimension is None else Shard(dimension) for dimension in part["cut"]]
        shape, _ = compute_local_shape_and_global_offset(part["shape"], self._mesh, placements)
        whole = torch.empty(part["shape"], device="meta")
        local = torch.empty(shape, dtype=part[_PART].dtype, device=self._mesh.device_type)
        return DTensor.from_local(local, self._mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def _part(tensor: DTensor) -> dict[str, Any]:
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    cut = [_encoded(placement) for placement in tensor.placements]
    return {_PART: tensor.to_local().detach(), "begin": list(offset), "shape": list(tensor.shape), "cut": cut}


def _encoded(placement: Placement) -> int | None:
    """Return the dimension that is cut along one of the mesh, None where each rank has all of it."""
    if isinstance(placement, Partial):
        raise IotwinError("a tensor that is a sum over ranks cannot be kept; redistribute it first")
    return placement.dim if isinstance(placement, Shard) else None


def _paste(target: DTensor, part: dict[str, Any]) -> None:
    """Copy what `part` and this rank's part of the target have in common."""
    local: torch.Tensor = target.to_local()
    _, begin = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    source = part[_PART]
    if not local.numel() or not source.numel():
        return
    to, of = [], []
    for own, own_size, its, its_size in zip(begin, local.shape, part["begin"], source.shape, strict=True):
        low, high = max(own, its), min(own + own_size, its + its_size)
        if low >= high:
            return
        to.append(slice(low - own, high - own))
        of.append(slice(low - its, high - its))
    local[tuple(to)] = source[tuple(of)].to(local.device)


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and _PART in value


def _leaves(state: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield what is in nested dicts, lists and tuples by its path; parts are whole."""
    pairs = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, (list, tuple)) else None
    if pairs is None or _is_part(state):
        yield path, state
        return
    for key, each in pairs:
        yield from _leaves(each, (*path, key))


def _replaced(state: Any, path: _Path, made: dict[_Path, DTensor]) -> Any:
    if path in made:
        return made[path]
    if isinstance(state, dict):
        return {key: _replaced(each, (*path, key), made) for key, each in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_replaced(each, (*path, index), made) for index, each in enumerate(state))
    return state
