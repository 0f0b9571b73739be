"""Patterns of the names of checkpoint files, in which '{epoch}' and '{step}' stand for numbers."""

import re

WORDS = ("epoch", "step")


def numbers_in(name: str, pattern: str) -> tuple[int, int] | None:
    """Return the numbers (epoch, step) in the file name `name`; None if `name` does not match `pattern`.

    The epoch is 1 if `pattern` has no '{epoch}', and the step is 0 if `pattern` has no '{step}'.
    """
    numbered = re.escape(pattern)
    for word in WORDS:
        numbered = numbered.replace(rf"\{{{word}\}}", rf"(?P<{word}>\d+)", 1).replace(rf"\{{{word}\}}", r"\d+")
    match = re.fullmatch(numbered, name)
    if match is None:
        return None
    found = match.groupdict()
    return int(found.get("epoch", 1)), int(found.get("step", 0))
