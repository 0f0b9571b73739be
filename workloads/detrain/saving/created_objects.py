"""Records objects that training created, so that a checkpoint can hold them and a later process can create them again.

Objects that the script creates before its loop are not recorded: a record refers to them by their path.
"""

import copy
import functools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.saving.plain_values import decode, encode, has_containers, is_plain, replace_content
from iotwin.workloads.detrain.saving.script_state import Part, attributes_of, is_users_class
from iotwin.workloads.detrain.saving.tensor_values import can_be_saved, made_tensor, saved_tensor
from iotwin.workloads.detrain.saving.tensorflow_states import constant, is_constant

Made = Any  # JSON values and tensors
_MARK = "$made"  # a dict with this key is a record; other dicts are plain values
_KEPT = "kept"  # an object that the script creates before its loop, and that training has changed
_MOST_DEPTH = 50
_SEQUENCES = {"list": list, "tuple": tuple, "deque": deque}
_WITH_OPTIONS = (deque, OrderedDict, defaultdict, Counter)  # containers that have options in addition to their content
_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "defaultdict": defaultdict, "Counter": Counter}


class CannotBeMade(Exception):
    """Raised if a value is, or contains, an object that iotwin cannot create again."""


class IsCode(CannotBeMade):
    """Raised if a value is, or contains, a function without a name. The script defines such functions again when needed."""


class ValueRecorder:
    """Records values.

    `paths`: by id, the path of each object that the walk of script_state found. `exists(path, value)`: whether the script creates
    that object before its loop. `like(module)`: path of a module with the same tensors that it creates there, or None.
    """

    def __init__(
        self, paths: Mapping[int, str], exists: Callable[[str, Any], bool], like: Callable[[torch.nn.Module], str | None]
    ) -> None:
        self._paths, self._exists, self._like = dict(paths), exists, like

    def record(self, value: Any, path: str, depth: int = 0) -> Made:
        """Return the record of the value at `path`. At depth 0, record even values that the script makes. Raises CannotBeMade."""
        if depth == 0 and self._paths.get(id(value)) == path and self._exists(path, value):
            return {**self._recorded(value, path, 1), _KEPT: True}
        known = self._paths.get(id(value))
        if known is not None and (known != path or self._exists(path, value)):
            return {_MARK: "part", "path": known}
        if is_plain(value) and not (isinstance(value, _WITH_OPTIONS) or has_containers(value)):
            return encode(value)
        if isinstance(value, torch.Tensor | np.ndarray) and can_be_saved(value):
            return {_MARK: "tensor", "content": saved_tensor(value)}
        if is_constant(value) and can_be_saved(content := np.asarray(value.numpy())):
            return {_MARK: "constant", "content": saved_tensor(content)}
        if isinstance(value, torch.nn.Module):
            like = self._like(value)
            if like is not None:
                return {_MARK: "copy", "of": like}
        elif depth <= _MOST_DEPTH:
            self._paths[id(value)] = path  # the walk of script_state ends before this depth
            return self._recorded(value, path, depth + 1)
        raise CannotBeMade(f"{path} is a {type(value).__name__}")

    def _recorded(self, value: Any, path: str, depth: int) -> Made:
        kind = type(value)
        if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
            items = [self.record(each, f"{path}[{index}]", depth) for index, each in enumerate(value)]
            return {_MARK: kind.__name__, "items": items, **({"most": value.maxlen} if isinstance(value, deque) else {})}
        if kind.__name__ in _DICTS and kind is _DICTS[kind.__name__] and all(map(is_plain, value)):
            pairs = [[encode(key), self.record(each, f"{path}[{key!r}]", depth)] for key, each in value.items()]
            factory = self.record(value.default_factory, "", depth) if isinstance(value, defaultdict) else None
            return {_MARK: kind.__name__, "items": pairs, "factory": factory}
        if isinstance(value, tuple) and hasattr(kind, "_fields") and is_users_class(kind):
            items = [self.record(each, f"{path}[{index}]", depth) for index, each in enumerate(value)]
            return {_MARK: "named tuple", "items": items, "class": _name_of(kind, path)}
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return {_MARK: "name", "name": _name_of(value, path)}
        if isinstance(value, functools.partial):
            raise IsCode(f"{path} is a partial")
        if is_users_class(kind) and not isinstance(value, list | dict | set | tuple):
            attributes = {name: self.record(each, f"{path}.{name}", depth) for name, each in attributes_of(value)}
            return {_MARK: "object", "class": _name_of(kind, path), "attributes": attributes}
        raise CannotBeMade(f"{path} is a {kind.__name__}")


def _name_of(value: Any, path: str) -> str:
    """Return the name of a function or class, by which a later process finds it."""
    name = f"{value.__module__}:{value.__qualname__}"
    if _named(name) is not value:
        raise IsCode(f"{path} is {name}")
    return name


def _named(name: str) -> Any:
    module, _, inside = name.partition(":")
    found: Any = sys.modules.get(module)
    for each in inside.split("."):
        found = getattr(found, each, None)
    return found


class Maker:
    """Creates the values recorded in `made`, by path. `parts`: the parts of the state in this process, by path.

    If an object already exists at a path, its content is replaced in place, so that all references to it see the change. This
    requires that training has not replaced the object, or that it has the same class and no other part refers to it.
    """

    def __init__(self, made: Mapping[str, Made], parts: Mapping[str, Part]) -> None:
        self.parts, self._shared = parts, {part.same for part in parts.values()}
        self._nodes = {path: node for root, value in made.items() for path, node in _nodes(root, value) if not _is_at(path, node)}
        self._nodes |= {path: node for path, node in made.items() if not _is_at(path, node)}
        self._done: dict[str, Any] = {}

    def value(self, path: str) -> Any:
        """Return the value at a path. Raises IotwinError if nothing is there."""
        if path in self._done:
            return self._done[path]
        if path in self._nodes:
            return self._make(path, self._nodes[path])
        if path in self.parts:
            return self.parts[path].value
        raise IotwinError(f"the script has no {path}, which training made before; resume with --replay full")

    def has(self, path: str) -> bool:
        """Return whether there is a value at a path."""
        return path in self._nodes or path in self.parts

    def _make(self, path: str, node: Made) -> Any:
        kind = node.get(_MARK) if isinstance(node, dict) else None
        if kind == "part":
            found = self.value(node["path"])
        elif kind == "tensor":
            found = made_tensor(node["content"])
        elif kind == "constant":
            found = constant(made_tensor(node["content"]))
        elif kind == "copy":
            found = copy.deepcopy(self.value(node["of"]))
        elif kind in _SEQUENCES or kind in _DICTS:
            found = self._container(kind, path, node)
        elif kind in ("name", "object", "named tuple"):
            found = self._of_script(kind, path, node)
        else:
            found = decode(node)
            held = self._reused(path, type(found), node if isinstance(node, dict) else {})
            found = held if replace_content(held, found) else found
        self._done[path] = found
        return found

    def _container(self, kind: str, path: str, node: Made) -> Any:
        if kind == "tuple":
            return tuple(self.value(f"{path}[{index}]") for index in range(len(node["items"])))
        empty = self._reused(path, _SEQUENCES.get(kind) or _DICTS[kind], node)
        if empty is None:
            empty = deque(maxlen=node["most"]) if kind == "deque" else (_SEQUENCES.get(kind) or _DICTS[kind])()
        empty.clear()
        self._done[path] = empty  # stored before its content is made, which may refer to it
        if kind in _SEQUENCES:
            empty.extend(self.value(f"{path}[{index}]") for index in range(len(node["items"])))
            return empty
        for key in (decode(key) for key, _ in node["items"]):
            empty[key] = self.value(f"{path}[{key!r}]")
        if isinstance(empty, defaultdict) and empty.default_factory is None and node["factory"] is not None:
            empty.default_factory = self._make("", node["factory"])
        return empty

    def _of_script(self, kind: str, path: str, node: Made) -> Any:
        """Return a function, a class, or an instance of a class of the script."""
        named = _named(node["name" if kind == "name" else "class"])
        if kind == "name" and callable(named):
            return named
        if not is_users_class(named):
            raise IotwinError(
                f"the checkpoint's {path} is of {node.get('class', node.get('name'))}, which the script does not have"
            )
        if kind == "named tuple":
            return tuple.__new__(named, [self.value(f"{path}[{index}]") for index in range(len(node["items"]))])
        found = self._reused(path, named, node)
        found = named.__new__(named) if found is None else found
        self._done[path] = found
        for name, _ in attributes_of(found):
            if name not in node["attributes"]:
                object.__delattr__(found, name)
        for name in node["attributes"]:
            object.__setattr__(found, name, self.value(f"{path}.{name}"))
        return found

    def _reused(self, path: str, kind: type, node: Made) -> Any:
        part = self.parts.get(path)
        if part is None or type(part.value) is not kind:
            return None
        return part.value if node.get(_KEPT) or not (part.same or path in self._shared) else None


def _is_at(path: str, node: Made) -> bool:
    """Return whether a recorded value refers to the object that the script creates at this same path."""
    return isinstance(node, dict) and node.get(_MARK) == "part" and bool(node["path"] == path)


def _nodes(path: str, node: Made) -> Iterator[tuple[str, Made]]:
    """Yield (path, record) of a recorded value and of all records inside of it."""
    yield path, node
    kind = node.get(_MARK) if isinstance(node, dict) else None
    if kind in _SEQUENCES or kind == "named tuple":
        for index, each in enumerate(node["items"]):
            yield from _nodes(f"{path}[{index}]", each)
    elif kind in _DICTS:
        for key, each in node["items"]:
            yield from _nodes(f"{path}[{decode(key)!r}]", each)
    elif kind == "object":
        for name, each in node["attributes"].items():
            yield from _nodes(f"{path}.{name}", each)
