"""What of a script's state a checkpoint must hold: found by walking from the variables of its functions and modules.

Each part has a path such as `main().trainer.model`, by which a later process that has run the script up to the same line finds
its own object. Objects that a provider knows are saved by it. Tensors, arrays and plain values are saved if they have changed
since the loop began, since the script makes the others again.
"""

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from iotwin.workloads.detrain.detectors.script_frames import is_script
from iotwin.workloads.detrain.loaders import TrackedIterator
from iotwin.workloads.detrain.saving.plain_values import is_plain
from iotwin.workloads.detrain.saving.providers import provider_of

OBJECT, ITERATOR, TENSOR, ARRAY, PLAIN, LOST = "object", "iterator", "tensor", "array", "plain", "lost"
_MOST_DEPTH = 8  # attributes and elements between a variable and a part of the state
_MOST_PARTS = 100_000  # elements of a container with other than plain values; a longer one is data
_OPAQUE = (types.ModuleType, types.BuiltinFunctionType, type, torch.device, torch.dtype)


class Part(NamedTuple):
    """A part of the state. `put` replaces the value where it is held, for values that are not changed in place."""

    path: str
    kind: str
    value: Any
    put: Callable[[Any], None]


def frames_of(frame: types.FrameType | None) -> list[types.FrameType]:
    """Return the frames of the user's functions from `frame` outwards."""
    found = []
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


class Walk:
    """Walks over the script's state as it is now. `assign` is called with (function, name, value) to put a variable."""

    def __init__(self, frames: list[types.FrameType], assign: Callable[[str, str, Any], None]) -> None:
        self._frames, self._assign = frames, assign
        self._seen: set[int] = set()
        self._held: list[Any] = []  # so that no object is freed, and its id used again

    def parts(self) -> Iterator[Part]:
        """Yield all parts, each object once, with the shortest path first."""
        queue: deque[tuple[Part, int]] = deque((each, 0) for each in self._variables())
        while queue:
            part, depth = queue.popleft()
            if isinstance(part.value, _OPAQUE) and not _is_users_class(part.value):
                continue
            kind = _kind(part.value)
            if kind == PLAIN and not _has_identity(part.value):
                yield part._replace(kind=kind)
                continue
            if id(part.value) in self._seen:
                continue
            self._seen.add(id(part.value))
            self._held.append(part.value)
            if isinstance(part.value, torch.nn.Module):
                self._seen.update(map(id, part.value.modules()))
            if kind is not None:
                yield part._replace(kind=kind)
            if depth < _MOST_DEPTH:
                queue.extend((each, depth + 1) for each in _inside(part, kind))

    def _variables(self) -> Iterator[Part]:
        for frame in self._frames:
            if frame.f_locals is not frame.f_globals:
                name = frame.f_code.co_name
                for variable, value in frame.f_locals.items():
                    yield Part(f"{name}().{variable}", "", value, _assigning(self._assign, name, variable))
        for module_name, module in list(sys.modules.items()):
            if is_script(getattr(module, "__file__", None) or "") and module_name != "__mp_main__":
                label = "" if module_name == "__main__" else f"{module_name}:"
                for variable, value in list(vars(module).items()):
                    if not variable.startswith("__"):
                        yield Part(f"{label}{variable}", "", value, _item_setter(vars(module), variable))


def _kind(value: Any) -> str | None:
    """Return the kind of part that a value is, None if only what is inside it counts."""
    if isinstance(value, TrackedIterator):
        return ITERATOR
    if isinstance(value, torch.Tensor):
        return TENSOR
    if isinstance(value, np.ndarray):
        return ARRAY if value.dtype != object else None
    if is_plain(value):
        return PLAIN
    if provider_of(value) is not None:
        return OBJECT
    return LOST if isinstance(value, Iterator) else None


def _has_identity(value: Any) -> bool:
    return isinstance(value, list | dict | set | deque | bytearray)


def _inside(part: Part, kind: str | None) -> Iterator[Part]:
    """Yield what is inside a value that may change while the script trains."""
    if kind in (None, OBJECT):
        for known, inside in _INSIDE:
            if isinstance(part.value, known):
                yield from inside(part.path, part.value)
                return
        if _is_users_class(part.value if isinstance(part.value, type) else type(part.value)):
            yield from _attributes(part.path, part.value)


def _of_module(path: str, value: torch.nn.Module) -> Iterator[Part]:
    for name, module in value.named_modules():
        if _is_users_class(type(module)):
            below = f"{path}.{name}" if name else path
            yield from _attributes(below, module, skipped=("_parameters", "_buffers", "_modules"))


def _of_dict(path: str, value: dict[Any, Any]) -> Iterator[Part]:
    if len(value) <= _MOST_PARTS:
        yield from (Part(f"{path}[{key!r}]", "", each, _item_setter(value, key)) for key, each in list(value.items()))


def _of_sequence(path: str, value: Any) -> Iterator[Part]:
    if len(value) <= _MOST_PARTS:
        put = _no_setter if isinstance(value, tuple) else _item_setter
        yield from (Part(f"{path}[{index}]", "", each, put(value, index)) for index, each in enumerate(value))


def _of_function(path: str, value: types.FunctionType) -> Iterator[Part]:
    if is_script(value.__code__.co_filename):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from (Part(f"{path}.{name}", "", _content(cell), _attribute_setter(cell, "cell_contents")) for name, cell in cells)


def _of_method(path: str, value: types.MethodType) -> Iterator[Part]:
    yield Part(f"{path}.__self__", "", value.__self__, _no_setter(value, ""))


def _of_partial(path: str, value: "functools.partial[Any]") -> Iterator[Part]:
    yield Part(f"{path}.args", "", [value.func, *value.args, *value.keywords.values()], _no_setter(value, ""))


def _of_loader(path: str, value: "DataLoader[Any]") -> Iterator[Part]:
    for name in ("dataset", "sampler", "batch_sampler", "generator"):
        yield Part(f"{path}.{name}", "", getattr(value, name), _no_setter(value, name))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _attributes(path: str, value: Any, skipped: tuple[str, ...] = ()) -> Iterator[Part]:
    """Yield the attributes of an instance, or the variables of a class."""
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ()) if hasattr(value, name)]
    for name in [*getattr(value, "__dict__", {}), *slots]:
        if name not in skipped and not (name.startswith("__") and name.endswith("__")):
            yield Part(f"{path}.{name}", "", getattr(value, name, None), _attribute_setter(value, name))


_INSIDE: tuple[tuple[Any, Callable[[str, Any], Iterator[Part]]], ...] = (
    (torch.nn.Module, _of_module), (dict, _of_dict), (list | tuple | deque, _of_sequence), (types.FunctionType, _of_function),
    (types.MethodType, _of_method), (functools.partial, _of_partial), (DataLoader, _of_loader), (Sampler, _attributes),
)  # fmt: skip


def _is_users_class(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    if kind is types.SimpleNamespace or kind.__module__ == "argparse":
        return True
    module = sys.modules.get(kind.__module__)
    return is_script(getattr(module, "__file__", None) or "")


def _assigning(assign: Callable[[str, str, Any], None], function: str, name: str) -> Callable[[Any], None]:
    return lambda value: assign(function, name, value)


def _item_setter(holder: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: holder.__setitem__(key, value)


def _attribute_setter(holder: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(holder, name, value)


def _no_setter(holder: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: None
