"""Finds the state of a script that a checkpoint must hold, by a walk from the variables of its functions and modules.

Each part of the state has a path such as `main().trainer.model`. By this path, a later process that has run the script up to the
same line finds its own object. If a provider knows an object, the provider saves it. Tensors, arrays, plain values, containers
and objects of the script's classes are saved only if they changed after the loop began: the script makes all others again.
"""

import ctypes
import functools
import io
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from iotwin.workloads.detrain.detectors.script_frames import is_script
from iotwin.workloads.detrain.loaders import TrackedIterator
from iotwin.workloads.detrain.saving.plain_values import has_containers, is_plain
from iotwin.workloads.detrain.saving.providers import provider_of
from iotwin.workloads.detrain.saving.tensorflow_states import held_by_model, is_callback, is_keras

OBJECT, ITERATOR, TENSOR, ARRAY, PLAIN, LOST = "object", "iterator", "tensor", "array", "plain", "lost"
HOLDER = "holder"  # a container or an object with parts inside
SAVED_WITH = "saved with"  # a module's submodule, parameter or buffer, or an optimizer's group, which is saved with its object
SAME = "same"  # an object that is already a part under another path
_MOST_DEPTH = 8  # attributes and elements between a variable and a part of the state
_MOST_PARTS = 100_000  # most elements of a container whose values are not all plain; a longer one is taken for data
_OPAQUE = (types.ModuleType, types.BuiltinFunctionType, type, torch.device, torch.dtype)


class Part(NamedTuple):
    """A part of the state. `put` replaces a value that cannot be changed in place, in the object or variable that holds it.

    `holder`: path of the object that holds it, "" for a variable. `same`: for a part of kind SAME, its other path.
    """

    path: str
    kind: str
    value: Any
    put: Callable[[Any], None]
    holder: str = ""
    same: str = ""


def frames_of(frame: types.FrameType | None) -> list[types.FrameType]:
    """Return the frames of the user's functions from `frame` outwards."""
    found = []
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def scripts_modules() -> dict[str, types.ModuleType]:
    """Return the script's modules that have been imported, by name."""
    files = ((name, each, getattr(each, "__dict__", {}).get("__file__")) for name, each in list(sys.modules.items()))
    return {name: each for name, each, file in files if file and is_script(file) and name != "__mp_main__"}


def put_variables(frame: types.FrameType, values: Mapping[str, Any]) -> None:
    """Set variables of a running function."""
    for name, value in values.items():
        frame.f_locals[name] = value
        if sys.version_info < (3, 13):  # in later versions, frame.f_locals writes to the variables
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


class Walk:
    """Finds the parts of the script's present state. `assign(function, name, value)` sets a variable.

    `paths`: by id, the paths of objects in an earlier walk. An object keeps its path if it can still be reached by this path.
    `without`: variables of the innermost frame to skip. `modules`: the modules to search, by name; by default all of the script.
    """

    def __init__(
        self,
        frames: list[types.FrameType],
        assign: Callable[[str, str, Any], None],
        paths: Mapping[int, Sequence[str]] | None = None,
        without: frozenset[str] = frozenset(),
        modules: Mapping[str, types.ModuleType] | None = None,
    ) -> None:
        self._frames, self._assign, self._earlier, self._without = frames, assign, paths or {}, without
        self._modules = modules
        self.paths: dict[int, str] = {}  # by identity of the objects that have been found
        self._held: list[Any] = []  # keeps the objects alive, so that no id is used again

    def parts(self) -> Iterator[Part]:
        """Yield each object once, under its shortest path, and again as a part of kind SAME for each other path."""
        queue: deque[tuple[Part, int]] = deque((each, 0) for each in self._variables())
        renamed: deque[tuple[Part, int]] = deque()
        while queue or renamed:
            is_renamed = not queue
            part, depth = (renamed if is_renamed else queue).popleft()
            if isinstance(part.value, _OPAQUE) and not is_users_class(part.value):
                continue
            kind = _kind(part.value)
            if kind == PLAIN and depth < _MOST_DEPTH and has_containers(part.value):
                kind = HOLDER
            if kind == PLAIN and not has_identity(part.value):
                yield part._replace(kind=kind)
            elif (path := self.paths.get(id(part.value))) is not None:
                yield part._replace(kind=SAME, same=path)
            elif not is_renamed and (earlier := self._earlier.get(id(part.value), [part.path]))[0] != part.path:
                (renamed.appendleft if part.path in earlier else renamed.append)((part, depth))
            else:
                yield from self._found(part, kind)
                if depth < _MOST_DEPTH:
                    queue.extend((each._replace(holder=each.holder or part.path), depth + 1) for each in _inside(part, kind))

    def _found(self, part: Part, kind: str | None) -> Iterator[Part]:
        self.paths[id(part.value)] = part.path
        self._held.append(part.value)
        if kind is not None:
            yield part._replace(kind=kind)
        if isinstance(part.value, torch.nn.Module | torch.optim.Optimizer):
            for name, each in _saved_with(part.value):
                if self.paths.setdefault(id(each), f"{part.path}.{name}") == f"{part.path}.{name}":
                    yield Part(f"{part.path}.{name}", SAVED_WITH, each, _no_setter(each, ""), part.path)

    def _variables(self) -> Iterator[Part]:
        for frame in self._frames:
            if frame.f_locals is not frame.f_globals:
                name = frame.f_code.co_name
                for variable, value in self._of(frame.f_locals, frame):
                    yield Part(f"{name}().{variable}", "", value, _assigning(self._assign, name, variable))
        modules = scripts_modules() if self._modules is None else self._modules
        for module_name, module in modules.items():
            label = "" if module_name == "__main__" else f"{module_name}:"
            top = self._frames[0] if self._frames and self._frames[0].f_locals is vars(module) else None
            for variable, value in self._of(vars(module), top):
                yield Part(f"{label}{variable}", "", value, _item_setter(vars(module), variable))

    def _of(self, variables: dict[str, Any], frame: types.FrameType | None) -> list[tuple[str, Any]]:
        without = self._without if frame is not None and frame is self._frames[0] else ()
        return [(name, value) for name, value in variables.items() if not name.startswith("__") and name not in without]


def _kind(value: Any) -> str | None:
    """Return a value's kind of part; None if the value itself is no part of the state, although its content may have parts."""
    if isinstance(value, TrackedIterator):
        return ITERATOR
    if isinstance(value, torch.Tensor):
        return TENSOR
    if isinstance(value, np.ndarray):
        return ARRAY if value.dtype != object else HOLDER
    if is_plain(value):
        return PLAIN
    if provider_of(value) is not None:
        return OBJECT
    if isinstance(value, io.IOBase):
        return None if value.closed or value.writable() else LOST
    return LOST if isinstance(value, Iterator) and not is_users_class(type(value)) else HOLDER


def has_identity(value: Any) -> bool:
    """Return whether a plain value is mutable, so that all references to it must be to the same object."""
    return isinstance(value, list | dict | set | deque | bytearray)


def _inside(part: Part, kind: str | None) -> Iterator[Part]:
    """Yield the parts inside of a value that may change while the script trains."""
    if kind in (HOLDER, OBJECT):
        for known, inside in _INSIDE:
            if isinstance(part.value, known):
                yield from inside(part.path, part.value)
                return
        held = held_by_model(part.value)
        yield from (Part(f"{part.path}.{name}", "", each, _no_setter(part.value, name)) for name, each in held.items())
        if is_callback(part.value) or is_users_class(part.value if isinstance(part.value, type) else type(part.value)):
            # In objects of classes derived from Keras's, names that begin with _ belong to Keras.
            private = (
                ()
                if not is_keras(part.value)
                else tuple(name for name in vars(part.value) if name.startswith("_") or name in held)
            )
            yield from _attributes(part.path, part.value, skipped=private)


def _saved_with(value: torch.nn.Module | torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.optim.Optimizer):
        yield "param_groups", value.param_groups
        yield from ((f"param_groups[{index}]", group) for index, group in enumerate(value.param_groups))
        return
    for found in (value.named_modules(), value.named_parameters(), value.named_buffers()):
        yield from ((name, each) for name, each in found if name)


def _of_module(path: str, value: torch.nn.Module) -> Iterator[Part]:
    for name, module in value.named_modules():
        if is_users_class(type(module)):
            below = f"{path}.{name}" if name else path
            inside = _attributes(below, module, skipped=("_parameters", "_buffers", "_modules"))
            yield from (each._replace(holder=below) for each in inside)


def _of_dict(path: str, value: dict[Any, Any]) -> Iterator[Part]:
    if len(value) <= _MOST_PARTS:
        yield from (Part(f"{path}[{key!r}]", "", each, _item_setter(value, key)) for key, each in list(value.items()))


def _of_sequence(path: str, value: Any) -> Iterator[Part]:
    if len(value) <= _MOST_PARTS:
        put = _no_setter if isinstance(value, tuple) else _item_setter
        yield from (Part(f"{path}[{index}]", "", each, put(value, index)) for index, each in enumerate(value))


def _of_objects(path: str, value: "np.ndarray[Any, Any]") -> Iterator[Part]:
    if value.size <= _MOST_PARTS:
        yield from (
            Part(f"{path}.flat[{index}]", "", each, _item_setter(value.flat, index)) for index, each in enumerate(value.flat)
        )


def _of_function(path: str, value: types.FunctionType) -> Iterator[Part]:
    if is_script(value.__code__.co_filename):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from (Part(f"{path}.{name}", "", _content(cell), _attribute_setter(cell, "cell_contents")) for name, cell in cells)
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        yield from (Part(f"{path}.default{index}", "", each, _no_setter(value, "")) for index, each in enumerate(defaults))
        yield from _attributes(path, value)


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
    for name, each in attributes_of(value):
        if name not in skipped:
            yield Part(f"{path}.{name}", "", each, _attribute_setter(value, name))


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """Return the names and values of an object's own attributes, with those in slots, without names such as `__doc__`."""
    slots = {name for each in type(value).__mro__ for name in getattr(each, "__slots__", ()) if hasattr(value, name)}
    found = {**{name: getattr(value, name) for name in sorted(slots)}, **getattr(value, "__dict__", {})}
    return [(name, each) for name, each in found.items() if not (name.startswith("__") and name.endswith("__"))]


_INSIDE: tuple[tuple[Any, Callable[[str, Any], Iterator[Part]]], ...] = (
    (torch.nn.Module, _of_module), (dict, _of_dict), (list | tuple | deque, _of_sequence), (np.ndarray, _of_objects),
    (types.FunctionType, _of_function),
    (types.MethodType, _of_method), (functools.partial, _of_partial), (DataLoader, _of_loader), (Sampler, _attributes),
)  # fmt: skip


def is_users_class(kind: Any) -> bool:
    """Return whether a value is a class that the script defines, or a namespace class, whose instances any script fills."""
    if not isinstance(kind, type):
        return False
    if kind is types.SimpleNamespace or kind.__module__ == "argparse":
        return True
    # A class that torch derives from the script's, as fully_shard does, is the script's as well.
    modules = (sys.modules.get(each.__module__) for each in kind.__mro__)
    return any(is_script(getattr(module, "__file__", None) or "") for module in modules)


def _assigning(assign: Callable[[str, str, Any], None], function: str, name: str) -> Callable[[Any], None]:
    return lambda value: assign(function, name, value)


def _item_setter(holder: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: holder.__setitem__(key, value)


def _attribute_setter(holder: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(holder, name, value)


def _no_setter(holder: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: None
