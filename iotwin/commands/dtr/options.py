"""Options that several commands of ``iotwin dtr`` share, and the note that numba is missing."""

from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def listed(text: str, option: str, convert: Callable[[str], _Value]) -> list[_Value]:
    """Return the items of the comma-separated `text`, converted by `convert`. Raises UsageError if an item cannot be converted.

    `option` is the option's name for the message.
    """
    from iotwin.common.errors import UsageError

    values = []
    for word in text.split(","):
        try:
            values.append(convert(word.strip()))
        except ValueError:
            raise UsageError(f"{option}: '{word}' is not a number") from None
    return values


def ratio(text: str) -> float:
    """Return a budget as a share of the baseline's peak memory. Raises UsageError unless it is above 0 and at most 100."""
    from iotwin.common.errors import UsageError

    value = float(text)
    if not 0 < value <= 100:
        raise UsageError(f"--ratio: {text} is not above 0 and at most 100")
    return value


def note_missing_numba() -> None:
    """Note once that the simulator runs slowly without numba."""
    from iotwin.common.progress import note
    from iotwin.workloads.dtr.simulator.compiler import has_numba

    if not has_numba():
        note("numba is not installed (iotwin[dtr]): the same answers, about fifty times more slowly")
