"""Saves the parts of a script's state that have changed since its loop began, and restores them."""

import contextlib
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from iotwin.common.errors import IotwinError
from iotwin.common.tensor_file import crc32c
from iotwin.workloads.detrain.loaders import IteratorState, TrackedIterator
from iotwin.workloads.detrain.saving import script_state
from iotwin.workloads.detrain.saving.created_objects import CannotBeMade, IsCode, Maker, ValueRecorder
from iotwin.workloads.detrain.saving.gradient_buckets import has_final_buckets
from iotwin.workloads.detrain.saving.lost_iterators import position_of
from iotwin.workloads.detrain.saving.plain_values import decode, encode, is_plain, replace_content
from iotwin.workloads.detrain.saving.provider import NotBuilt, State
from iotwin.workloads.detrain.saving.providers import loads_in_place, provider_of
from iotwin.workloads.detrain.saving.script_state import Part, Walk
from iotwin.workloads.detrain.saving.tensor_values import can_be_saved, put_tensor, saved_tensor

_TENSORS = (script_state.TENSOR, script_state.ARRAY)
_REPLACED = (*_TENSORS, script_state.HOLDER, script_state.SAME)  # parts to record if training replaced the object
_KINDS = ("objects", "types", "gradients", "iterators", "tensors", "plain", "made", "lost", "holders")
_Frame = types.FrameType | None


class _Begun(NamedTuple):
    """A part at the time when the loop began. It refers to the part's value, so that no other object gets the same id."""

    value: Any
    mark: Any


class ScriptState:
    """Saves and restores the state of a script. `assign(function, name, value)` sets a variable.

    `dead`: variables of the batch loop's function that every step assigns before it reads them.
    """

    def __init__(self, assign: Callable[[str, str, Any], None], dead: frozenset[str] = frozenset()) -> None:
        self._assign, self._dead = assign, dead
        self._begun: dict[str, _Begun] | None = None
        self._paths: dict[int, list[str]] = {}  # by id of the objects that the script made before the loop
        self._modules: dict[str, types.ModuleType] | None = None  # those that had been imported when the loop began
        self._kept: set[str] = set()  # paths of restored values, which the script does not make when it runs from its start
        self._kept_inside: tuple[str, ...] = ()  # prefixes of paths: everything inside of restored values
        self.unsaved: dict[str, str] = {}  # paths whose values cannot be restored, with the reason
        self.left: dict[str, str] = {}  # paths whose values have been replaced and cannot be saved, with the reason

    def begin(self, frame: _Frame) -> dict[str, Part] | None:
        """Remember the parts that exist before the loop, and return them by path; None at later calls, which do nothing."""
        if self._begun is not None:
            return None
        self._modules = script_state.scripts_modules()
        walk = self._walk(frame)
        parts = list(walk.parts())
        self._begun = {part.path: _Begun(part.value, _mark(part)) for part in parts}
        self._paths = {each: [path] for each, path in walk.paths.items()}
        for part in parts:
            if part.kind == script_state.SAME:
                self._paths[id(part.value)].append(part.path)
        return {part.path: part for part in parts}

    def _walk(self, frame: _Frame, without: frozenset[str] = frozenset()) -> Walk:
        return Walk(script_state.frames_of(frame), self._assign, self._paths, without, self._modules)

    def parts(self, frame: _Frame) -> dict[str, Part]:
        """Return the present parts by path."""
        return {part.path: part for part in self._walk(frame).parts()}

    def capture(self, frame: _Frame, gradients: bool) -> State:
        """Return the state, by section and path.

        * `objects` and `types`: states and types of objects with a provider; `gradients` of modules, if requested
        * `iterators`: positions; `lost`: positions of iterators that cannot be restored
        * `tensors` and `plain`: values that changed in place; `made`: values that were created since the loop began
        * `holders`: paths of the objects that hold the values of `made`
        * `buckets`: paths of models that sum their gradients over several ranks in their final buckets
        """
        walk = self._walk(frame, self._dead)
        parts = list(walk.parts())
        state: State = {name: {} for name in _KINDS}
        self.unsaved, self.left = {}, {}
        state["made"], inside = self._made(parts, walk.paths)
        for part in parts:
            if part.kind == script_state.OBJECT:
                state["objects"][part.path], state["types"][part.path] = self._saved(part), type(part.value).__name__
                if gradients and (found := _gradients(part.value)):
                    state["gradients"][part.path] = found
            elif part.kind == script_state.ITERATOR:
                state["iterators"][part.path] = encode(part.value.state()._asdict(), self.unsaved)
                if not part.value.restorable:
                    self.unsaved[part.path] = "its data set only gives its samples one after another"
            elif part.kind == script_state.LOST and part.path not in inside and self._changed(part):
                self.unsaved[part.path] = f"a {type(part.value).__name__} has no state that can be saved"
                state["lost"][part.path] = position_of(part.value)
            elif part.kind == script_state.PLAIN and part.path not in inside and self._changed(part):
                state["plain"][part.path] = encode(part.value)
            elif part.kind in _TENSORS and part.path not in inside and self._changed(part):
                state["tensors"][part.path] = saved_tensor(part.value)
        saved = {path for kind in _KINDS for path in state[kind]}
        state["holders"] = {part.path: part.holder for part in parts if part.path in saved and part.holder}
        state["buckets"] = [part.path for part in parts if part.kind == script_state.OBJECT and has_final_buckets(part.value)]
        return state

    def _made(
        self, parts: Sequence[Part], paths: Mapping[int, str], chosen: Callable[[Any], bool] = lambda _: True
    ) -> tuple[State, set[str]]:
        """Return (records, by path, of values that were created since the loop began, or contain one; all paths inside of them).

        `chosen`: returns False for values to leave out.
        """
        recorder = ValueRecorder(paths, lambda path, value: not self._is_other(path, value), self._like)
        held: dict[str, list[Part]] = defaultdict(list)
        for part in parts:
            held[part.holder].append(part)
        made: State = {}
        inside: set[str] = set()
        for part in parts:
            if part.holder in inside and self._is_other(part.path, part.value):
                inside.add(part.path)
            elif chosen(part.value) and self._is_made(part, held[part.path]):
                try:
                    made[part.path] = recorder.record(part.value, part.path)
                except IsCode:
                    continue
                except CannotBeMade as error:
                    self.left[part.path] = str(error)
                else:
                    inside |= {part.path} if part.kind != script_state.OBJECT else set()
        return made, inside

    def _is_made(self, part: Part, held: Sequence[Part]) -> bool:
        if part.kind == script_state.OBJECT:
            return isinstance(part.value, torch.nn.Module) and self._is_other(part.path, part.value)
        if self._is_replaced(part):
            return True
        begun = self._begun or {}
        return part.kind == script_state.HOLDER and (
            _mark(part) != begun[part.path].mark
            or any(
                each.path not in begun or self._is_replaced(each)
                for each in held
                if isinstance(part.value, list | dict | tuple | deque)
            )
        )

    def _is_replaced(self, part: Part) -> bool:
        """Return whether a part's value is another object than when the loop began, and so must be recorded."""
        is_made = part.kind in _REPLACED or (part.kind == script_state.PLAIN and script_state.has_identity(part.value))
        return is_made and self._is_other(part.path, part.value)

    def _is_other(self, path: str, value: Any) -> bool:
        """Return whether the object at a path is another one than when the loop began."""
        begun = (self._begun or {}).get(path)
        return begun is None or begun.value is not value

    def _like(self, module: torch.nn.Module) -> str | None:
        """Return the path of a module with the same tensors that the script created before its loop; None if there is none."""
        shapes = _shapes(module)
        alike = (
            path
            for path, begun in (self._begun or {}).items()
            if type(begun.value) is type(module) and _shapes(begun.value) == shapes
        )
        return next(alike, None)

    def _saved(self, part: Part) -> Any:
        left_out: dict[str, str] = {}
        provider = provider_of(part.value)
        return provider.save(part.value, left_out) if provider else None

    def _changed(self, part: Part) -> bool:
        begun = (self._begun or {}).get(part.path)
        kept = part.path in self._kept or part.path.startswith(self._kept_inside)
        if begun is not None and not kept and begun.mark == _mark(part):
            return part.kind == script_state.LOST and begun.value is not part.value
        if part.kind in _TENSORS and not can_be_saved(part.value):
            self.left[part.path] = f"{part.path} is a {type(part.value).__name__} in a layout that a checkpoint cannot hold"
            return False
        return True

    def keep(self, state: State) -> None:
        """Let later checkpoints include everything that the restored `state` contains."""
        self._kept |= state["plain"].keys() | state["tensors"].keys() | state["made"].keys()
        self._kept_inside += tuple(f"{path}{mark}" for path in state["made"] for mark in ".[")

    def generators(self, frame: _Frame) -> State:
        """Return the states of the script's own generators, by path."""
        own = (part for part in self._walk(frame).parts() if part.kind == script_state.OBJECT)
        return {part.path: self._saved(part) for part in own if _draws(part.value)}

    def set_generators(self, saved: State, frame: _Frame) -> None:
        """Set the script's own generators to states that `generators` returned."""
        parts = self.parts(frame) if saved else {}  # a walk takes milliseconds
        for path in saved.keys() & parts.keys():
            _load(parts[path], saved[path])

    def plain(self, frame: _Frame) -> State:
        """Return, by path, the plain values that were changed or created since the loop began."""
        walk = self._walk(frame)
        parts = list(walk.parts())
        made, inside = self._made(parts, walk.paths, is_plain)
        changed = (part for part in parts if part.kind == script_state.PLAIN and part.path not in inside and self._changed(part))
        return {"plain": {part.path: encode(part.value) for part in changed}, "made": made}

    def restore(self, state: State, frame: _Frame, without: frozenset[str] = frozenset()) -> None:
        """Restore a captured state, except objects whose type's name is in `without`.

        Raises NotBuilt if an object does not exist yet, and IotwinError if it never will or does not fit.
        """
        parts = self.parts(frame)
        if unbuilt := [path for path in state["buckets"] if path in parts and not has_final_buckets(parts[path].value)]:
            raise NotBuilt(f"{unbuilt[0]} has not summed gradients over the ranks")
        for path, position in state["lost"].items():
            _check_position(path, position, parts)
        maker = Maker(state["made"], parts)
        objects = {path: _object(path, state, parts, maker) for path in state["objects"]}
        chosen = [path for path, part in objects.items() if state["types"][path] not in without]
        for path in sorted(chosen, key=lambda path: _draws(objects[path].value)):  # generators last: loading others may draw
            _load(objects[path], state["objects"][path])
        for path, part in objects.items():
            if isinstance(part.value, torch.nn.Module):
                _put_gradients(part.value, state["gradients"].get(path, {}))
        if not all(loads_in_place(part.value) for part in objects.values()):
            parts = maker.parts = self.parts(frame)
        for path in state["made"]:
            self._put(path, maker.value(path), parts, maker, state["holders"])
        for path, saved in state["iterators"].items():
            _go_to(path, parts, IteratorState(**decode(saved)))
        for path, value in state["plain"].items():
            if path not in parts or not replace_content(parts[path].value, decode(value)):
                self._put(path, decode(value), parts, maker, state["holders"])
        for path, saved in state["tensors"].items():
            put_tensor(parts[path], saved)
        self.keep(state)

    def restore_plain(self, saved: State, frame: _Frame, parts: dict[str, Part] | None = None) -> None:
        """Restore plain values whose holders (the objects that refer to them) exist in the script.

        `parts`: the present parts by path, if known.
        """
        if not (saved["made"] or saved["plain"]):
            return
        parts = parts or self.parts(frame)
        maker = Maker(saved["made"], parts)
        for path in saved["made"]:
            with contextlib.suppress(IotwinError):
                self._put(path, maker.value(path), parts, maker, {})
        for path, value in saved["plain"].items():
            if path not in parts or not replace_content(parts[path].value, decode(value)):
                with contextlib.suppress(IotwinError):
                    self._put(path, decode(value), parts, maker, {})

    def _put(self, path: str, value: Any, parts: Mapping[str, Part], maker: Maker, holders: Mapping[str, str]) -> None:
        """Store a value in its holder. Raises IotwinError if the script has no such holder."""
        function, call, name = path.partition("().")
        module, _, variable = path.rpartition(":")
        if path in parts:
            if parts[path].value is not value:
                parts[path].put(value)
        elif path in holders:
            setattr(maker.value(holders[path]), path[len(holders[path]) + 1 :], value)
        elif call and name.isidentifier():
            self._assign(function, name, value)
        elif variable.isidentifier() and (module or "__main__") in sys.modules:
            setattr(sys.modules[module or "__main__"], variable, value)
        else:
            raise IotwinError(f"the script has nothing that holds {path}; resume with --replay full")


def _object(path: str, state: State, parts: Mapping[str, Part], maker: Maker) -> Part:
    """Return the script's object at a path.

    Raises NotBuilt if the script has not made the object yet. Raises IotwinError if it never does, or if the type differs.
    """
    kind = state["types"][path]
    if not maker.has(path):
        if {"keras", "tensorflow"} & sys.modules.keys():
            raise NotBuilt(f"the script has no {path}")
        raise IotwinError(
            f"{path}, a {kind}, was made while the script trained and cannot be restored; resume with --replay full"
        )
    value = maker.value(path)
    if type(value).__name__ != kind:
        raise IotwinError(f"{path} was a {kind}, and is a {type(value).__name__} in this run; resume with --replay full")
    return Part(path, script_state.OBJECT, value, lambda _: None)


def _check_position(path: str, position: str, parts: Mapping[str, Part]) -> None:
    """Raise IotwinError unless an iterator that cannot be restored is at `position`, for instance because a replay moved it."""
    if path not in parts or position_of(parts[path].value) != position:
        raise IotwinError(f"{path} cannot be restored, and reading earlier batches does not move it; resume with --replay full")


def _go_to(path: str, parts: Mapping[str, Part], state: IteratorState) -> None:
    if path not in parts or not isinstance(parts[path].value, TrackedIterator):
        raise IotwinError(f"the script has no iterator {path} yet; resume with --replay full")
    parts[path].value.go_to(state)


def _shapes(value: Any) -> Any:
    if not isinstance(value, torch.nn.Module):
        return None
    return [(name, tuple(each.shape)) for name, each in (*value.named_parameters(), *value.named_buffers())]


def _draws(value: Any) -> bool:
    provider = provider_of(value)
    return provider is not None and provider.draws


def _load(part: Part, saved: Any) -> None:
    provider = provider_of(part.value)
    try:
        if provider is not None:
            provider.load(part.value, saved)
    except IotwinError as error:
        raise IotwinError(f"the checkpoint's {part.path} does not fit the script's: {error}") from None
    except NotBuilt as missing:
        raise NotBuilt(f"{part.path} {missing}") from None


def _mark(part: Part) -> tuple[str, Any]:
    """Return a part's mark. If a later mark differs, the part has changed in place."""
    return part.kind, _content_mark(part)


def _content_mark(part: Part) -> Any:
    value = part.value
    if part.kind == script_state.TENSOR:
        gradient = value.grad if value.is_leaf else None
        return None if value.is_inference() else (value._version, None if gradient is None else (id(gradient), gradient._version))
    if part.kind == script_state.ARRAY and can_be_saved(value):
        return value.dtype.str, value.shape, crc32c(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    if part.kind == script_state.PLAIN:
        return encode(value)
    if part.kind == script_state.LOST:
        return position_of(value)
    if isinstance(value, dict):  # the mark includes the order of the keys
        return [encode(key) if is_plain(key) else id(key) for key in value]
    return len(value) if isinstance(value, list | tuple | set | deque) else None


def _gradients(value: Any) -> State:
    if not isinstance(value, torch.nn.Module):
        return {}
    return {name: encode(each.grad, {}) for name, each in value.named_parameters() if each.grad is not None}


def _put_gradients(module: torch.nn.Module, gradients: State) -> None:
    for name, parameter in module.named_parameters():
        saved = decode(gradients[name], [parameter]) if name in gradients else None
        parameter.grad = None if saved is None else saved.to(parameter.device).clone()
