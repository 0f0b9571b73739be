"""Finds what names and attributes are bound to: in scopes, by imports, in class bodies, by `self.NAME = ...`, in base classes."""

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from iotwin.workloads.detrain.source_analysis.arguments import Keywords, arguments_of, bound, has_decorator
from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules, SourceModule
from iotwin.workloads.detrain.source_analysis.scopes import (
    ADDING_METHODS,
    FUNCTIONS,
    Binding,
    BindingKind,
    CodeScope,
    Function,
    Scopes,
    unpacked,
)
from iotwin.workloads.detrain.source_analysis.values import (
    Argument,
    CallFrame,
    Items,
    LocalClass,
    LocalFunction,
    LocalInstance,
    LocalModule,
    Outside,
    Value,
)

# Methods of foreign base classes that return the object itself.
SELF_RETURNING = {
    "to", "cuda", "cpu", "train", "eval", "float", "double", "half", "bfloat16", "apply", "requires_grad_", "compile",
}  # fmt: skip
_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NameLookup(ABC):
    """Looks up names, and members of local modules, classes and objects; makes the frames of functions.

    The abstract methods infer what expressions evaluate to.
    """

    def __init__(self, modules: LocalModules) -> None:
        self.modules, self.scopes = modules, Scopes()
        self._module_frames: dict[SourceModule, CallFrame] = {}
        self._frames: dict[tuple[int, int, int, int], CallFrame] = {}
        self._orders: dict[ast.ClassDef, list[LocalClass]] = {}
        self._outside_bases: dict[ast.ClassDef, list[str]] = {}
        self._assigned: dict[ast.ClassDef, dict[str, list[tuple[Binding, Function]]]] = {}

    @abstractmethod
    def values(self, expression: ast.expr, frame: CallFrame) -> list[Value]:
        """Return what the expression may evaluate to."""

    @abstractmethod
    def of_all(self, arguments: Iterable[Argument]) -> list[Value]:
        """Return the values of several expressions."""

    @abstractmethod
    def part(self, value: ast.expr, frame: CallFrame, path: tuple[int, ...]) -> list[Value]:
        """Return the item of a value that an unpacking assignment takes."""

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

    # Members of classes and objects

    def call_frame(self, function: LocalFunction, call: ast.Call, caller: CallFrame) -> CallFrame:
        """Return the frame of `function` as called by `call` in `caller`."""
        return self.frame_of(function, call, caller, arguments_of(call, caller))

    def order(self, local_class: LocalClass) -> list[LocalClass]:
        """Return the class and its local base classes in the order in which Python searches them."""
        if local_class.node not in self._orders:
            self._orders[local_class.node] = [local_class]  # so that the search ends if a class is its own base
            found, foreign = [local_class], []
            for base in local_class.node.bases:
                for value in self.values(base, local_class.frame):
                    if isinstance(value, LocalClass):
                        above = self.order(value)
                        known = {each.node for each in above}
                        found = [each for each in found if each.node not in known] + above
                        foreign += self.foreign_bases(value)
                    elif isinstance(value, Outside):
                        foreign.append(value.path)
            self._orders[local_class.node], self._outside_bases[local_class.node] = found, foreign
        return self._orders[local_class.node]

    def foreign_bases(self, local_class: LocalClass) -> list[str]:
        """Return the names of the installed packages' classes that the class derives from."""
        self.order(local_class)
        return self._outside_bases.get(local_class.node, [])

    def searched(self, instance: LocalInstance) -> list[LocalClass]:
        """Return the classes in which an attribute of the instance is searched."""
        found = self.order(instance.local_class)
        if instance.after is None:
            return found
        nodes = [each.node for each in found]
        return found[nodes.index(instance.after.node) + 1 :] if instance.after.node in nodes else []

    def methods(self, instance: LocalInstance, name: str) -> list[LocalFunction]:
        """Return the method `name` of an instance, bound to it: none or one."""
        for each in self.searched(instance):
            node = _method(each.node, name)
            if node is not None:
                scope = self.scopes.function(node, each.module)
                return [LocalFunction(scope, _closure(each), LocalInstance(instance.local_class, instance.call, instance.frame))]
        return []

    def instance_attribute(self, instance: LocalInstance, name: str) -> list[Value]:
        """Return what `INSTANCE.name` may be."""
        if methods := self.methods(instance, name):
            if any(has_decorator(methods[0].scope, each) for each in ("property", "cached_property")):
                frame = self.frame_of(methods[0], None, None, ([], []))
                return self.of_all((each, frame) for each in methods[0].scope.returns)
            return list(methods)
        found: list[Value] = []
        for binding, frame in self.assignments(instance, name):
            if binding.kind == "change":
                found += self.added(binding, frame)
            elif binding.value is not None:
                found += self.part(binding.value, frame, binding.path)
        found += self._field(instance, name)
        if not found and name in SELF_RETURNING and self.foreign_bases(instance.local_class):
            return [instance]
        return found or [Outside(f"{base}().{name}") for base in self.foreign_bases(instance.local_class)[:1]]

    def added(self, binding: Binding, frame: CallFrame) -> list[Value]:
        """Return what `list.append(value)` and `container[key] = value` add to what a name or attribute may be."""
        if binding.value is None:
            return []
        match binding.node:
            case ast.Call(func=ast.Attribute(attr="extend")):
                return self.values(binding.value, frame)
        return [Items(((binding.value, frame),))]

    def class_attribute(self, local_class: LocalClass, name: str) -> list[Value]:
        """Return what `CLASS.name` may be."""
        for each in self.order(local_class):
            node = _method(each.node, name)
            if node is not None:
                function = LocalFunction(self.scopes.function(node, each.module), _closure(each))
                if has_decorator(function.scope, "classmethod"):
                    return [LocalFunction(function.scope, function.closure, LocalInstance(local_class))]
                return [function]
            if found := self._of_body(each, name):
                return found
        return [Outside(f"{base}.{name}") for base in self.foreign_bases(local_class)[:1]]

    def assignments(self, instance: LocalInstance, name: str) -> Iterator[tuple[Binding, CallFrame]]:
        """Yield the assignments to `self.name` in the methods of the instance, each with a frame of the method.

        The frame of `__init__` has the arguments that the instance is made with; those of other methods have none.
        """
        plain = LocalInstance(instance.local_class, instance.call, instance.frame)
        for each in self.searched(instance):
            for binding, method in self._assignments_of(each).get(name, []):
                function = LocalFunction(self.scopes.function(method, each.module), _closure(each), plain)
                yield binding, self._method_frame(function, plain)

    def _method_frame(self, function: LocalFunction, instance: LocalInstance) -> CallFrame:
        node = function.scope.node
        if isinstance(node, _METHODS) and node.name == "__init__" and instance.call is not None and instance.frame is not None:
            initial = self.methods(instance, "__init__")
            if initial and initial[0].scope is function.scope:
                return self.call_frame(function, instance.call, instance.frame)
            if found := self._called_by_super(function, instance):
                return found
        return self.frame_of(function, None, None, ([], []))

    def _called_by_super(self, function: LocalFunction, instance: LocalInstance) -> CallFrame | None:
        """Return the frame of a base class's `__init__` as the instance's own `__init__` calls it."""
        initial = self.methods(instance, "__init__")
        if not initial or instance.call is None or instance.frame is None:
            return None
        caller = self.call_frame(initial[0], instance.call, instance.frame)
        for site in initial[0].scope.sites:
            if not isinstance(site.call.func, ast.Attribute) or site.call.func.attr != "__init__":
                continue
            positional, named = arguments_of(site.call, caller)
            is_super = isinstance(site.call.func.value, ast.Call)
            return self.frame_of(function, site.call, caller, (positional if is_super else positional[1:], named))
        return None

    def _assignments_of(self, local_class: LocalClass) -> dict[str, list[tuple[Binding, Function]]]:
        if local_class.node in self._assigned:
            return self._assigned[local_class.node]
        found: dict[str, list[tuple[Binding, Function]]] = {}
        for method in local_class.node.body:
            if not isinstance(method, _METHODS) or not method.args.args:
                continue
            own = method.args.args[0].arg
            for node in ast.walk(method):
                for name, binding in _attribute_bindings(node, own):
                    found.setdefault(name, []).append((binding, method))
        self._assigned[local_class.node] = found
        return found

    def _of_body(self, local_class: LocalClass, name: str) -> list[Value]:
        """Return what an assignment in the body of the class gives to `name`."""
        for node in local_class.node.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                    return self.values(node.value, local_class.frame)
        return []

    def _field(self, instance: LocalInstance, name: str) -> list[Value]:
        """Return the argument for a field of a dataclass or named tuple, or else the default in the class body."""
        for each in self.searched(instance):
            fields = [
                node.target.id for node in each.node.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            ]
            if name in fields and instance.call is not None and instance.frame is not None:
                positional, named = arguments_of(instance.call, instance.frame)
                by_name = {**dict(zip(fields, positional, strict=False)), **dict(named)}
                if name in by_name:
                    return self.of_all([by_name[name]])
            if found := self._of_body(each, name):
                return found
        return []


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return next((each for each in node.body if isinstance(each, _METHODS) and each.name == name), None)


def _closure(local_class: LocalClass) -> CallFrame | None:
    """Return the frame of the function that defines the class, None if a module does."""
    return local_class.frame if isinstance(local_class.frame.scope.node, FUNCTIONS) else None


def _attribute_bindings(node: ast.AST, own: str) -> Iterator[tuple[str, Binding]]:
    """Yield what a statement or expression assigns to attributes of the object `own`, or adds to them."""
    targets: list[ast.expr] = []
    kind: BindingKind = "assign"
    value: ast.expr | None = None
    match node:
        case ast.Assign():
            targets, value = node.targets, node.value
        case ast.AnnAssign(value=ast.expr()):
            targets, value = [node.target], node.value
        case ast.AugAssign():
            targets, value, kind = [node.target], node.value, "augment"
        case ast.For() | ast.AsyncFor():
            targets, value, kind = [node.target], node.iter, "for"
        case ast.withitem(optional_vars=ast.expr(), context_expr=value):
            targets = [node.optional_vars] if node.optional_vars else []
        case ast.Call(func=ast.Attribute(value=ast.Attribute() as changed, attr=method), args=[*_, value]):
            targets, kind = ([changed] if method in ADDING_METHODS else []), "change"
    for target in targets:
        for each, path in unpacked(target):
            is_item = isinstance(each, ast.Subscript)
            whole = each.value if isinstance(each, ast.Subscript) else each
            if isinstance(whole, ast.Attribute) and isinstance(whole.value, ast.Name) and whole.value.id == own:
                yield whole.attr, Binding("change" if is_item else kind, node, value, path)
