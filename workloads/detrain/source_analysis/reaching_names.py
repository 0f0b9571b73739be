"""Names whose call may lead to an update of weights, so that all other functions need not be followed."""

import ast

from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules
from iotwin.workloads.detrain.source_analysis.scopes import FUNCTIONS
from iotwin.workloads.detrain.source_analysis.sinks import SINK_NAMES

_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)


def mentioned(node: ast.AST) -> set[str]:
    """Return all names and attribute names in the code of a function, module or class."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.ImportFrom):
            found |= {alias.name for alias in each.names}
    return found


def reaching_names(modules: LocalModules) -> set[str]:
    """Return the names of sinks, of functions that mention such a name, and so on.

    A function that is passed on has other names too: those of parameters and assigned variables that are called. Objects that are
    called like functions make their `__call__` reach whatever calls anything. The result may have too many names, never too few.
    """
    bodies: list[tuple[str, set[str]]] = []
    aliases: set[str] = set()
    called: set[str] = set()
    passed: set[str] = set()
    for module in modules.all():
        for node in module.nodes:
            if isinstance(node, _METHODS):
                bodies.append((node.name, mentioned(node)))
            elif isinstance(node, ast.ClassDef):
                implicit = [each for each in node.body if isinstance(each, _METHODS) and each.name.startswith("__")]
                bodies.append((node.name, {name for each in implicit for name in mentioned(each)}))
            elif isinstance(node, ast.Lambda):
                bodies.append(("", mentioned(node)))  # `_last_name` gives a lambda that is passed on the same name
            aliases |= _bound(node)
            if isinstance(node, ast.Call):
                called |= {_last_name(node.func)}
                passed |= {_last_name(each) for each in (*node.args, *(keyword.value for keyword in node.keywords))}
            elif isinstance(node, ast.Assign | ast.Return | ast.Dict | ast.List | ast.Tuple):
                passed |= {_last_name(each) for each in ast.iter_child_nodes(node)}
    return _closed(bodies, passed, aliases & called)


def _closed(bodies: list[tuple[str, set[str]]], passed: set[str], aliases: set[str]) -> set[str]:
    found, grown = set(SINK_NAMES), True
    while grown:
        new = {name for name, names in bodies if name not in found and names & found}
        if "__call__" in new:
            return found.union(*(names for _, names in bodies), (name for name, _ in bodies))
        if (found | new) & passed - SINK_NAMES and not aliases <= found:
            new |= aliases
        grown = bool(new)
        found |= new
    return found


def _bound(node: ast.AST) -> set[str]:
    """Return the names of parameters, and the names that an assignment or a loop binds."""
    if isinstance(node, FUNCTIONS):
        arguments = node.args
        return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return {_last_name(node)}
    return set()


def _last_name(node: ast.AST) -> str:
    """Return the last name of a dotted name; "" for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
