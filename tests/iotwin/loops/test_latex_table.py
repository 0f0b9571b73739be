"""Tables for LaTeX: every text survives LaTeX's special characters, as a reader that undoes the escapes shows."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.terminal import clean
from iotwin.loops.latex_table import escaped, latex_table

_NAMED = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textgreater": ">"}


def _as_latex_prints(text: str) -> str:
    return re.sub(r"\\(?:(text[a-z]+)\{\}|(.))", lambda found: _NAMED[found[1]] if found[1] else found[2], text)


@given(st.text())
def test_any_text_survives(text: str) -> None:
    written = escaped(text)
    assert _as_latex_prints(written) == clean(text).replace("\n", " ").replace("\t", " ")
    assert not re.search(r"(?<!\\)[%&#$_~^<>]", written) and "\n" not in written


def test_a_table_has_its_command_alignment_and_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["iotwin", "stats", "a b.trace\n\\input{x}"])
    text = latex_table(["path", "read_bytes", "share"], [["a_b%", 1234567, 0.123456], ["c", None, 2.0]])
    first, begin, _, head, _, one, two, *_ = text.splitlines()
    assert first.startswith("% iotwin stats 'a b.trace") and begin == r"\begin{tabular}{lrr}"
    assert head == r"path & read\_bytes & share \\"
    assert one == r"a\_b\% & 1234567 & 0.1235 \\" and two == r"c & -- & 2 \\"
