"""Finds the variables that each iteration of a loop assigns before it reads them. Checkpoints do not need their values."""

import ast
from collections.abc import Iterable, Sequence

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_UNSEEN = {"locals", "vars", "globals", "exec", "eval", "dir"}  # calls that may read any variable


def dead_variables(loop: ast.For | ast.AsyncFor | ast.While, around: ast.AST) -> frozenset[str]:
    """Return the names that the loop's body assigns before it reads them. `around`: the function or module with the loop.

    A name that is also read outside of the body counts only if every path through the body assigns it first.
    """
    if _UNSEEN & {node.id for node in ast.walk(around) if isinstance(node, ast.Name)}:
        return frozenset()
    body = _Body()
    if not isinstance(loop, ast.While):
        body.assign(loop.target)
    body.run(loop.body)
    inside = {id(node) for each in loop.body for node in ast.walk(each)}
    outside = [node for node in ast.walk(around) if id(node) not in inside and node is not around]
    shared = {name for node in ast.walk(around) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    shared |= {name for node in outside if isinstance(node, _SCOPES) for name in _free(node)}
    elsewhere = {node.id for node in outside if isinstance(node, ast.Name) and _loads(node)}
    return frozenset((body.always | (body.assigned - elsewhere)) - body.read - shared)


class _Body:
    """The names that the statements read so far assign and read.

    * `assigned`: names that are certainly assigned when the current statement starts
    * `always`: those of `assigned` that were assigned before any statement that may leave the body
    * `read`: names that may have been read before they were assigned
    """

    def __init__(self) -> None:
        self.assigned, self.always, self.read = set[str](), set[str](), set[str]()
        self._may_have_left = False

    def assign(self, *targets: ast.AST | None) -> None:
        """Record the names in `targets` as assigned, and all other names in them, such as indices, as read."""
        for target in targets:
            if target is not None:
                self._read(target)
                self._store(
                    node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                )

    def _store(self, names: Iterable[str]) -> None:
        new = set(names)
        self.assigned |= new
        if not self._may_have_left:
            self.always |= new

    def run(self, statements: Sequence[ast.stmt]) -> None:
        for each in statements:
            self._statement(each)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            self._read(node.test)
            self._branches([node.body, node.orelse])
        elif isinstance(node, _LOOPS):
            self._read(node.test if isinstance(node, ast.While) else node.iter)
            inner = [] if isinstance(node, ast.While) else [ast.Assign([node.target], ast.Constant(None))]
            self._branches([[*inner, *node.body], []])
            self._branches([node.orelse, []])
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._read(item.context_expr)
                self.assign(item.optional_vars)
            self.run(node.body)
        elif isinstance(node, ast.Try):
            self._branches([[*node.body, *node.orelse], *(each.body for each in node.handlers)] if node.handlers else [node.body])
            self.run(node.finalbody)
        elif isinstance(node, ast.Match):
            self._read(node)
        else:
            self._simple(node)

    def _simple(self, node: ast.stmt) -> None:
        if isinstance(node, _LEAVES):
            self._may_have_left = True
        if isinstance(node, ast.Assign | ast.AnnAssign):
            self._read(node.value)
            self.assign(*(node.targets if isinstance(node, ast.Assign) else [node.target] if node.value else []))
        elif isinstance(node, ast.AugAssign):
            self._load(each.id for each in ast.walk(node.target) if isinstance(each, ast.Name))
            self._read(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._store((each.asname or each.name).partition(".")[0] for each in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._read(node)
            self._store([node.name])
        elif isinstance(node, ast.Delete):
            self._load(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        else:
            self._read(node)

    def _branches(self, branches: Sequence[Sequence[ast.stmt]]) -> None:
        """Record alternatives of which one runs. A name is assigned after them if all that end normally assign it."""
        before, ends = set(self.assigned), []
        for each in branches:
            self.assigned = set(before)
            self.run(each)
            if not (each and isinstance(each[-1], _LEAVES)):
                ends.append(self.assigned)
        self.assigned = set[str].intersection(*ends) if ends else before
        self.always &= self.assigned

    def _read(self, node: ast.AST | None) -> None:
        """Record the names of an expression as read unless they were assigned before, even names that the expression assigns."""
        if node is not None:
            self._load(each.id for each in ast.walk(node) if isinstance(each, ast.Name) and _loads(each))
            if not isinstance(node, _SCOPES):
                walrus = [each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)]
                self._load(walrus)

    def _load(self, names: Iterable[str]) -> None:
        self.read |= set(names) - self.assigned


def _free(scope: ast.AST) -> set[str]:
    """Return the names that a function or class reads but does not assign."""
    loads, bound = set[str](), set[str]()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            (loads if _loads(node) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        if isinstance(node, _SCOPES):
            loads.update(_free(node))
        else:
            for child in ast.iter_child_nodes(node):
                visit(child)

    for child in ast.iter_child_nodes(scope):
        visit(child)
    return loads if isinstance(scope, ast.ClassDef) else loads - bound


def _loads(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Store)
