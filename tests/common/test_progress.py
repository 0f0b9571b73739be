"""What is said to the person watching comes whole, and never where it was to be quiet."""

import sys

from iotwin.common import progress


class _Pieces(list[str]):
    """A stream that keeps what each write brought, as an unbuffered one passes it on."""

    write = list.append

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def test_a_note_and_a_progress_line_are_one_write_each(monkeypatch):
    monkeypatch.setattr(sys, "stderr", pieces := _Pieces())
    progress.note("the disk is full")
    with progress.progress("copying", 2, "files") as advance:
        advance(2)
    assert pieces[0] == "the disk is full\n"
    assert len(pieces) == 2 and pieces[1].startswith("copying: 2 files in ") and pieces[1].endswith(" s\n")


def test_nothing_is_said_when_quiet(monkeypatch):
    monkeypatch.setattr(sys, "stderr", pieces := _Pieces())
    progress.set_quiet(True)
    try:
        progress.note("the disk is full")
        with progress.progress("copying", 2, "files") as advance:
            advance(2)
    finally:
        progress.set_quiet(False)
    assert not pieces


def test_a_closed_terminal_ends_nothing(monkeypatch):
    class Closed(_Pieces):
        def write(self, text: str) -> None:
            raise BrokenPipeError(text)

    monkeypatch.setattr(sys, "stderr", Closed())
    progress.note("nobody reads this")
