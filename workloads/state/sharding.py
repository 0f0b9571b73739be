"""Saves state that is sharded over ranks (DTensor): each rank saves its own shards, and any number of ranks can restore them.

In a checkpoint, a sharded tensor is a dict of the rank's shard, its offset in the whole tensor, and the sharded dimensions. Rank
0 also saves everything that is not sharded. The other ranks save None instead.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from iotwin.common.errors import IotwinError
from iotwin.workloads.common.torch_ranks import never_destroy

_PART = "$part"
_Path = tuple[Any, ...]


def sharding_of(state: Any) -> "Sharding | None":
    """Return the sharding of a state's DTensors, None if it has none. Every rank must call it.

    Raises IotwinError if the DTensors belong to more than one mesh.
    """
    meshes = {leaf.device_mesh for _, leaf in _leaves(state) if isinstance(leaf, DTensor)}
    if len(meshes) > 1:
        raise IotwinError("a checkpoint cannot hold state that is sharded over more than one mesh; use one mesh")
    return Sharding(meshes.pop()) if meshes else None


class Sharding:
    """Saves and restores sharded state together with the other ranks of `mesh`.

    The writing threads of the ranks use a separate process group. In a shared group, their messages could be confused with
    those of the training threads.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.rank: int = distributed.get_rank()
        self.world_size: int = distributed.get_world_size()
        self._mesh, self._group = mesh, distributed.new_group(backend="gloo")
        never_destroy(self._group)

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks. Every rank must call it."""
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total, group=self._group)
        return list(total.tolist())

    def parts(self, state: Any) -> Any:
        """Return what this rank saves of `state`: its shards of DTensors and, on rank 0, everything else. Nothing is copied."""
        if isinstance(state, DTensor):
            return _part(state)
        if isinstance(state, dict):
            return {key: self.parts(each) for key, each in state.items()}
        if isinstance(state, (list, tuple)):
            return type(state)(self.parts(each) for each in state)
        return None if self.rank else state

    def joined(self, states: Iterator[Any]) -> Any:
        """Return the restored state: the state that rank 0 saved, with its shards replaced by DTensors over this mesh.

        `states` yields what each rank saved, rank 0 first; only one of them is in memory at a time. Tensors are sharded along the
        same dimensions as before. Raises IotwinError if this mesh has another number of dimensions.
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
            raise IotwinError(
                f"the checkpoint's mesh has {len(part['cut'])} dimensions, this job's {self._mesh.ndim}; use a mesh of as many"
            )
        placements = [Replicate() if dimension is None else Shard(dimension) for dimension in part["cut"]]
        shape, _ = _extent(part["shape"], self._mesh, placements)
        whole = torch.empty(part["shape"], device="meta")
        local = torch.empty(shape, dtype=part[_PART].dtype, device=self._mesh.device_type)
        return DTensor.from_local(local, self._mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def _part(tensor: DTensor) -> dict[str, Any]:
    cut = [_encoded(placement) for placement in tensor.placements]
    _, begin = _extent(tensor.shape, tensor.device_mesh, tensor.placements)
    return {_PART: tensor.to_local().detach(), "begin": begin, "shape": list(tensor.shape), "cut": cut}


def _extent(shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]) -> tuple[list[int], list[int]]:
    """Return (shape, offset in the whole tensor) of this rank's shard of a tensor that is divided as by torch.chunk."""
    sizes, begin = list(shape), [0] * len(shape)
    for dimension, placement in enumerate(placements):
        if isinstance(placement, Shard):
            size = sizes[placement.dim]
            longest = -(-size // mesh.size(dimension))
            first = min(size, mesh.get_local_rank(dimension) * longest)
            sizes[placement.dim], begin[placement.dim] = min(longest, size - first), begin[placement.dim] + first
    return sizes, begin


def _encoded(placement: Placement) -> int | None:
    """Return the dimension along which a placement shards a tensor, None if it replicates the tensor."""
    if isinstance(placement, Partial):
        raise IotwinError("a checkpoint cannot hold a tensor that is a sum over ranks; redistribute it first")
    if not isinstance(placement, (Shard, Replicate)):
        raise IotwinError(f"a checkpoint cannot hold the placement {placement}; redistribute the tensor to Shard or Replicate")
    return placement.dim if isinstance(placement, Shard) else None


def _paste(target: DTensor, part: dict[str, Any]) -> None:
    """Copy the values of the saved shard `part` into this rank's shard of `target`, where the two shards overlap."""
    local: torch.Tensor = target.to_local()
    _, begin = _extent(target.shape, target.device_mesh, target.placements)
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
    """Yield (path, value) for each value in nested dicts, lists and tuples. A saved shard counts as one value."""
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
