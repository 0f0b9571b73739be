"""Names of checkpoint files: '{epoch}' and '{step}' in them stand for numbers."""

import re

WORDS = ("epoch", "step")


def numbers_in(name: str, pattern: str) -> tuple[int, int] | None:
    """Return the (epoch, step) by which `pattern` becomes `name`, 1 and 0 where it says none; None if it never does."""
    numbered = re.escape(pattern)
    for word in WORDS:
        numbered = numbered.replace(rf"\{{{word}\}}", rf"(?P<{word}>\d+)", 1).replace(rf"\{{{word}\}}", r"\d+")
    match = re.fullmatch(numbered, name)
    if match is None:
        return None
    found = match.groupdict()
    return int(found.get("epoch", 1)), int(found.get("step", 0))
