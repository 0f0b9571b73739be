"""Binds the arguments of a call to the parameters of a function."""

import ast

from iotwin.workloads.detrain.source_analysis.scopes import FUNCTIONS, CodeScope
from iotwin.workloads.detrain.source_analysis.values import Argument, CallFrame, LocalFunction

Keywords = list[tuple[str, Argument]]


def arguments_of(call: ast.Call, frame: CallFrame) -> tuple[list[Argument], Keywords]:
    """Return the positional and the keyword arguments of a call, with `*` and `**` expanded as far as they are known."""
    positional: list[Argument] = []
    for each in call.args:
        positional += _starred(each.value, frame) if isinstance(each, ast.Starred) else [(each, frame)]
    named: Keywords = []
    for keyword in call.keywords:
        if keyword.arg is not None:
            named.append((keyword.arg, (keyword.value, frame)))
        elif isinstance(keyword.value, ast.Name):
            prefix = f"**{keyword.value.id}."
            named += [
                (name.removeprefix(prefix), each[0]) for name, each in frame.arguments.items() if name.startswith(prefix) and each
            ]
    return positional, named


def _starred(value: ast.expr, frame: CallFrame) -> list[Argument]:
    if isinstance(value, ast.Name):
        if value.id in frame.arguments and f"*{value.id}" in frame.arguments:
            return frame.arguments[f"*{value.id}"]
        assigned = [each.value for each in frame.scope.bindings.get(value.id, []) if each.kind == "assign"]
        if len(assigned) == 1 and isinstance(assigned[0], ast.Tuple | ast.List):
            return [(each, frame) for each in assigned[0].elts]
    return [(value, frame)]


def bound(function: LocalFunction, positional: list[Argument], named: Keywords) -> dict[str, list[Argument]]:
    """Return the arguments by the names of parameters. Those in `*args` and `**kwargs` are under `*args` and `**kwargs.NAME`."""
    node = function.scope.node
    if not isinstance(node, FUNCTIONS):
        return {}
    positional = [*function.arguments, *positional]
    names = function.scope.parameters[1 if takes_instance(function) else 0 :]
    found: dict[str, list[Argument]] = {name: [value] for name, value in zip(names, positional, strict=False)}
    if node.args.vararg is not None:
        rest = positional[len(names) :]
        found[node.args.vararg.arg] = found[f"*{node.args.vararg.arg}"] = rest
    known = {*names, *(each.arg for each in node.args.kwonlyargs)}
    for name, value in (*function.keywords, *named):
        if name in known:
            found[name] = [value]
        elif node.args.kwarg is not None:
            found.setdefault(node.args.kwarg.arg, []).append(value)
            found[f"**{node.args.kwarg.arg}.{name}"] = [value]
    return found


def takes_instance(function: LocalFunction) -> bool:
    """True if the first parameter is the object or class that the method is called on."""
    return function.instance is not None and function.scope.owner is not None and not is_static(function.scope)


def is_static(scope: CodeScope) -> bool:
    """True for a static method."""
    return has_decorator(scope, "staticmethod")


def has_decorator(scope: CodeScope, name: str) -> bool:
    """True if a decorator's last name is `name`."""
    decorators = scope.node.decorator_list if isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return any(ast.unparse(each).rpartition(".")[2] == name for each in decorators)


def default_of(scope: CodeScope, name: str) -> ast.expr | None:
    """Return the default value of a parameter, None if it has none."""
    if not isinstance(scope.node, FUNCTIONS):
        return None
    arguments = scope.node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(zip([each.arg for each in positional][::-1], arguments.defaults[::-1], strict=False))
    return {**defaults, **{a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d}}.get(name)
