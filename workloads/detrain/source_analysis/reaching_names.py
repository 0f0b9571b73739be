"""Names of functions that may lead to an update of weights, so that all other functions need not be followed."""

import ast
from collections.abc import Iterator

from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules, SourceModule
from iotwin.workloads.detrain.source_analysis.scopes import FUNCTIONS
from iotwin.workloads.detrain.source_analysis.sinks import ALWAYS, sink_names

_SINK, _ITEM = "<sink>", "[]"  # the call of a sink; an item of a container, or the result of a call, that is called
_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_METHODS, ast.ClassDef, ast.Import, ast.ImportFrom)
_CONTAINERS = (ast.Dict, ast.List, ast.Tuple, ast.Set)


class ReachingNames:
    """The names whose call may lead to a sink: of sinks, of functions that mention such a name, and so on.

    A function that is passed on has other names too: the parameters and variables that get it. The names may be too many.
    A parameter or local variable is written `=NAME`, an attribute `.NAME`, and what a function or class returns `NAME()`.
    """

    def __init__(self, modules: LocalModules) -> None:
        self._modules = modules
        self._names = {_SINK}
        self._facts: list[tuple[str, set[str]]] = []  # a name, and the names that lead to a sink by it
        # Likewise of variables, which count only if something calls them, or if they are just other names of a function:
        # else most values of a script would lead to a sink.
        self._variables: list[tuple[str, set[str]]] = []
        self._called = set[str]().union(*(module.called_words for module in modules.all()))
        self._passed: list[tuple[str, int, set[str]]] = []  # callee, position, argument
        self._parameters: dict[str, list[list[str]]] = {}  # of functions, methods and classes, by name
        self._locals: dict[ast.AST, set[str]] = {}
        self._mentions: dict[ast.AST, set[str]] = {}
        self._read: list[SourceModule] = []
        unread = modules.all()
        while True:
            words = {name.strip("=.()") for name in self._names}
            new = [each for each in unread if self._may_mention(each, words)]
            if not new:
                return
            unread = [each for each in unread if each not in new]
            for module in new:
                self._collect(module)
            self._read += new
            self._grow()

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

    def _may_mention(self, module: SourceModule, names: set[str]) -> bool:
        """Return whether the text of a module has one of the `names` that lead to a sink, so that the module must be parsed."""
        if not module.words.isdisjoint(names):
            return True
        sinks = sink_names(module, self._modules) & module.words
        return any(f".{name}(" in module.text for name in sinks)

    def _grow(self) -> None:
        """Add the names that the known ones lead to."""
        variables = [*self._variables, *(each for passed in self._passed for each in self._parameters_of(*passed))]
        size = 0
        chosen = [(name, by) for name, by in variables if name.strip("=.") in self._called or len(by) == 1]
        while size != len(self._names):
            size = len(self._names)
            self._names.update(name for name, by in (*self._facts, *chosen) if not self._names.isdisjoint(by))

    def _parameters_of(self, callee: str, position: int, argument: set[str]) -> Iterator[tuple[str, set[str]]]:
        """Yield the parameters of functions called `callee` that get an argument."""
        for names in self._parameters.get(callee, []):
            yield from ((f"={name}", argument) for name in names[position : position + 1])

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
            return f"={node.id}" if node.id in self._locals_around(node, module) else node.id
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        of_module = isinstance(root, ast.Name) and root.id in module.imported_names
        return node.attr if of_module else f".{node.attr}"

    def _locals_around(self, node: ast.AST, module: SourceModule) -> set[str]:
        """Return the parameters and variables of all functions around a node."""
        function = next((each for each in module.ancestors(node) if isinstance(each, FUNCTIONS)), None)
        if function is None:
            return set()
        if function not in self._locals:
            found = set(self._locals_around(function, module))
            for each in module.within(function):
                if isinstance(each, ast.arg):
                    found.add(each.arg)
                elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    found.add(each.id)
            self._locals[function] = found
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
                for index, each in enumerate(node.args):
                    self._passed.append((_last_name(node.func), index, self._values(each, module)))
                for keyword in node.keywords:
                    self._variables.append((f"={keyword.arg}", self._values(keyword.value, module)))
            elif isinstance(node, _CONTAINERS):
                self._add(_ITEM, self._values(node, module))
            else:
                for target, value in _assignments(node):
                    self._variables.append((self._reference(target, module), self._values(value, module)))

    def _add(self, name: str, by: set[str]) -> None:
        # Special methods are called by other names: that of the class, or of what holds the object. Calls of sinks count anyway.
        if name and not name.startswith(("__", ".__")) and name[1:] not in ALWAYS:
            self._facts.append((name, by))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, module: SourceModule) -> None:
        is_method = isinstance(module.parent(node), ast.ClassDef)
        self._add(f".{node.name}" if is_method else node.name, self._mentioned(node, module))
        self._parameters.setdefault(node.name, []).append(_parameters(node)[is_method:])
        for each in module.within(node):
            if isinstance(each, ast.Return) and each.value is not None:
                self._add(f"{node.name}()", self._values(each.value, module))

    def _class(self, node: ast.ClassDef, module: SourceModule) -> None:
        bases = {_last_name(base) for base in node.bases}
        self._add(node.name, bases)
        self._add(f"{node.name}()", {f"{base}()" for base in bases})
        for each in node.body:
            if isinstance(each, _METHODS) and each.name.startswith("__"):
                self._add(node.name, self._mentioned(each, module))
                if each.name == "__init__":
                    self._parameters.setdefault(node.name, []).append(_parameters(each)[1:])
                elif each.name == "__call__":
                    self._add(f"{node.name}()", self._mentioned(each, module))


def _assignments(node: ast.AST) -> Iterator[tuple[ast.Name | ast.Attribute, ast.expr]]:
    """Yield the names and attributes that an assignment sets, each with the whole value."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for each in ast.walk(target):
                if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
                    yield each, node.value


def _parameters(node: ast.AST) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args)] if isinstance(node, FUNCTIONS) else []


def _last_name(node: ast.AST) -> str:
    """Return the last name of a dotted name; "" for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
