"""Finds and saves the random generators that a data loader draws from: global ones, and its sampler's and data set's."""

import json
import random
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from iotwin.common.errors import IotwinError

State = dict[str, Any]
_MOST_OBJECTS = 2000  # most objects that are searched for generators
_LONGEST = 64  # longer lists and dicts are not searched, since they hold data
_DRAWS = ("generator", "batch_sampler", "sampler", "dataset", "collate_fn")  # attributes of a loader that may draw random numbers
_PYTHON, _NUMPY = 625, 624  # number of 32-bit words in the state of either generator
# further words of a state: numpy's position, and whether numpy and Python hold a second normal number for the next draw
_FLAGS = 3
_FLOATS = 2  # the second normal numbers of Python and numpy
_KINDS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


class LoaderGenerators:
    """The global CPU generators of Python, numpy and torch, and all generators found in the attributes of `loader`.

    Attributes are searched breadth first, so every process that runs the same script finds the generators in the same order.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._own: list[Any] = []
        self.search()

    def search(self) -> None:
        """Search the loader's attributes again, since a sampler may make new generators in each epoch."""
        self._own = list(_found(self._loader))

    def state_dict(self) -> State:
        """Return copies of the generators' states."""
        return {"global": global_states(), "own": [_state_of(each) for each in self._own]}

    def load_state_dict(self, state: State) -> None:
        """Set the generators to saved states. Raises IotwinError if the loader has generators of other kinds."""
        names = [name for name, _ in map(_state_of, self._own)]
        if names != (saved := [name for name, _ in state["own"]]):
            raise IotwinError(
                f"the checkpoint's loader draws from {_listed(saved)}, this job's from {_listed(names)}; "
                "build the loader as it was built, its generators in the constructors"
            )
        set_global_states(state["global"])
        for each, (_, own) in zip(self._own, state["own"], strict=True):
            _set(each, own)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no separate generator"


def _found(loader: Any) -> Iterator[Any]:
    pending = [getattr(loader, name, None) for name in _DRAWS] if isinstance(loader, DataLoader) else [loader]
    seen: set[int] = set()
    while pending and len(seen) < _MOST_OBJECTS:
        each = pending.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, _KINDS):
            yield each
        else:
            pending += _inside(each)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value) if len(value) <= _LONGEST else []
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= _LONGEST else []
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        return [_content(cell) for cell in value.__closure__ or ()]
    if isinstance(value, (type, ModuleType, torch.Tensor)):
        return []
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _state_of(generator: Any) -> tuple[str, Any]:
    """Return (kind, state) of a generator. The state is None if the generator draws from the operating system."""
    state: Any
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
    elif isinstance(generator, random.SystemRandom):
        state = None
    elif isinstance(generator, random.Random):
        state = generator.getstate()
    elif isinstance(generator, np.random.RandomState):
        state = json.dumps(generator.get_state(legacy=False), default=np.ndarray.tolist)
    else:  # as text, since the state has integers of 128 bits, which a checkpoint cannot hold as numbers
        state = json.dumps(generator.bit_generator.state, default=np.ndarray.tolist)
    kind = type(getattr(generator, "bit_generator", generator))
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}", state


def _set(generator: Any, state: Any) -> None:
    if state is None:
        raise IotwinError("the loader draws from the operating system (SystemRandom), which draws nothing twice; use a seed")
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(json.loads(state))
    else:
        generator.bit_generator.state = json.loads(state)


def global_states() -> torch.Tensor:
    """Return the states of the global CPU generators of Python, numpy and torch as a fixed number of bytes."""
    _, words, gauss = random.getstate()
    state: Any = np.random.get_state(legacy=True)
    _, key, position, has_gauss, cached = state
    numbers = np.array([*words, position, has_gauss, gauss is not None], np.uint32)
    floats = np.array([gauss or 0.0, cached])
    return torch.from_numpy(
        np.concatenate([each.view(np.uint8) for each in (numbers, key, floats, torch.get_rng_state().numpy())])
    )


def set_global_states(states: torch.Tensor) -> None:
    """Set the global CPU generators to `states`, a result of `global_states`."""
    content = states.numpy().copy()
    words, rest = content[: 4 * (_PYTHON + _FLAGS + _NUMPY)].view(np.uint32), content[4 * (_PYTHON + _FLAGS + _NUMPY) :]
    floats = rest[: 8 * _FLOATS].copy().view(np.float64)
    position, has_gauss, python_gauss = (int(flag) for flag in words[_PYTHON : _PYTHON + _FLAGS])
    random.setstate((3, tuple(words[:_PYTHON].tolist()), float(floats[0]) if python_gauss else None))
    np.random.set_state(("MT19937", words[_PYTHON + _FLAGS :].copy(), position, has_gauss, float(floats[1])))
    torch.set_rng_state(torch.from_numpy(rest[8 * _FLOATS :].copy()))
