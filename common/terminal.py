"""What is printed is text: control characters of names, notes and commands, which anybody may have made, appear as '?'.

The command line writes through `cleaned_streams`, and tables of rich through `console`. A terminal would take escape sequences
for orders; characters that turn the direction of writing would show another text than there is.
"""

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

# C0 without tab and newline, C1, marks of direction, invisible and separating characters, halves of surrogate pairs.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Return the text with '?' for every control character but tab and newline."""
    return _CONTROL.sub("?", text)


class CleanStream:
    """A text stream that cleans what is written to it; all else, such as `buffer` and `isatty`, is the stream's behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.behind = stream

    def write(self, text: str) -> int:
        """Write the cleaned text; return the length of what was given."""
        self.behind.write(clean(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def _open_closed_streams() -> None:
    """Have /dev/null where our caller closed a standard stream (``>&-``): the next file opened would take its place.

    Programs that we start find stdin closed as we did.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, number > 0)
        if number and getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - open as long as we run


@contextmanager
def cleaned_streams() -> Iterator[None]:
    """Clean what goes to stdout and stderr within the block."""
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    for stream in before:  # a terminal that is not of UTF-8 has no sign for most names
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, CleanStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def console(stderr: bool = False, width: int | None = None) -> "Console":
    """Return a console of rich that cleans every text, and whose own colours and movements of the cursor still work."""
    from rich.console import Console
    from rich.segment import Segment

    class CleanConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(clean(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    return CleanConsole(file=getattr(stream, "behind", stream), width=width)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under their columns' names."""
    texts = [[str(value) for value in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
    for row in texts:
        print(
            "  ".join(
                text.ljust(width) if i == 0 else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            )
        )
