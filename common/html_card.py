"""HTML for notebooks: a heading, lines of text and a table. Names come from traced programs, so every text is escaped."""

import html
from collections.abc import Iterable, Sequence

from iotwin.common.terminal import clean


def html_card(title: str, lines: Sequence[str], columns: Sequence[str] = (), rows: Iterable[Sequence[object]] = ()) -> str:
    """Return `title`, `lines` and, if there are `columns`, a table of `rows` as HTML without styles or scripts."""
    parts = [f"<strong>{_text(title)}</strong>", *(f"<div>{_text(line)}</div>" for line in lines)]
    if columns:
        head = "".join(f"<th>{_text(name)}</th>" for name in columns)
        body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return f"<div>{''.join(parts)}</div>"


def _text(value: object) -> str:
    shown = "" if value is None else f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else value
    return html.escape(clean(str(shown)))
