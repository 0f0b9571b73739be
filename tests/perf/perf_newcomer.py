"""A newcomer's way through the README after installation: from the first command on a job of their own to the first picture.

On the way `iotwin info` has to fit a screen.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT
from tests.docs.pages import blocks
from tests.perf.figures import Figure

_FIRST, _PICTURE = "iotwin generate", "iotwin plot timeline"


def _blocks_to_the_picture() -> list[str]:
    """The README's shell blocks from the first that makes data to the one that draws, cut after the drawing."""
    texts = [block.text for block in blocks(ROOT / "README.md") if block.language == "sh" and "not run" not in block.markers]
    first = next(number for number, text in enumerate(texts) if text.startswith(_FIRST))
    last = next(number for number, text in enumerate(texts) if _PICTURE in text)
    drawing = next(line for line in texts[last].splitlines() if line.startswith(_PICTURE))
    return [*texts[first:last], drawing]


def measure() -> Iterator[Figure]:
    """Yield the figure."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        place = Path(name)
        shutil.copy(ROOT / "tests" / "docs" / "train.py", place)
        programs = place / "bin"
        programs.mkdir()
        for program, arguments in (("iotwin", "-m iotwin.main"), ("python", "")):
            (programs / program).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            (programs / program).chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        begin = time.perf_counter()
        for text in (texts := _blocks_to_the_picture()):
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], cwd=place, env=environment, check=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        seconds = time.perf_counter() - begin
        assert (place / "timeline.pdf").stat().st_size
        told = subprocess.run([programs / "iotwin", "info", "real.trace"], cwd=place, env=environment, check=True,
                              capture_output=True, text=True).stdout  # fmt: skip
    commands = sum(text.count("iotwin ") for text in texts)
    yield Figure("README: seconds from the first command on a job to its picture", seconds, 180, detail=f"{commands} commands")
    yield Figure("README: lines of iotwin info about that job", len(told.splitlines()), 40)


if __name__ == "__main__":
    for figure in measure():
        print(figure.line())
