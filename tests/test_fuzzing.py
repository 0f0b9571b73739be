"""The fuzzing of tests/perf finds what it is to find, and makes every input again."""

import os
import random
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest

from iotwin.common.errors import IotwinError
from tests.perf import fuzzing
from tests.perf.fuzzing import Subject, fuzz


@pytest.fixture(autouse=True)
def short_limit(monkeypatch):
    monkeypatch.setattr(fuzzing, "LIMIT_S", 0.5)


def _number(rng: random.Random) -> bytes:
    return b"%d" % rng.randrange(10)


def _at(seven) -> Subject:
    """A subject that does `seven` with some of its inputs and refuses others."""

    def read(content: bytes, directory: Path) -> None:
        (directory / "mine").write_bytes(content)
        if content == b"7":
            seven(directory)
        if content == b"3":
            raise IotwinError("three is refused")

    return Subject("numbers", _number, read)


def _fails(directory: Path) -> None:
    raise ValueError("seven")


def _writes_beside(directory: Path) -> None:
    (directory / ".." / "victim.txt").write_text("gone")


def _writes_by_itself(directory: Path) -> None:
    """As a library does that is not Python: no audit hook sees it."""
    with pa.OSFile(str(directory.parent / "new"), "wb") as file:
        file.write(b"x")


@pytest.mark.parametrize(
    ("seven", "kind"),
    [
        (_fails, "ValueError at test_fuzzing.py"),
        (_writes_beside, "open outside"),
        (_writes_by_itself, "something was written outside"),
        (lambda directory: os.system("true"), "os.system"),
        (lambda directory: bytearray(1 << 40), "MemoryError"),
    ],
)
def test_what_is_wrong_is_found_and_all_inputs_are_read(seven, kind):
    result = fuzz(_at(seven), 100)
    assert result.inputs == 100 and 0 < result.refused < 50
    assert [found.startswith(kind) for found in result.findings] == [True], result.findings
    number, _ = next(iter(result.findings.values()))
    assert _number(random.Random(f"numbers {number}")) == b"7"


@pytest.mark.parametrize("seven", [lambda directory: os.kill(os.getpid(), signal.SIGKILL), lambda directory: time.sleep(60)])
def test_an_input_that_kills_or_holds_up_the_process_is_found(seven):
    result = fuzz(_at(seven), 8)
    sevens = [number for number in range(8) if _number(random.Random(f"numbers {number}")) == b"7"]
    assert sorted(number for number, _ in result.findings.values()) == sevens != []
    assert result.inputs == 8


def test_good_inputs_have_no_finding():
    result = fuzz(_at(lambda directory: None), 50)
    assert result.inputs == 50 and not result.findings
