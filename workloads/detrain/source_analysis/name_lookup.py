"""Finds what names of a script's modules are bound to, in the scopes around them and by imports."""

import ast
import builtins
from abc import abstractmethod

from iotwin.workloads.detrain.source_analysis.arguments import Keywords, bound
from iotwin.workloads.detrain.source_analysis.attributes import ClassMembers
from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules, SourceModule
from iotwin.workloads.detrain.source_analysis.scopes import Binding, CodeScope, Function
from iotwin.workloads.detrain.source_analysis.values import Argument, CallFrame, LocalFunction, LocalModule, Outside, Value


class NameLookup(ClassMembers):
    """Looks up names, and makes the frames of functions."""

    def __init__(self, modules: LocalModules) -> None:
        super().__init__()
        self.modules = modules
        self._module_frames: dict[SourceModule, CallFrame] = {}
        self._frames: dict[tuple[int, int, int, int], CallFrame] = {}

    @abstractmethod
    def bound(self, name: str, binding: Binding, frame: CallFrame) -> list[Value]:
        """Return what one binding gives to a name."""

    def module_frame(self, module: SourceModule) -> CallFrame:
        """Return the frame of a module's top level."""
        if module not in self._module_frames:
            self._module_frames[module] = CallFrame(self.scopes.module(module))
        return self._module_frames[module]

    def frame_of(
        self, function: LocalFunction, call: ast.expr | None, caller: CallFrame | None, given: tuple[list[Argument], Keywords]
    ) -> CallFrame:
        """Return the frame of `function` as called by `call` in `caller` with the positional and named arguments `given`."""
        key = (id(function.scope), id(call), id(caller), id(function.instance.local_class.node) if function.instance else 0)
        if key not in self._frames:
            depth = caller.depth + 1 if caller else 1
            arguments = bound(function, *given)
            self._frames[key] = CallFrame(function.scope, arguments, function.instance, caller, call, function.closure, depth)
        return self._frames[key]

    def function(self, node: Function, module: SourceModule, closure: CallFrame | None) -> LocalFunction:
        """Return the function that the definition `node` makes."""
        return LocalFunction(self.scopes.function(node, module), closure)

    def name(self, name: str, frame: CallFrame) -> list[Value]:
        """Return what a name may mean in a frame."""
        own = self.home(name, frame)
        if own is not None:
            return [value for each in own.scope.bindings[name] for value in self.bound(name, each, own)]
        scope: CodeScope | None = frame.scope
        while scope is not None:
            if starred := self._starred_import(name, scope):
                return starred
            scope = scope.parent
        return [Outside(f"builtins.{name}")] if hasattr(builtins, name) else []

    def home(self, name: str, frame: CallFrame) -> CallFrame | None:
        """Return the frame whose scope binds `name` as read in `frame`; None if no local scope does."""
        scope: CodeScope | None = frame.scope
        current: CallFrame | None = frame
        while scope is not None:
            if name in scope.bindings and name not in scope.outer_names:
                return current if current is not None and current.scope is scope else self.frame_without_caller(scope)
            current = current.closure if current is not None else None
            scope = scope.parent
        return None

    def frame_without_caller(self, scope: CodeScope) -> CallFrame:
        """Return the frame of a scope for calls that are unknown."""
        if isinstance(scope.node, ast.Module):
            return self.module_frame(scope.module)
        key = (id(scope), 0, 0, 0)
        if key not in self._frames:
            self._frames[key] = CallFrame(scope)
        return self._frames[key]

    def _starred_import(self, name: str, scope: CodeScope) -> list[Value]:
        for each in scope.bindings.get("*", []):
            if isinstance(each.node, ast.ImportFrom):
                module = self.modules.imported(scope.module, each.node.module, each.node.level)
                if module is not None and module is not scope.module and name in self.scopes.module(module).bindings:
                    return self.name(name, self.module_frame(module))
        return []

    def imported_value(self, name: str, node: ast.AST, frame: CallFrame) -> list[Value]:
        """Return what an import statement binds to `name`."""
        if isinstance(node, ast.Import):
            alias = next(each for each in node.names if name in (each.asname, each.name.partition(".")[0]))
            whole = alias.name if alias.asname else name
            module = self.modules.named(whole)
            return [LocalModule(module)] if module is not None else [Outside(whole)]
        if not isinstance(node, ast.ImportFrom):
            return []
        original = next(each.name for each in node.names if name in (each.asname, each.name))
        module = self.modules.imported(frame.scope.module, node.module, node.level)
        if module is None:
            return [Outside(f"{node.module or ''}.{original}")] if not node.level else []
        return self.module_member(module, original)

    def module_member(self, module: SourceModule, name: str) -> list[Value]:
        """Return what `MODULE.name` may be."""
        scope = self.scopes.module(module)
        if name in scope.bindings or "*" in scope.bindings:
            found = self.name(name, self.module_frame(module))
            if found:
                return found
        below = self.modules.submodule(module, name)
        return [LocalModule(below)] if below is not None else []
