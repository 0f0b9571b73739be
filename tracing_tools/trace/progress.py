"""The one progress display: a rich bar on a terminal, plain lines in a log, nothing when quiet.

Everything goes to stderr, so that stdout carries only results.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tracing_tools.trace.units import format_size

_PLAIN_LINE_EVERY_S = 5.0
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence (or restore) progress and notes for the whole process; the command line calls this once."""
    global _quiet
    _quiet = quiet


def note(text: str) -> None:
    """Print one line for the person watching, unless quiet."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)


class Advance(Protocol):
    """Reports that `amount` more units are done."""

    def __call__(self, amount: float) -> None:
        """Say that `amount` more is done."""


@contextmanager
def progress(title: str, total: float, unit: str = "B") -> Iterator[Advance]:
    """Show progress towards `total` (bytes when `unit` is 'B', else plain counts) until the block ends."""
    if _quiet:
        yield lambda amount: None
    elif sys.stderr.isatty():
        with _bar(title, total, unit) as advance:
            yield advance
    else:
        with _lines(title, total, unit) as advance:
            yield advance


@contextmanager
def _bar(title: str, total: float, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts = [DownloadColumn(binary_units=True), TransferSpeedColumn()] if unit == "B" else [MofNCompleteColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.advance(task, amount)


@contextmanager
def _lines(title: str, total: float, unit: str) -> Iterator[Advance]:
    begin = last = time.monotonic()
    done = 0.0

    def text(value: float) -> str:
        return format_size(value) if unit == "B" else f"{value:.0f} {unit}"

    def advance(amount: float) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= _PLAIN_LINE_EVERY_S and done < total:
            last = now
            left = (total - done) * (now - begin) / done
            rate = f", {format_size(done / (now - begin))}/s" if unit == "B" else ""
            print(f"{title}: {text(done)} of {text(total)}{rate}, {left:.0f} s left", file=sys.stderr, flush=True)

    yield advance
    print(f"{title}: {text(done)} in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
