"""Print statistics of calls as a table on the terminal. Names from a trace are shown as plain text."""

from collections.abc import Sequence
from typing import Any

from iotwin.trace_store.figures.table_rows import TableRows

_HEADINGS = {
    "time_share": "% time", "calls": "calls", "errors": "errors", "read_bytes": "read", "written_bytes": "written",
    "total_ns": "time", "p50_ns": "median", "p90_ns": "90 %", "p99_ns": "99 %", "max_ns": "longest",
}  # fmt: skip
_NARROW_HEADINGS = {"time_share", "calls", "errors", "total_ns", "p50_ns", "p99_ns"}
_SUMMED = {"calls", "errors", "read_bytes", "written_bytes", "total_ns", "time_share"}
KINDS_FIRST = ("dataset", "checkpoint", "log")
_SHOWN_OF_KIND = 6
_WIDE, _PIPE_WIDTH = 125, 160  # least width of a wide terminal, and width of output that is no terminal, in characters
_WORDS = 60  # most characters of a name
_NO_FILE = "(calls that name no file)"


def show_statistics(rows: Sequence[dict[str, Any]], title: str, most: int, more: str = "") -> None:
    """Print the first `most` rows of `trace_store.figures.statistics.document`. `more`: a hint where to find the other rows."""
    from rich.text import Text

    from iotwin.trace_visuals.labels import plain

    console = wide_console()
    if not rows:
        console.print(f"{title}: no calls")
        return
    headings = {name: text for name, text in _HEADINGS.items() if console.width >= _WIDE or name in _NARROW_HEADINGS}
    names = [name for name in rows[0] if name not in (*_HEADINGS, "bytes")]
    table = plain_table(title)
    for heading in headings.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows[:most]:
        words = [Text(plain(_word(name, row[name]), _WORDS)) for name in names]
        table.add_row(*(_cell(name, row[name]) for name in headings), *words)
    console.print()
    console.print(table)
    if more and len(rows) > most:
        console.print(f"{len(rows) - most:,} more; {more}")


def plain_table(title: str | None = None) -> Any:
    """Return an empty table with one rule, under its heading, and no empty lines."""
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)


def storage_first(rows: TableRows) -> list[dict[str, Any]]:
    """Return the rows of files that fit on one screen: data set, checkpoints, logs, then a row for each other kind of file.

    If a kind has many files, a row without percentiles sums up the files that are not shown.
    """
    each = rows.table.groupby("kind", sort=False, dropna=False)
    kinds = {kind if isinstance(kind, str) else None: TableRows(own) for kind, own in each}
    order = [*(kind for kind in KINDS_FIRST if kind in kinds), *(kind for kind in kinds if kind not in KINDS_FIRST)]
    shown: list[dict[str, Any]] = []
    for kind in order:
        files, most = kinds[kind], _SHOWN_OF_KIND if kind in KINDS_FIRST else 0
        if len(files) <= most + 1:
            shown += files
        else:
            shown += [*files[:most], _folded(kind, TableRows(files.table[most:]), "more " if most else "")]
    return shown


def _folded(kind: str | None, files: TableRows, more: str) -> dict[str, Any]:
    sums = {name: files.table[name].sum() for name in files[0] if name in _SUMMED}
    longest = files.table["max_ns"].max()
    blank = {name: None for name in files[0] if name.startswith("p") and name.endswith("_ns")}
    path = f"({len(files):,} {more}files; --kind {kind})" if kind else f"({len(files):,} {more}files)"
    return {**files[0], **blank, **sums, "max_ns": longest, "path": path, "kind": kind}


def wide_console() -> Any:
    """Return the console. If stdout is no terminal and COLUMNS is not set, its lines have _PIPE_WIDTH characters."""
    import os

    from iotwin.common.terminal import console

    usual = console()
    return usual if usual.is_terminal or "COLUMNS" in os.environ else console(width=_PIPE_WIDTH)


def _word(name: str, value: Any) -> str:
    if name == "path" and not value:
        return _NO_FILE
    return "" if value is None else str(value)


def _cell(name: str, value: float | None) -> str:
    from iotwin.common.units import format_duration, format_size

    if value is None:
        return ""
    if name.endswith("_ns"):
        return format_duration(value)
    if name == "time_share":
        return f"{100 * value:.1f}"
    return format_size(value) if name.endswith("_bytes") else f"{value:,.0f}"
