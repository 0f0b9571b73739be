"""Scopes of Python code: which names a function or module binds, what it returns, and which calls its loops contain."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, cast

from iotwin.workloads.detrain.source_analysis.local_modules import SourceModule

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ForLoop = ast.For | ast.AsyncFor
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Loop = ForLoop | ast.While
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
FOR_LOOPS = (ast.For, ast.AsyncFor)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
ADDING_METHODS = {"append", "appendleft", "extend", "add", "update", "insert", "put"}  # methods of containers that add values

# How a name gets its value. "augment": by `+=`; "change": by a method or an item assignment that changes the object.
BindingKind = Literal["assign", "for", "comprehension", "with", "parameter", "import", "function", "class", "augment", "change"]


@dataclass(frozen=True, eq=False)
class Binding:
    """A statement that gives a name a value. `path`: the item of the value, as (1, 0) for y in `for x, (y, z) in ...`."""

    kind: BindingKind
    node: ast.AST
    value: ast.expr | None = None
    path: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class CallSite:
    """A call in a scope, the loops of this scope around it, outermost first, and whether a comprehension repeats it."""

    call: ast.Call
    loops: tuple[Loop, ...]
    repeated: bool


@dataclass(eq=False)
class CodeScope:
    """A function or a module. `parent`: the scope around it; `owner`: the class of a method."""

    node: Function | ast.Module
    module: SourceModule
    parent: "CodeScope | None" = None
    owner: ast.ClassDef | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    outer_names: set[str] = field(default_factory=set)  # declared global or nonlocal
    returns: list[ast.expr] = field(default_factory=list)
    yields: list[ast.expr] = field(default_factory=list)
    is_generator: bool = False
    sites: list[CallSite] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The qualified name within the module."""
        if isinstance(self.node, ast.Module):
            return ""
        own = "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name
        above = self.owner.name if self.owner else self.parent.name if self.parent else ""
        return f"{above}.{own}" if above else own

    @property
    def parameters(self) -> list[str]:
        """Names of the positional parameters."""
        if isinstance(self.node, ast.Module):
            return []
        return [each.arg for each in (*self.node.args.posonlyargs, *self.node.args.args)]


class Scopes:
    """Builds the scopes of all modules, each at its first use."""

    def __init__(self) -> None:
        self._scopes: dict[ast.AST, CodeScope] = {}

    def module(self, module: SourceModule) -> CodeScope:
        """Return the scope of a module's top level."""
        return self._built(module.tree, module, None, None)

    def function(self, node: Function, module: SourceModule) -> CodeScope:
        """Return the scope of a function of the module."""
        if node in self._scopes:
            return self._scopes[node]
        owner, parent = None, None
        below: ast.AST = node
        for above in module.ancestors(node):
            if isinstance(above, ast.ClassDef) and owner is None and parent is None and below is node:
                owner = above
            if isinstance(above, FUNCTIONS):
                parent = self.function(above, module)
                break
            below = above
        return self._built(node, module, parent or self.module(module), owner)

    def _built(
        self, node: Function | ast.Module, module: SourceModule, parent: CodeScope | None, owner: ast.ClassDef | None
    ) -> CodeScope:
        if node not in self._scopes:
            self._scopes[node] = scope = CodeScope(node, module, parent, owner)
            _ScopeBuilder(scope).build()
        return self._scopes[node]


def unpacked(target: ast.expr, path: tuple[int, ...] = ()) -> Iterator[tuple[ast.expr, tuple[int, ...]]]:
    """Yield the names, attributes and items that an assignment sets, each with its path into the value."""
    if isinstance(target, ast.Tuple | ast.List):
        for index, each in enumerate(target.elts):
            yield from unpacked(each, (*path, index))
    elif isinstance(target, ast.Starred):
        yield from unpacked(target.value, path)
    else:
        yield target, path


class _ScopeBuilder:
    """Fills a scope by one walk over its code, without the bodies of inner functions."""

    def __init__(self, scope: CodeScope) -> None:
        self._scope = scope

    def build(self) -> None:
        node = self._scope.node
        if isinstance(node, ast.Module):
            self._all(node.body, (), False)
            return
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if each is not None:
                self._bind(each.arg, Binding("parameter", each))
        if isinstance(node, ast.Lambda):
            self._scope.returns.append(node.body)
            self._visit(node.body, (), False)
        else:
            self._all(node.body, (), False)

    def _bind(self, name: str, binding: Binding) -> None:
        self._scope.bindings.setdefault(name, []).append(binding)

    def _targets(self, kind: BindingKind, target: ast.expr, value: ast.expr | None, node: ast.AST) -> None:
        for each, path in unpacked(target):
            if isinstance(each, ast.Name):
                self._bind(each.id, Binding(kind, node, value, path))
            elif isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name):
                self._bind(each.value.id, Binding("change", node, value))

    def _all(self, nodes: list[ast.stmt], loops: tuple[Loop, ...], repeated: bool) -> None:
        for each in nodes:
            self._visit(each, loops, repeated)

    def _visit(self, node: ast.AST, loops: tuple[Loop, ...], repeated: bool) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind(node.name, Binding("function", node))
                for each in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                    self._visit(each, loops, repeated)
            case ast.ClassDef():
                self._class(node, loops, repeated)
            case ast.Lambda():
                return
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node, loops, repeated)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node, loops, repeated)
            case ast.If():
                self._branches(node, loops, repeated)
            case _:
                self._note(node)
                for child in ast.iter_child_nodes(node):
                    self._visit(child, loops, repeated)
                if isinstance(node, ast.Call):
                    self._call(node, loops, repeated)

    def _class(self, node: ast.ClassDef, loops: tuple[Loop, ...], repeated: bool) -> None:
        self._bind(node.name, Binding("class", node))
        for each in (*node.decorator_list, *node.bases):
            self._visit(each, loops, repeated)
        own = self._scope.bindings
        self._scope.bindings = {}  # what a class body assigns are attributes of the class
        for statement in node.body:
            if not isinstance(statement, FUNCTIONS):
                self._visit(statement, loops, repeated)
        self._scope.bindings = own

    def _loop(self, node: Loop, loops: tuple[Loop, ...], repeated: bool) -> None:
        if isinstance(node, ast.While):
            self._visit(node.test, (*loops, node), repeated)
        else:
            self._visit(node.iter, loops, repeated)
            self._targets("for", node.target, node.iter, node)
        self._all(node.body, (*loops, node), repeated)
        self._all(node.orelse, loops, repeated)

    def _comprehension(self, node: Comprehension, loops: tuple[Loop, ...], repeated: bool) -> None:
        for index, each in enumerate(node.generators):
            self._visit(each.iter, loops, repeated or index > 0)
            self._targets("comprehension", each.target, each.iter, node)
            for condition in each.ifs:
                self._visit(condition, loops, True)
        for value in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self._visit(value, loops, True)

    def _branches(self, node: ast.If, loops: tuple[Loop, ...], repeated: bool) -> None:
        self._visit(node.test, loops, repeated)
        runs = _known_test(node.test, self._scope.module.is_entry)
        if runs is not False:
            self._all(node.body, loops, repeated)
        if runs is not True:
            self._all(node.orelse, loops, repeated)

    def _call(self, node: ast.Call, loops: tuple[Loop, ...], repeated: bool) -> None:
        self._scope.sites.append(CallSite(node, loops, repeated))
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in ADDING_METHODS:
                for each in node.args:
                    self._bind(name, Binding("change", node, each))

    def _note(self, node: ast.AST) -> None:
        """Record what a simple statement or expression binds, returns or imports."""
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._targets("assign", target, node.value, node)
            case ast.AnnAssign(value=ast.expr()) | ast.NamedExpr():
                self._targets("assign", node.target, node.value, node)
            case ast.AugAssign():
                self._targets("augment", node.target, node.value, node)
            case ast.withitem(optional_vars=ast.expr()):
                self._targets("with", cast(ast.expr, node.optional_vars), node.context_expr, node)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
                    self._bind(name, Binding("import", node, ast.Constant(alias.name if alias.asname else name)))
            case ast.Global() | ast.Nonlocal():
                self._scope.outer_names.update(node.names)
            case ast.Return(value=ast.expr()):
                self._scope.returns.append(cast(ast.expr, node.value))
            case ast.Yield() | ast.YieldFrom():
                self._scope.is_generator = True
                if node.value is not None:
                    self._scope.yields.append(node.value)


def _known_test(test: ast.expr, is_entry: bool) -> bool | None:
    """Return whether the test of an `if` holds, as far as its text shows it; else None."""
    match test:
        case ast.Constant():
            return bool(test.value)
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return is_entry
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
    return None
