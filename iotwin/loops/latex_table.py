"""Write a table for LaTeX, with the command that made its figures as a comment."""

from collections.abc import Sequence
from typing import Any

from iotwin.command_lines import this_command
from iotwin.common.terminal import clean

_ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def latex_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return `rows` below the names of their `columns` as a LaTeX tabular. It needs no package.

    Columns of text are aligned left, columns of numbers right. Floats have four digits, and None is a dash. LaTeX's special
    characters are escaped.
    """
    aligned = "".join("l" if any(isinstance(row[i], str) for row in rows) else "r" for i in range(len(columns)))
    return "\n".join(
        [
            f"% {clean(this_command()).replace(chr(10), ' ')}",
            rf"\begin{{tabular}}{{{aligned}}}",
            r"\hline",
            _line(columns),
            r"\hline",
            *map(_line, rows),
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Return `text` on one line, so that LaTeX prints it as it is."""
    return "".join(_ESCAPED.get(letter, letter) for letter in clean(text).replace("\n", " ").replace("\t", " "))


def _line(cells: Sequence[Any]) -> str:
    return " & ".join(_cell(value) for value in cells) + r" \\"


def _cell(value: Any) -> str:
    if value is None:
        return "--"
    return f"{value:.4g}" if isinstance(value, float) else escaped(str(value))
