"""A newcomer's way through the README after installation: from the first command on a job of their own to the first picture.

All that the README does with that job is done once more on a terminal of 120 columns, where what a command says fits a screen.
"""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT
from tests.docs.pages import blocks
from tests.perf.figures import Figure

_FIRST, _PICTURE = "iotwin generate", "iotwin plot timeline"
_COLUMNS, _SCREEN_LINES = 120, 40


def _commands() -> list[str]:
    """The README's commands from the first that makes data, a line each."""
    texts = [block.text for block in blocks(ROOT / "README.md") if block.language == "sh" and "not run" not in block.markers]
    first = next(number for number, text in enumerate(texts) if text.startswith(_FIRST))
    return [line for text in texts[first:] for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def _lines_on_a_terminal(command: str, place: Path, environment: dict[str, str]) -> int:
    """Return how many lines a command leaves on a terminal of 120 columns; progress bars are gone at the end."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(place)
        os.execvpe("bash", ["bash", "-c", command], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _SCREEN_LINES, _COLUMNS, 0, 0))
    shown = b""
    while True:
        try:
            some = os.read(terminal, 1 << 16)
        except OSError:  # the way in which a terminal ends
            break
        if not some:
            break
        shown += some
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, shown.decode(errors="replace")
    erased = sum(int(number or 1) for number in re.findall(rb"\x1b\[([0-9]*)A", shown))  # by bars, which go up and vanish
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode(errors="replace").replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return sum(-(-max(1, len(line)) // _COLUMNS) for line in lines) - 1 - erased


def measure() -> Iterator[Figure]:
    """Yield the figure."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        place = Path(name)
        shutil.copy(ROOT / "tests" / "docs" / "train.py", place)
        programs = place / "bin"
        programs.mkdir()
        for program, arguments in (("iotwin", "-m iotwin"), ("python", "")):
            (programs / program).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            (programs / program).chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        commands = _commands()
        drawing = next(number for number, command in enumerate(commands) if command.startswith(_PICTURE))
        begin = time.perf_counter()
        for command in commands[: drawing + 1]:
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=place,
                env=environment,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        seconds = time.perf_counter() - begin
        assert (place / "timeline.pdf").stat().st_size
        for made in ("data", "checkpoints", "real.trace", "twin.trace", "proven"):
            shutil.rmtree(place / made)
        lines = {command: _lines_on_a_terminal(command, place, environment) for command in commands}
    detail = f"{drawing + 1} commands"
    yield Figure("README: seconds from the first command on a job to its picture", seconds, 180, detail=detail)
    longest = max(lines, key=lines.__getitem__)
    detail = f"{longest}; of {len(lines)} commands at {_COLUMNS} columns"
    yield Figure("README: lines of the longest screen about that job", lines[longest], _SCREEN_LINES, detail=detail)
    info = next(lines[command] for command in commands if command.startswith("iotwin info"))
    yield Figure("README: lines of iotwin info about that job", info, _SCREEN_LINES)
