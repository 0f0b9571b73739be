"""Files of checkpoints by their numbered names: which are there, of which epochs and steps."""

import glob
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_WORDS = ("epoch", "step")


def names_there(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what stands in `folder` under one of `names` with any numbers, and its (epoch, step): 1 and 0 where it says none.

    Links that lead nowhere are among them.
    """
    for name in names:
        # As a pattern, since the numbers of epochs and steps that will be due are not known.
        pattern, numbered = glob.escape(name), re.escape(name)
        for word in _WORDS:
            pattern = pattern.replace(f"{{{word}}}", "*")
            numbered = numbered.replace(rf"\{{{word}\}}", rf"(?P<{word}>\d+)", 1).replace(rf"\{{{word}\}}", r"\d+")
        for found in glob.iglob(pattern, root_dir=folder):  # noqa: PTH207 - pathlib leaves dangling links out
            if match := re.fullmatch(numbered, found):
                numbers = match.groupdict()
                yield found, (int(numbers.get("epoch", 1)), int(numbers.get("step", 0)))


def size_bytes(path: Path) -> int | None:
    """Return the bytes of the file `path`; None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None
