"""Files of checkpoints by their numbered names: which are there, of which epochs and steps."""

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmark.config.checkpoint_names import WORDS, numbers_in


def names_there(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what stands in `folder` under one of `names` with any numbers, and its (epoch, step): 1 and 0 where it says none.

    Links that lead nowhere are among them.
    """
    for name in names:
        pattern = glob.escape(name)  # as a pattern, since the numbers of epochs and steps that will be due are not known
        for word in WORDS:
            pattern = pattern.replace(f"{{{word}}}", "*")
        for found in glob.iglob(pattern, root_dir=folder):  # noqa: PTH207 - pathlib leaves dangling links out
            if (number := numbers_in(found, name)) is not None:
                yield found, number


def size_bytes(path: Path) -> int | None:
    """Return the bytes of the file `path`; None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None
