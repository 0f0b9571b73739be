"""Checks of the keys and values in configurations. Each message names the file, the key and the nearest known key."""

from collections.abc import Callable
from typing import Any

from iotwin.common.errors import UsageError, nearest

Check = tuple[Callable[[Any], bool], str]  # whether a value is valid, and what it must be


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


FLAG: Check = (lambda value: isinstance(value, bool), "true or false")
TEXT: Check = (lambda value: isinstance(value, str), "a text")
TEXTS: Check = (lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value), "a list of texts")
COUNT: Check = (lambda value: _count(value, 0), "a whole number of at least 0")
AT_LEAST_1: Check = (lambda value: _count(value, 1), "a whole number of at least 1")
POSITIVE: Check = (lambda value: _number(value) and value > 0, "a number above 0")
NUMBER: Check = (_number, "a number")
BUDGET: Check = (lambda value: _number(value) and (value >= 1 or value == -1), "a number of bytes, or -1 for no budget")
RATIO: Check = (lambda value: _number(value) and 0 < value <= 100, "a number above 0 and at most 100")
TABLE: Check = (lambda value: isinstance(value, dict), "an object")


def one_of(*values: str) -> Check:
    """Return the check that a value is one of `values`."""
    return (lambda value: value in values, f"one of {', '.join(values)}")


def check_value(where: str, value: Any, check: Check) -> None:
    """Raise UsageError unless `value`, which is at `where`, passes `check`."""
    valid, what = check
    if not valid(value):
        raise UsageError(f"{where} must be {what} (got {shown(value)})")


def check_table(where: str, table: Any, known: dict[str, Check], lists: bool = False) -> None:
    """Raise UsageError unless `table` is an object whose keys are in `known` and whose values pass their checks.

    Keys that begin with "note" are comments. With `lists`, a value may also be a list of values, which must not be empty.
    """
    check_value(where, table, TABLE)
    for key, value in table.items():
        if key.startswith("note") and key not in known:
            continue
        if key not in known:
            raise UsageError(f"{where}: unknown key '{key}'{nearest(key, list(known))}")
        if lists and isinstance(value, list):
            if not value:
                raise UsageError(f"{where}.{key} must not be an empty list")
            for index, each in enumerate(value):
                check_value(f"{where}.{key}[{index}]", each, known[key])
        else:
            check_value(f"{where}.{key}", value, known[key])


def shown(value: Any) -> str:
    """Return `value` as a message shows it: at most 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
