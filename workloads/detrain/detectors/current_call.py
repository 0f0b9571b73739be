"""Finds the call that a frame is executing in its source text: calls of compiled functions have no frame with their arguments."""

import ast
import functools
import itertools
import linecache
import types
from typing import Any

_UNKNOWN = object()


def current_call(frame: types.FrameType) -> ast.Call | None:
    """Return the call that a frame is executing, None if the source is unknown."""
    position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    return None if position is None else _calls(frame.f_code.co_filename).get(position)


def is_given(frame: types.FrameType, call: ast.Call, *names: str) -> bool:
    """Return whether the first positional argument of `call`, or a keyword argument in `names`, is not None.

    Also True if the argument's value is unknown, because it is no constant, variable, or attribute of a variable.
    """
    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg in names)]
    return any(_value(frame, node) is not None for node in given)


def _value(frame: types.FrameType, node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, _UNKNOWN))
    if isinstance(node, ast.Attribute):
        # Only attributes in __dict__ are read: a property could have side effects.
        return getattr(_value(frame, node.value), "__dict__", {}).get(node.attr, _UNKNOWN)
    return _UNKNOWN


@functools.cache
def _calls(file: str) -> dict[tuple[int | None, int | None, int | None, int | None], ast.Call]:
    """Return the calls in a source file by position: (first line, last line, first column, last column), as in `co_positions`."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {(call.lineno, call.end_lineno, call.col_offset, call.end_col_offset): call for call in calls}
