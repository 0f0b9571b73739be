"""Names of functions that may lead to an update of weights, so that all other functions need not be followed."""

import ast
import re
from collections.abc import Iterator

from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules, SourceModule
from iotwin.workloads.detrain.source_analysis.scopes import FUNCTIONS
from iotwin.workloads.detrain.source_analysis.sinks import ALWAYS, sink_names

_CALLED_BACKWARD = re.compile(r"\((\w+)")  # in a reversed text, where it is found ten times as fast as forward
_SINK, _ITEM = "<sink>", "[]"  # the call of a sink; an item of a container, or the result of a call, that is called
_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_METHODS, ast.ClassDef, ast.Import, ast.ImportFrom)
_CONTAINERS = (ast.Dict, ast.List, ast.Tuple, ast.Set)
_ADDERS = ("append", "add", "insert", "dict")  # calls that put their arguments into a container


class ReachingNames:
    """The names whose call may lead to a sink: names of sinks, of functions that mention a sink's name, and so on.

    A function that is passed on has other names too: the parameters and variables that get it. It may add too many names.
    A parameter or local variable is written `=NAME@N`, where N stands for its function: functions use the same names for
    different values. An attribute is written `.NAME`, a returned value `NAME()`. The items of all containers
    have one name, so that too many functions may lead to a sink, but none is missed.
    """

    def __init__(self, modules: LocalModules) -> None:
        self._modules = modules
        self._names = {_SINK}
        self._facts: list[tuple[str, set[str]]] = []  # (name, the names that lead to a sink if this name does)
        # The same for variables. They count only if something calls them, or if they are just other names of a function.
        # Otherwise most values of a script would lead to a sink.
        self._variables: list[tuple[str, set[str]]] = []
        self._called = set[str]()  # local variables
        found = (word for module in modules.all() for word in _CALLED_BACKWARD.findall(module.text[::-1]))
        self._called_words = {word[::-1] for word in found}
        self._passed: list[tuple[str, int | str, set[str]]] = []  # callee, position or keyword, argument
        # By name of a function, method or class: its positional parameters, and all its variables as in `_locals`.
        self._parameters: dict[str, list[tuple[list[str], dict[str, str]]]] = {}
        self._locals: dict[ast.AST, dict[str, str]] = {}  # how the variables of a function are written here
        self._mentions: dict[ast.AST, set[str]] = {}
        self._read: list[SourceModule] = []
        unread = modules.all()
        new = [each for each in unread if self._may_call_sinks(each)]
        while new:
            unread = [each for each in unread if each not in new]
            for module in new:
                self._collect(module)
            self._read += new
            self._grow()
            # No other module can mention a local variable.
            words = {name.removesuffix("()") for name in self._names if name[0] != "="}
            new = [each for each in unread if not each.foreign_words.isdisjoint(words)]

    def reached_by(self, node: ast.AST, module: SourceModule) -> bool:
        """Return whether the code of a function of a module may lead to a sink."""
        return not self._names.isdisjoint(self._mentioned(node, module))

    def run_at_import(self) -> list[SourceModule]:
        """Return the modules, besides the script, whose top level may lead to a sink."""
        return [
            module
            for module in self._read
            if not module.is_entry
            and any(self.reached_by(each, module) for each in module.tree.body if not isinstance(each, _DEFINITIONS))
        ]

    def _may_call_sinks(self, module: SourceModule) -> bool:
        return any(f".{name}(" in module.text for name in sink_names(module, self._modules))

    def _grow(self) -> None:
        """Add the names whose use leads to known names, and repeat this until no name is added."""
        passed = (each for passed in self._passed for each in self._parameters_of(*passed))
        leads: dict[str, list[tuple[str, bool]]] = {}  # by name: (what its use leads to; True: only if that is called)
        for name, by in self._facts:
            for each in by:
                leads.setdefault(each, []).append((name, False))
        for name, by in (*self._variables, *passed):
            for each in by:
                leads.setdefault(each, []).append((name, len(by) > 1))
        left = list(self._names)
        while left:
            for name, must_be_called in leads.get(left.pop(), ()):
                if name not in self._names and not (must_be_called and not self._is_called(name)):
                    self._names.add(name)
                    left.append(name)

    def _is_called(self, variable: str) -> bool:
        """Return whether code calls a variable, or an attribute or global variable of this name."""
        return variable in self._called if variable[0] == "=" else variable.strip(".") in self._called_words

    def _parameters_of(self, callee: str, at: int | str, argument: set[str]) -> Iterator[tuple[str, set[str]]]:
        """Yield the parameters of functions called `callee` that get an argument."""
        for positional, keys in self._parameters.get(callee, ()):
            name = at if isinstance(at, str) else positional[at] if at < len(positional) else ""
            if name in keys:
                yield keys[name], argument

    def _mentioned(self, node: ast.AST, module: SourceModule) -> set[str]:
        """Return the names that the code at `node` reads."""
        if node not in self._mentions:
            found, sinks = set[str](), sink_names(module, self._modules)
            for each in module.within(node):
                if isinstance(each, ast.Call):
                    name = _last_name(each.func)
                    if name in sinks and isinstance(each.func, ast.Attribute):
                        found.add(_SINK)
                    if not name:
                        found.add(_ITEM)
                elif isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load):
                    found.add(self._reference(each, module))
            self._mentions[node] = found
        return self._mentions[node]

    def _reference(self, node: ast.Name | ast.Attribute, module: SourceModule) -> str:
        if isinstance(node, ast.Name):
            return self._locals_around(node, module).get(node.id, node.id)
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        of_module = isinstance(root, ast.Name) and root.id in module.imported_names
        return node.attr if of_module else f".{node.attr}"

    def _locals_around(self, node: ast.AST, module: SourceModule) -> dict[str, str]:
        """Return how the parameters and variables of all functions around a node are written."""
        function = next((each for each in module.ancestors(node) if isinstance(each, FUNCTIONS)), None)
        return {} if function is None else self._locals_of(function, module)

    def _locals_of(self, function: ast.AST, module: SourceModule) -> dict[str, str]:
        """Return how the parameters and variables that a function can read are written."""
        if function not in self._locals:
            own, outer = set[str](), set[str]()
            for each in module.within(function):
                if isinstance(each, ast.arg):
                    own.add(each.arg)
                elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    own.add(each.id)
                elif isinstance(each, ast.Nonlocal | ast.Global):
                    outer.update(each.names)
            keys = {name: f"={name}@{len(self._locals)}" for name in own - outer}
            self._locals[function] = keys
            self._locals[function] = self._locals_around(function, module) | keys
        return self._locals[function]

    def _values(self, node: ast.AST, module: SourceModule) -> set[str]:
        """Return the names of the functions that the value of an expression may be or hold."""
        match node:
            case ast.Lambda():
                return self._mentioned(node, module)
            case ast.Name() | ast.Attribute():
                return {self._reference(node, module)}
            case ast.Subscript():
                return {_ITEM}
            case ast.Call(args=[function, *_]) if _last_name(node.func) == "partial":
                return self._values(function, module)
            case ast.Call():
                parts: list[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
                return {f"{_last_name(node.func)}()"}.union(*(self._values(each, module) for each in parts))
            case ast.Dict() | ast.List() | ast.Tuple() | ast.Set() | ast.IfExp() | ast.BoolOp():
                return set[str]().union(*(self._values(each, module) for each in ast.iter_child_nodes(node)))
        return set()

    def _collect(self, module: SourceModule) -> None:
        """Add to `_facts`, `_passed` and `_variables` what a module defines, imports, assigns and passes as arguments."""
        for node in module.nodes:
            if isinstance(node, _METHODS):
                self._function(node, module)
            elif isinstance(node, ast.ClassDef):
                self._class(node, module)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    original = alias.name.rpartition(".")[2]
                    self._add(alias.asname or original, {original})
                    self._add(f"{alias.asname or original}()", {f"{original}()"})
            elif isinstance(node, ast.Call):
                self._call(node, module)
            elif isinstance(node, _CONTAINERS):
                self._add(_ITEM, self._values(node, module))
            else:
                for target, value in _assignments(node):
                    self._variables.append((self._reference(target, module), self._values(value, module)))
                for target in _loop_variables(node, module):
                    self._variables.append((self._reference(target, module), {_ITEM}))
                if isinstance(node, ast.Assign) and any(isinstance(each, ast.Subscript) for each in node.targets):
                    self._add(_ITEM, self._values(node.value, module))

    def _add(self, name: str, by: set[str]) -> None:
        # Special methods are called by other names: that of the class, or of what holds the object. Calls of sinks count anyway.
        if name and not name.startswith(("__", ".__")) and name[1:] not in ALWAYS:
            self._facts.append((name, by))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, module: SourceModule) -> None:
        is_method = isinstance(module.parent(node), ast.ClassDef)
        self._add(f".{node.name}" if is_method else node.name, self._mentioned(node, module))
        self._add_parameters(node.name, node, is_method, module)
        for each in module.within(node):
            if isinstance(each, ast.Return) and each.value is not None:
                self._add(f"{node.name}()", self._values(each.value, module))

    def _call(self, node: ast.Call, module: SourceModule) -> None:
        function, *given = [node.func, *node.args]
        if isinstance(function, ast.Name):
            self._called.add(self._reference(function, module))
        if _last_name(function) == "partial" and given:
            function, *given = given
        arguments: list[tuple[int | str, ast.expr]] = [
            *enumerate(given),
            *((keyword.arg or "", keyword.value) for keyword in node.keywords),
        ]
        values = [(at, self._values(each, module)) for at, each in arguments]
        self._passed += [(_last_name(function), at, names) for at, names in values if names]
        if _last_name(function) in _ADDERS:
            self._add(_ITEM, set[str]().union(*(names for _, names in values)))

    def _add_parameters(
        self, name: str, node: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool, module: SourceModule
    ) -> None:
        positional = [each.arg for each in (*node.args.posonlyargs, *node.args.args)][is_method:]
        self._parameters.setdefault(name, []).append((positional, self._locals_of(node, module)))

    def _class(self, node: ast.ClassDef, module: SourceModule) -> None:
        bases = {_last_name(base) for base in node.bases}
        self._add(node.name, bases)
        self._add(f"{node.name}()", {f"{base}()" for base in bases})
        for each in node.body:
            if isinstance(each, _METHODS) and each.name.startswith("__"):
                self._add(node.name, self._mentioned(each, module))
                if each.name == "__init__":
                    self._add_parameters(node.name, each, True, module)
                elif each.name == "__call__":
                    self._add(f"{node.name}()", self._mentioned(each, module))


def _loop_variables(node: ast.AST, module: SourceModule) -> Iterator[ast.Name]:
    """Yield the variables that a loop or comprehension sets to items of a container, and calls or passes on."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        body = (isinstance(node, ast.comprehension) and module.parent(node)) or node
        calls = [each for each in ast.walk(body) if isinstance(each, ast.Call)]
        parts = [part for each in calls for part in (each.func, *each.args, *(word.value for word in each.keywords))]
        used = {part.id for part in parts if isinstance(part, ast.Name)}
        yield from (each for each in _stored(node.target) if isinstance(each, ast.Name) and each.id in used)


def _stored(target: ast.AST) -> list[ast.Name | ast.Attribute]:
    """Return the names and attributes that `target` sets."""
    return [each for each in ast.walk(target) if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store)]


def _assignments(node: ast.AST) -> Iterator[tuple[ast.Name | ast.Attribute, ast.expr]]:
    """Yield the names and attributes that an assignment sets, each with the whole value."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for each in _stored(target):
                yield each, node.value


def _last_name(node: ast.AST) -> str:
    """Return the last name of a dotted name; "" for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
