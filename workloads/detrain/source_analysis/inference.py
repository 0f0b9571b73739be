"""Infers what expressions of a script may evaluate to, from the assignments, arguments and returns in its local modules."""

import ast
from collections.abc import Iterable
from typing import cast

from iotwin.workloads.detrain.source_analysis.arguments import arguments_of, default_of, is_static
from iotwin.workloads.detrain.source_analysis.foreign_functions import ENUMERATE, TRANSPARENT, iterated
from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules
from iotwin.workloads.detrain.source_analysis.name_lookup import SELF_RETURNING, NameLookup
from iotwin.workloads.detrain.source_analysis.scopes import Binding, Function
from iotwin.workloads.detrain.source_analysis.values import (
    Argument,
    CallFrame,
    Generator,
    Items,
    LocalClass,
    LocalFunction,
    LocalInstance,
    LocalModule,
    Outside,
    Value,
)

MOST_DEPTH = 30  # calls within calls
_MOST_NESTED = 60  # expressions inferred within one another
_MOST_VALUES = 12
_MOST_INFERRED = 40_000  # expressions in frames; functions that call one another in many ways have endlessly many


class Inference(NameLookup):
    """Infers values. Results are cached, and depend only on the expression and the frame."""

    def __init__(self, modules: LocalModules) -> None:
        super().__init__(modules)
        self._known: dict[tuple[int, int], list[Value]] = {}
        self._known_items: dict[tuple[int, int, tuple[int, ...]], list[Value]] = {}
        self._pinned: list[object] = []  # objects whose ids are keys above; they must stay alive
        self._nested = 0

    def values(self, expression: ast.expr, frame: CallFrame) -> list[Value]:
        """Return what the expression may evaluate to. An empty list: unknown, or a value such as a number."""
        key = (id(expression), id(frame))
        if key in self._known:
            return self._known[key]
        if self._nested >= _MOST_NESTED or self.truncated:
            return []
        self._known[key] = []  # unknown if the expression depends on itself
        self._pinned += [expression, frame]
        self._nested += 1
        try:
            found = self._infer(expression, frame)[:_MOST_VALUES]
        finally:
            self._nested -= 1
        self._known[key] = found
        return found

    @property
    def truncated(self) -> bool:
        """True if so many expressions were inferred that further ones count as unknown."""
        return len(self._known) >= _MOST_INFERRED

    def of_all(self, arguments: Iterable[Argument]) -> list[Value]:
        """Return the values of several expressions."""
        return [value for expression, frame in arguments for value in self.values(expression, frame)]

    def _infer(self, node: ast.expr, frame: CallFrame) -> list[Value]:
        match node:
            case ast.Name():
                return self.name(node.id, frame)
            case ast.Attribute():
                return self.attribute(self.values(node.value, frame), node.attr, node, frame)
            case ast.Call():
                return self._call(node, frame)
            case ast.Subscript():
                return self._item(node, frame)
            case ast.Lambda():
                return [self.function(node, frame.scope.module, frame)]
            case ast.IfExp():
                return self.of_all([(node.body, frame), (node.orelse, frame)])
            case ast.BoolOp():
                return self.of_all((each, frame) for each in node.values)
            case ast.BinOp(op=ast.Add()):  # joins two lists
                return [value for value in self.of_all([(node.left, frame), (node.right, frame)]) if isinstance(value, Items)]
            case ast.NamedExpr() | ast.Await() | ast.Starred():
                return self.values(node.value, frame)
        return self._written_out(node, frame)

    def _written_out(self, node: ast.expr, frame: CallFrame) -> list[Value]:
        match node:
            case ast.Tuple() | ast.List() | ast.Set():
                return [Items(tuple((each, frame) for each in node.elts))]
            case ast.Dict():
                keys = tuple(each.value if isinstance(each, ast.Constant) else None for each in node.keys)
                return [Items(tuple((each, frame) for each in node.values), keys)]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return [Items(((node.elt, frame),))]
            case ast.DictComp():
                return [Items(((node.value, frame),), (None,))]
        return []

    def bound(self, name: str, binding: Binding, frame: CallFrame) -> list[Value]:
        """Return what one binding gives to a name."""
        node = binding.node
        match binding.kind:
            case "function":
                return [self.function(cast(Function, node), frame.scope.module, frame)]
            case "class":
                return [LocalClass(cast(ast.ClassDef, node), frame)]
            case "import":
                return self.imported_value(name, node, frame)
            case "parameter":
                return self._parameter(name, cast(ast.arg, node), frame)
            case "assign" if binding.value is not None:
                return self.part(binding.value, frame, binding.path)
            case "with" if binding.value is not None:
                return self.entered(binding.value, frame, binding.path)
            case "for" | "comprehension" if binding.value is not None:
                return self.items(binding.value, frame, binding.path)
            case "augment" if binding.value is not None:  # `+=` of lists
                return [value for value in self.values(binding.value, frame) if isinstance(value, Items)]
            case "change" if binding.value is not None:
                return self.added(binding, frame)
        return []

    def entered(self, context: ast.expr, frame: CallFrame, path: tuple[int, ...]) -> list[Value]:
        """Return what `with CONTEXT as NAME` binds."""
        return [entered for value in self.part(context, frame, path) for entered in self._enter(value)]

    def _enter(self, value: Value) -> list[Value]:
        if isinstance(value, Generator):  # a function with the decorator contextmanager
            return self.of_all((each, value.frame) for each in value.function.scope.yields)
        return [value]

    def _parameter(self, name: str, node: ast.arg, frame: CallFrame) -> list[Value]:
        if self._is_instance_name(name, frame):
            return [cast(Value, frame.instance)]
        if name in frame.arguments:
            if f"*{name}" in frame.arguments:
                return [Items(tuple(frame.arguments[name]))]
            found = self.of_all(frame.arguments[name])
        else:
            default = default_of(frame.scope, name)
            found = self.values(default, self._defining(frame)) if default is not None else []
        if not found and node.annotation is not None:
            found = self._annotated(node.annotation, frame)
        return found

    def _defining(self, frame: CallFrame) -> CallFrame:
        if frame.closure is not None:
            return frame.closure
        return self.frame_without_caller(frame.scope.parent) if frame.scope.parent is not None else frame

    def _is_instance_name(self, name: str, frame: CallFrame) -> bool:
        scope = frame.scope
        if scope.owner is None or is_static(scope) or scope.parameters[:1] != [name] or name in frame.arguments:
            return False
        if frame.instance is None:
            frame.instance = LocalInstance(LocalClass(scope.owner, self._defining(frame)))
        return True

    def _annotated(self, annotation: ast.expr, frame: CallFrame) -> list[Value]:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except (SyntaxError, ValueError):
                return []
        found: list[Value] = []
        for value in self.values(annotation, self._defining(frame)):
            if isinstance(value, LocalClass):
                found.append(LocalInstance(value))
            elif isinstance(value, Outside) and not value.path.startswith(("builtins.", "typing.")):
                found.append(Outside(f"{value.path}()"))
        return found

    # Attributes, items, calls

    def attribute(self, owners: list[Value], name: str, node: ast.expr, frame: CallFrame) -> list[Value]:
        """Return what an attribute of one of `owners` may be."""
        found: list[Value] = []
        for owner in owners:
            match owner:
                case LocalModule():
                    found += self.module_member(owner.module, name)
                case LocalInstance():
                    found += self.instance_attribute(owner, name)
                case LocalClass():
                    found += self.class_attribute(owner, name)
                case Outside():
                    found.append(Outside(f"{owner.path}.{name}", owner.call, owner.frame))
                case LocalFunction() if name in ("__wrapped__", "__func__"):
                    found.append(owner)
                case Items() if name in ("values", "items", "copy"):
                    found.append(owner)
        return found

    def _item(self, node: ast.Subscript, frame: CallFrame) -> list[Value]:
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        found: list[Value] = []
        for owner in self.values(node.value, frame):
            match owner:
                case Items():
                    found += self._element(owner, index)
                case Outside():
                    found.append(Outside(f"{owner.path}[]", owner.call, owner.frame))
                case LocalInstance():
                    for method in self.methods(owner, "__getitem__"):
                        found += self._returned(method, self.frame_of(method, node, frame, ([], [])))
        return found

    def _element(self, items: Items, index: object) -> list[Value]:
        if items.keys:
            chosen = [each for each, key in zip(items.elements, items.keys, strict=True) if index is None or key in (None, index)]
            return self.of_all(chosen)
        if isinstance(index, int) and -len(items.elements) <= index < len(items.elements):
            return self.of_all([items.elements[index]])
        return self.of_all(items.elements)

    def _call(self, node: ast.Call, frame: CallFrame) -> list[Value]:
        found: list[Value] = []
        for called in self.called(node, frame):
            match called:
                case LocalFunction():
                    found += self._returned(called, self.call_frame(called, node, frame), node)
                case LocalClass():
                    found.append(LocalInstance(called, node, frame))
                case LocalInstance() | Items():  # a call that returns the object itself
                    found.append(called)
                case Outside():
                    found += self._foreign(called, node, frame)
        return found

    def called(self, node: ast.Call, frame: CallFrame) -> list[Value]:
        """Return what a call may call; instances are replaced by their method `__call__`."""
        found: list[Value] = []
        for value in self.values(node.func, frame):
            if not isinstance(value, LocalInstance):
                found.append(value)
            elif methods := self.methods(value, "__call__"):
                found += methods
            elif isinstance(node.func, ast.Attribute) and node.func.attr in SELF_RETURNING:
                found.append(value)
            else:
                found += [Outside(f"{base}().__call__") for base in self.foreign_bases(value.local_class)[:1]]
        return found

    def _foreign(self, called: Outside, node: ast.Call, frame: CallFrame) -> list[Value]:
        """Return the result of a foreign function."""
        path, arguments = called.path, [(each, frame) for each in node.args]
        match path:
            case "builtins.super":
                return self._super(frame)
            case "builtins.getattr" if len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
                return self.attribute(self.values(node.args[0], frame), str(node.args[1].value), node, frame)
            case "functools.partial" if arguments:
                return self._partial(node, frame)
            case "builtins.dict" if node.keywords:
                named = [(each.value, frame) for each in node.keywords]
                return [Items(tuple(named), tuple(each.arg for each in node.keywords))]
            case "builtins.next" if arguments:
                return self.items(node.args[0], frame, ())
        if path in TRANSPARENT and arguments:
            return self.of_all(arguments[1:] if path == "typing.cast" else arguments[:1]) or [Outside(f"{path}()", node, frame)]
        if path == "accelerate.Accelerator().prepare":
            return self._prepared(node, frame)
        functions = [value for value in self.of_all(arguments[:1]) if isinstance(value, LocalFunction)]
        if functions and path.startswith(("jax.", "torch.", "tensorflow.", "numba.")):
            return [*functions]
        return [Outside(f"{path}()", node, frame)]

    def _prepared(self, node: ast.Call, frame: CallFrame) -> list[Value]:
        arguments = tuple((each, frame) for each in node.args)
        return self.of_all(arguments) if len(arguments) == 1 else [Items(arguments)]

    def _super(self, frame: CallFrame) -> list[Value]:
        current: CallFrame | None = frame
        while current is not None and current.scope.owner is None:
            current = current.closure
        if current is None or not current.scope.parameters:
            return []
        self._is_instance_name(current.scope.parameters[0], current)
        if current.instance is None or current.scope.owner is None:
            return []
        own = current.instance
        return [LocalInstance(own.local_class, own.call, own.frame, LocalClass(current.scope.owner, self._defining(current)))]

    def _partial(self, node: ast.Call, frame: CallFrame) -> list[Value]:
        positional, named = arguments_of(node, frame)
        found: list[Value] = []
        for value in self.values(node.args[0], frame):
            if isinstance(value, LocalFunction):
                merged = (*value.arguments, *positional[1:])
                found.append(LocalFunction(value.scope, value.closure, value.instance, merged, (*value.keywords, *named)))
            else:
                found.append(value)
        return found

    def _returned(self, function: LocalFunction, frame: CallFrame, call: ast.Call | None = None) -> list[Value]:
        if function.scope.is_generator and call is not None:
            return [Generator(function, frame, call)]
        if frame.depth > MOST_DEPTH:
            return []
        return self.of_all((each, frame) for each in function.scope.returns)

    def part(self, value: ast.expr, frame: CallFrame, path: tuple[int, ...]) -> list[Value]:
        """Return the item at `path` of a value, as an unpacking assignment takes it."""
        if not path:
            return self.values(value, frame)
        if isinstance(value, ast.Tuple | ast.List) and path[0] < len(value.elts):
            return self.part(value.elts[path[0]], frame, path[1:])
        found: list[Value] = []
        for each in self.values(value, frame):
            match each:
                case Items(keys=()) if path[0] < len(each.elements):
                    found += self.part(*each.elements[path[0]], path[1:])
                case Outside():
                    found.append(Outside(each.path + "[]" * len(path), each.call, each.frame))
        return found

    def items(self, iterable: ast.expr, frame: CallFrame, path: tuple[int, ...]) -> list[Value]:
        """Return what the item at `path` of each value that `iterable` yields may be."""
        key = (id(iterable), id(frame), path)
        if key not in self._known_items:
            self._known_items[key] = []  # as in `values`: a loop may make a list from itself
            self._pinned += [iterable, frame]
            self._known_items[key] = self._items(iterable, frame, path)[:_MOST_VALUES]
        return self._known_items[key]

    def _items(self, iterable: ast.expr, frame: CallFrame, path: tuple[int, ...]) -> list[Value]:
        found: list[Value] = []
        for value in self.values(iterable, frame):
            match value:
                case Items():
                    for element in value.elements:
                        found += self.part(*element, path if not value.keys else path[1:])
                case Generator():
                    for each in value.function.scope.yields:
                        found += self.part(each, value.frame, path)
                case Outside():
                    found += self._foreign_items(value, path)
                case LocalInstance():
                    for method in self.methods(value, "__iter__"):
                        inner = self.frame_of(method, None, None, ([], []))
                        for each in method.scope.yields:
                            found += self.part(each, inner, path)
        return found

    def _foreign_items(self, value: Outside, path: tuple[int, ...]) -> list[Value]:
        name = value.path.removesuffix("()")
        if value.call is not None and value.frame is not None and value.path.endswith("()"):
            if name == ENUMERATE and path[:1] != (1,):
                return []
            if (inner := iterated(name, value.call, path)) is not None:
                return self.items(inner[0], value.frame, inner[1])
        return [Outside(value.path + "[]" * (1 + len(path)), value.call, value.frame)]
