"""The page of an experiment: its stages, the runs that failed, the medians, and the pictures, in one HTML file."""

import base64
import html
from pathlib import Path
from typing import Any

from iotwin.common.html_card import html_card
from iotwin.common.terminal import clean
from iotwin.common.untrusted_files import read_foreign

_MOST_PICTURE_BYTES = 1 << 26
_STYLE = (
    "body{font:14px sans-serif;margin:2em auto;max-width:70em;padding:0 1em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{border-bottom:1px solid #ccc;padding:.2em .6em;text-align:left}img{max-width:100%}pre{white-space:pre-wrap}"
)


def report_page(
    title: str, lines: list[str], stages: dict[str, dict[str, Any]], medians: list[list[str]], errors: list[dict[str, Any]],
    pictures: list[Path],
) -> str:  # fmt: skip
    """Return the page. `medians` is a table whose first row has the names of the columns."""
    stage_rows = [(name, "ok" if stage["success"] else "failed", stage["message"]) for name, stage in stages.items()]
    parts = [html_card(title, lines, ("stage", "state", "message"), stage_rows)]
    if errors:
        rows = [(error["model"], error["command_id"], error["file"], error["message"]) for error in errors]
        parts.append(html_card("Failed runs", [], ("model", "command", "table", "reason"), rows))
    if medians:
        parts.append(
            html_card(
                "Medians (times in ms, memory in MB)", [], medians[0], [[_short(cell) for cell in row] for row in medians[1:]]
            )
        )
    parts += [_picture(path) for path in pictures]
    name = html.escape(clean(title))
    return f"<!doctype html><html><head><meta charset=utf-8><title>{name}</title><style>{_STYLE}</style></head><body>" + (
        "\n".join(parts) + "</body></html>\n"
    )


def _short(cell: str) -> str:
    """Return a number with four significant digits, and other text as it is."""
    try:
        return f"{float(cell):.4g}" if "." in cell else cell
    except ValueError:
        return cell


def _picture(path: Path) -> str:
    content = base64.b64encode(read_foreign(path, _MOST_PICTURE_BYTES)).decode()
    return f"<p><img alt='{html.escape(path.name)}' src='data:image/png;base64,{content}'></p>"
