"""Show progress and notes on stderr: a rich bar on a terminal, plain lines in a log, nothing if quiet."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from iotwin.common.units import format_size

_PLAIN_LINE_EVERY_S = 5.0
_quiet = False

Advance = Callable[[float], None]  # reports progress: the number of units done since its last call


def set_quiet(quiet: bool) -> None:
    """Turn progress and notes of the whole process off or on."""
    global _quiet
    _quiet = quiet


def note(text: str) -> None:
    """Print one line on stderr, unless quiet."""
    if not _quiet:
        show_line(text)


def show_line(text: str) -> None:
    """Print one line on stderr by one write, as a job may print there at the same time."""
    with suppress(OSError):  # the terminal or the other end of a pipe may be closed
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


@contextmanager
def progress(title: str, total: float, unit: str = "B") -> Iterator[Advance]:
    """Show progress towards `total` until the block ends. Yield the function that reports progress. `unit` 'B' means bytes."""
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
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from iotwin.common.terminal import console

    amounts = [DownloadColumn(binary_units=True), TransferSpeedColumn()] if unit == "B" else [MofNCompleteColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn()]
    with Progress(*columns, console=console(stderr=True)) as bar:
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
            amount_done = format_size(done) if unit == "B" else f"{done:.0f}"
            show_line(f"{title}: {amount_done} of {text(total)}{rate}, {left:.0f} s left")

    yield advance
    show_line(f"{title}: {text(done)} in {time.monotonic() - begin:.1f} s")
