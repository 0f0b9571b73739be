"""Print text from strangers safely: control characters in names, notes and commands appear as '?'.

A terminal would obey escape sequences, and marks of writing direction would display another text. The command line writes through
`cleaned_streams`; the tables of rich go through `console`.
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

# Control characters (C0 without tab and newline, C1), marks of writing direction, invisible separators, lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Return `text` with '?' in place of every control character except tab and newline."""
    return _CONTROL.sub("?", text)


class CleanStream:
    """Wraps a text stream and cleans the text written to it. Other attributes, such as `buffer`, are those of the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.behind = stream

    def write(self, text: str) -> int:
        """Write `text`, cleaned, and return the length of `text`."""
        self.behind.write(clean(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write `lines`, cleaned."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller closed (``>&-``). Otherwise the next opened file gets their number.

    Programs that this process starts inherit the replaced stdout and stderr, but find stdin closed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, `number`
            os.set_inheritable(number, number > 0)
        if number and getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - must stay open until exit


@contextmanager
def cleaned_streams() -> Iterator[None]:
    """While the block runs, stdout and stderr show control characters as '?'."""
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    for stream in before:  # a terminal without UTF-8 cannot display most names
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, CleanStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def console(stderr: bool = False, width: int | None = None) -> "Console":
    """Return a console of rich that cleans the text of every output, but leaves rich's own colours and cursor movements."""
    from rich.console import Console
    from rich.segment import Segment

    class CleanConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(clean(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    return CleanConsole(file=getattr(stream, "behind", stream), width=width)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print `rows` below the names of their `columns`, the first column aligned left and the others right."""
    texts = [[str(value) for value in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
    for row in texts:
        print(
            "  ".join(
                text.ljust(width) if i == 0 else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            )
        )


def print_wrapped(text: str, indent: int) -> None:
    """Print `text`. On a terminal, break its lines between words and indent all but the first by `indent` characters.

    Other output is not broken, so that a script finds each text on one line.
    """
    import shutil
    import textwrap

    if sys.stdout.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        hanging = " " * min(indent, width // 3)
        text = "\n".join(
            textwrap.fill(line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
            for line in text.splitlines()
        )
    print(text)
