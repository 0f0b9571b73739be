"""Names of functions that may lead to an update of weights, so that all other functions need not be followed."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules, SourceModule
from iotwin.workloads.detrain.source_analysis.scopes import FUNCTIONS
from iotwin.workloads.detrain.source_analysis.sinks import ALWAYS, sink_names

_FUNCTIONS = {"train_on_batch"}  # sinks that may be functions
_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONTAINERS = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.IfExp, ast.BoolOp)


@dataclass
class Mentions:
    """Names that some code calls or passes on.

    * `functions`: by name, or as a member of a module
    * `variables`: parameters and local variables
    * `methods`: attributes of objects
    * `makers`: what is called to make a value
    * `sink`: whether a sink is called
    * `items`: whether an item of a container, or the result of a call, is called
    """

    functions: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    makers: set[str] = field(default_factory=set)
    sink: bool = False
    items: bool = False


@dataclass
class _Facts:
    """What the modules define and pass on."""

    bodies: list[tuple[str, bool, Mentions]] = field(default_factory=list)  # name, whether it is a method's, what it mentions
    assigned: list[tuple[str, bool, Mentions]] = field(default_factory=list)  # target, whether it is an attribute, value
    passed: list[tuple[str, int | str, Mentions]] = field(default_factory=list)  # callee, position or keyword, argument
    returned: list[tuple[str, Mentions]] = field(default_factory=list)  # function, what it returns
    parameters: dict[str, list[list[str]]] = field(default_factory=dict)  # of functions, methods and classes, by name


class ReachingNames:
    """The names whose call may lead to a sink: of sinks, of functions that mention such a name, and so on.

    A function that is passed on has other names too: the parameters and variables that get it. The names may be too many.
    """

    def __init__(self, modules: LocalModules) -> None:
        self._modules = modules
        self._functions: set[str] = set()  # and classes
        self._variables: set[str] = set()  # parameters and variables that may be such a function
        self._methods: set[str] = set()
        self._makers: set[str] = set()  # functions and classes that return such a function, or an object that is called
        self._called = set[str]().union(*(module.called_words for module in modules.all()))
        self._items = False  # some are items of lists or dicts
        self._facts = _Facts()
        self._mentions: dict[ast.AST, Mentions] = {}
        self._readers: dict[SourceModule, _MentionReader] = {}
        self._read: list[SourceModule] = []
        unread = modules.all()
        while True:
            new = [module for module in unread if self._may_mention(module)]
            for module in new:
                _Collector(module, self._reader(module), self._facts).collect()
            self._read += new
            unread = [module for module in unread if module not in new]
            if not self._grow() and not new:
                return

    def reached_by(self, node: ast.AST, module: SourceModule) -> bool:
        """Return whether the code of a function of a module may lead to a sink."""
        if node not in self._mentions:
            self._mentions[node] = self._reader(module).of(node)
        return self._are_in(self._mentions[node])

    def _reader(self, module: SourceModule) -> "_MentionReader":
        if module not in self._readers:
            self._readers[module] = _MentionReader(module, sink_names(module, self._modules))
        return self._readers[module]

    def run_at_import(self) -> list[SourceModule]:
        """Return the modules, besides the script, whose top level may lead to a sink."""
        found = []
        for module in self._read:
            top = [
                each for each in module.tree.body if not isinstance(each, (*_METHODS, ast.ClassDef, ast.Import, ast.ImportFrom))
            ]
            if not module.is_entry and any(self.reached_by(each, module) for each in top):
                found.append(module)
        return found

    def _may_mention(self, module: SourceModule) -> bool:
        if not module.words.isdisjoint(self._functions | self._variables | self._methods | self._makers):
            return True
        sinks = sink_names(module, self._modules) & module.words
        return any(f".{name}(" in module.text for name in sinks) or bool(_FUNCTIONS & sinks)

    def _are_in(self, mentions: Mentions) -> bool:
        return (
            mentions.sink
            or not self._functions.isdisjoint(mentions.functions)
            or not self._variables.isdisjoint(mentions.functions | mentions.variables)
            or not self._methods.isdisjoint(mentions.methods)
            or (self._items and mentions.items)
        )

    def _is_function(self, value: Mentions) -> bool:
        """Return whether a value may be a function that leads to a sink."""
        return self._are_in(value) or not self._makers.isdisjoint(value.makers)

    def _size(self) -> tuple[int, ...]:
        return len(self._functions), len(self._variables), len(self._methods), len(self._makers), self._items

    def _grow(self) -> bool:
        """Add the names that the known ones lead to. Return whether there was any."""
        before = size = self._size()
        self._find_called()
        while True:
            for name, is_method, mentions in self._facts.bodies:
                names = self._methods if is_method else self._functions
                if name not in names and self._are_in(mentions):
                    self._add(name, names)
            for name, is_attribute, value in self._facts.assigned:
                names = self._methods if is_attribute else self._variables
                if name in self._called and name not in names and self._is_function(value):
                    self._add(name, names)
            for name, value in self._facts.returned:
                if name not in self._makers and self._is_function(value):
                    self._makers.add(name)
            for callee, position, argument in self._facts.passed:
                if self._is_function(argument):
                    self._pass(callee, position)
            if size == self._size():
                return size != before
            size = self._size()

    def _add(self, name: str, names: set[str]) -> None:
        # Special methods are called by other names: that of the class, or of what holds the object. Calls of sinks count anyway.
        if not name.startswith("__") and not (names is self._methods and name in ALWAYS):
            names.add(name)

    def _pass(self, callee: str, position: int | str) -> None:
        if callee == "":
            self._items = True
        else:
            self._variables |= self._called.intersection(self._parameters(callee, position))

    def _parameters(self, callee: str, position: int | str) -> set[str]:
        """Return the names of the parameters of functions called `callee` that an argument goes to."""
        if isinstance(position, str):
            return {position}
        return {name for names in self._facts.parameters.get(callee, []) for name in names[position : position + 1]}

    def _find_called(self) -> None:
        """Add the names of variables whose value some code calls, perhaps after it was passed on or assigned."""
        grown = -1
        while grown != len(self._called):
            grown = len(self._called)
            for name, _, value in self._facts.assigned:
                if name in self._called:
                    self._called |= value.functions | value.variables | value.methods
            for callee, position, argument in self._facts.passed:
                if not self._called.isdisjoint(self._parameters(callee, position)):
                    self._called |= argument.functions | argument.variables | argument.methods


class _MentionReader:
    """Finds the mentions in code of a module."""

    def __init__(self, module: SourceModule, sinks: set[str]) -> None:
        imports = [node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self._imported = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
        self._module, self._sinks = module, sinks
        self._locals: dict[ast.AST, set[str]] = {}

    def of(self, node: ast.AST) -> Mentions:
        """Return what the code at `node` mentions."""
        found = Mentions()
        nodes = self._module.within(node)
        names = self._locals_around(node) | _bound(nodes)
        for each in nodes:
            if isinstance(each, ast.Call):
                self._call(each, found, names)
            for value in _passed_on(each):
                self._add(value, found, names)
        return found

    def value(self, node: ast.AST) -> Mentions:
        """Return what functions the value of an expression may be."""
        found = Mentions()
        names = self._locals_around(node)
        if isinstance(node, ast.Lambda):
            return self.of(node)
        if isinstance(node, ast.Call):
            found.makers.add(_last_name(node.func))
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                self._add(each, found, names)
        for part in ast.iter_child_nodes(node) if isinstance(node, _CONTAINERS) else [node]:
            self._add(part, found, names)
        return found

    def _locals_around(self, node: ast.AST) -> set[str]:
        """Return the parameters and variables of all functions around a node."""
        function = next((each for each in self._module.ancestors(node) if isinstance(each, FUNCTIONS)), None)
        if function is None:
            return set()
        if function not in self._locals:
            self._locals[function] = _bound(self._module.within(function)) | self._locals_around(function)
        return self._locals[function]

    def _call(self, call: ast.Call, found: Mentions, names: set[str]) -> None:
        name = _last_name(call.func)
        found.sink |= name in self._sinks and (isinstance(call.func, ast.Attribute) or name in _FUNCTIONS)
        found.items |= not name
        self._add(call.func, found, names)

    def _add(self, node: ast.AST, found: Mentions, names: set[str]) -> None:
        if isinstance(node, ast.Name):
            (found.variables if node.id in names else found.functions).add(node.id)
        elif isinstance(node, ast.Attribute):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            of_module = isinstance(root, ast.Name) and root.id in self._imported
            (found.functions if of_module else found.methods).add(node.attr)
        elif isinstance(node, ast.Subscript):
            found.items = True


class _Collector:
    """Adds what a module defines and passes on to the facts."""

    def __init__(self, module: SourceModule, reader: _MentionReader, facts: _Facts) -> None:
        self._module, self._reader, self._facts = module, reader, facts

    def collect(self) -> None:
        """Read the module."""
        facts = self._facts
        for node in self._module.nodes:
            if isinstance(node, _METHODS):
                self._function(node)
            elif isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                self._assignment(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    if alias.asname:
                        original = alias.name.rpartition(".")[2]
                        facts.assigned.append((alias.asname, False, Mentions(functions={original})))
                        facts.returned.append((alias.asname, Mentions(makers={original})))
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Dict | ast.List | ast.Tuple):
                facts.passed.append(("", 0, self._reader.value(node)))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        is_method = isinstance(self._module.parent(node), ast.ClassDef)
        self._facts.bodies.append((node.name, is_method, self._reader.of(node)))
        self._parameters(node.name, node, 1 if is_method else 0)
        for each in self._module.within(node):
            if isinstance(each, ast.Return) and each.value is not None:
                self._facts.returned.append((node.name, self._reader.value(each.value)))

    def _class(self, node: ast.ClassDef) -> None:
        for each in node.body:
            if isinstance(each, _METHODS) and each.name.startswith("__"):
                mentions = self._reader.of(each)
                self._facts.bodies.append((node.name, False, mentions))
                if each.name == "__init__":
                    self._parameters(node.name, each, 1)
                elif each.name == "__call__":
                    self._facts.returned.append((node.name, mentions))
        bases = Mentions(functions={_last_name(base) for base in node.bases}, makers={_last_name(base) for base in node.bases})
        self._facts.returned.append((node.name, Mentions(makers=bases.makers)))
        self._facts.bodies.append((node.name, False, Mentions(functions=bases.functions)))

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> None:
        if node.value is None or isinstance(node.value, ast.Constant):
            return
        value = self._reader.value(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for each in ast.walk(target):
                if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
                    self._facts.assigned.append((_last_name(each), isinstance(each, ast.Attribute), value))

    def _call(self, node: ast.Call) -> None:
        callee = _last_name(node.func)
        for index, each in enumerate(node.args):
            self._facts.passed.append((callee or "()", index, self._reader.value(each)))
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._facts.passed.append((callee or "()", keyword.arg, self._reader.value(keyword.value)))

    def _parameters(self, name: str, node: ast.AST, skipped: int) -> None:
        if isinstance(node, FUNCTIONS):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
            self._facts.parameters.setdefault(name, []).append(names[skipped:])


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the parameters and variables among nodes."""
    found = set()
    for each in nodes:
        if isinstance(each, ast.arg):
            found.add(each.arg)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
    return found


def _passed_on(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that a node passes to a call, assigns, returns or stores."""
    match node:
        case ast.Call():
            yield from node.args
            yield from (keyword.value for keyword in node.keywords)
        case ast.Assign() | ast.AnnAssign() | ast.Return() | ast.keyword() | ast.NamedExpr():
            if node.value is not None:
                yield node.value
        case ast.List() | ast.Tuple() | ast.Set():
            yield from node.elts
        case ast.Dict():
            yield from node.values
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield from node.decorator_list


def _last_name(node: ast.AST) -> str:
    """Return the last name of a dotted name; "" for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
