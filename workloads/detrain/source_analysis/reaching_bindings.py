"""Finds the assignments from which a name may have its value at a certain use."""

import ast

from iotwin.workloads.detrain.source_analysis.local_modules import SourceModule
from iotwin.workloads.detrain.source_analysis.scopes import COMPREHENSIONS, FOR_LOOPS, Binding


def reaching(use: ast.AST, bindings: list[Binding], module: SourceModule) -> list[Binding]:
    """Return the bindings that may determine the used value, back to the last one that certainly runs before the use."""
    place = _place(module.statement(use))
    own = [each for each in bindings if each.kind == "comprehension" and _is_within(use, each.node, module)]
    if own:
        return own
    before = sorted((each for each in bindings if _place(each.node) < place and each.kind != "comprehension"), key=_order)
    changes = [each for each in bindings if each.kind == "change"]
    found: list[Binding] = []
    for each in reversed(before):
        if each.kind == "change":
            continue
        found.append(each)
        if dominates(each, use, module):
            return found + changes
    later = [each for each in bindings if each not in before and each.kind not in ("comprehension", "change")]
    return found + later + changes


def dominates(binding: Binding, use: ast.AST, module: SourceModule) -> bool:
    """Return whether a binding runs before each use: the binding's block is that of the use, or contains it."""
    if binding.kind in ("change", "augment"):
        return False
    around = {id(use), *(id(each) for each in module.ancestors(use))}
    if isinstance(binding.node, (*FOR_LOOPS, *COMPREHENSIONS, ast.withitem)):
        return id(binding.node) in around or isinstance(binding.node, ast.withitem)
    statement = module.statement(binding.node)
    block = module.parent(statement)
    if isinstance(block, ast.Try) and statement in block.body:
        block = module.parent(block)  # counts as always run: a `try` usually runs to its end
    return id(block) in around and _same_branch(statement, use, module)


def _place(node: ast.AST) -> tuple[int, int]:
    if isinstance(node, ast.withitem):
        node = node.context_expr
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _order(binding: Binding) -> tuple[int, int]:
    return _place(binding.node)


def _is_within(node: ast.AST, around: ast.AST, module: SourceModule) -> bool:
    return any(each is around for each in module.ancestors(node))


def _same_branch(statement: ast.stmt, use: ast.AST, module: SourceModule) -> bool:
    """Return False if the statement and the use are in different branches of an `if` or `try`."""
    block = module.parent(statement)
    if not isinstance(block, ast.If):
        return True
    below = use
    for above in module.ancestors(use):
        if above is block:
            return (statement in block.body) == (below in block.body)
        below = above
    return True
