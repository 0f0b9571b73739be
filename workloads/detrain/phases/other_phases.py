"""Finds the evaluations, saves and calls of Keras's `fit` in the source of a script."""

import ast
from collections.abc import Callable, Iterable, Iterator

from iotwin.workloads.detrain.rewrite import SESSION

_FROZEN = ("no_grad", "inference_mode")  # contexts and decorators of torch in which nothing is trained
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def label_evaluations(tree: ast.Module) -> list[int]:
    """Insert calls of the session into a module's loops that evaluate. Returns the lines of these loops.

    A loop evaluates if two conditions hold. It is within `torch.no_grad()` or `torch.inference_mode()`. Of the calls of
    `model.train()` and `model.eval()` before the loop in its function, the last one is `eval`.
    """
    lines = []
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | _Function):
            modes = sorted(_modes(scope.body))
            frozen = not isinstance(scope, ast.Module) and _is_frozen(scope.decorator_list)
            for loop in _outermost(scope.body, frozen):
                before = [is_evaluation for line, is_evaluation in modes if line < loop.lineno]
                if before and before[-1]:
                    loop.iter = _called("evaluates", loop.iter)
                    lines.append(loop.lineno)
    ast.fix_missing_locations(tree)
    return lines


def label_saves(tree: ast.Module) -> list[int]:
    """Wrap the calls of `torch.save` in a module, so that the session logs them. Returns their lines."""
    return _label_calls(tree, "saves", lambda function: ast.unparse(function) == "torch.save")


def label_fits(tree: ast.Module) -> None:
    """Wrap the calls of methods `fit` in a module, so that the session logs those of Keras models."""
    _label_calls(tree, "fits", lambda function: isinstance(function, ast.Attribute) and function.attr == "fit")


def _label_calls(tree: ast.Module, name: str, is_labelled: Callable[[ast.expr], bool]) -> list[int]:
    """Pass the functions of calls through the session's method `name`. Returns the lines of the calls."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_labelled(node.func)]
    for node in calls:
        node.func = _called(name, node.func)
    ast.fix_missing_locations(tree)
    return [node.lineno for node in calls]


def _modes(body: Iterable[ast.stmt]) -> Iterator[tuple[int, bool]]:
    """Yield (line, True for `eval`) of each call of `eval` or `train` without arguments."""
    for node in _within(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords):
            yield from ((node.lineno, mode == "eval") for mode in ("eval", "train") if mode == node.func.attr)


def _within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes and all their descendants, except those inside of functions and classes."""
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _within(ast.iter_child_nodes(node))


def _outermost(nodes: Iterable[ast.AST], frozen: bool) -> Iterator[ast.For]:
    """Yield the outermost `for` loops in which no gradients are computed. `frozen`: no gradients are computed around `nodes`."""
    for node in nodes:
        if isinstance(node, ast.For) and frozen:
            yield node
        elif not isinstance(node, _SCOPES):
            inside = isinstance(node, ast.With) and _is_frozen(item.context_expr for item in node.items)
            yield from _outermost(ast.iter_child_nodes(node), frozen or inside)


def _is_frozen(expressions: Iterable[ast.expr]) -> bool:
    called = (each.func if isinstance(each, ast.Call) else each for each in expressions)
    return any(ast.unparse(each).rpartition(".")[2] in _FROZEN for each in called)


def _called(name: str, argument: ast.expr) -> ast.Call:
    method = ast.Attribute(ast.Name(SESSION, ast.Load()), name, ast.Load())
    return ast.copy_location(ast.Call(method, [argument], []), argument)
