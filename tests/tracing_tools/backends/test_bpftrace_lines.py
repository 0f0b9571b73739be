"""The lines of bpftrace's script become names, in whatever order bpftrace prints what its CPUs had; all lines are waited for."""

import subprocess
import sys

import pytest

from iotwin.trace_store.raw.records import NAME_GIVEN, NAME_OPENED, read_names
from iotwin.trace_store.syscalls import Kind
from iotwin.tracing_tools.backends.bpftrace import BpftraceBackend, _Lines

_MARK = 77


def _call(tid: int, start_ns: int, *parts: tuple[int, str], result: int = 3) -> list[str]:
    head = f"{_MARK} 2 {tid} {start_ns} {result} 5 {Kind.OPEN_AT.value}"
    return [head, *(f"{_MARK} {number} {tid} {start_ns} {text}" for number, text in parts)]


def _names(lines: list[str]) -> set[tuple[int, int, bytes]]:
    decoded = _Lines(_MARK, 0)
    text = "\n".join(lines).encode()
    decoded.events(text)
    decoded.gather_names(text)
    return {(record.type, record.time_ns, record.text) for record in read_names(b"".join(decoded.names()))}


_FIRST = _call(9, 100, (8, "59"), (3, "mounts"), (3, "9"), (3, "proc"))
_SECOND = _call(9, 200, (8, "7"), (3, "libc.so"), (3, "lib"))
_OPENED = {(NAME_OPENED, 100, b"/proc/9/mounts"), (NAME_OPENED, 200, b"/lib/libc.so")}


@pytest.mark.parametrize("at", range(len(_FIRST) + 1))
def test_a_thread_s_next_call_on_another_cpu_may_be_printed_in_the_midst(at):
    assert _names([*_FIRST[:at], *_SECOND, *_FIRST[at:]]) == _OPENED


def test_what_a_lost_line_told_is_not_taken_for_another_call():
    lines = [*_SECOND, *_FIRST[1:], *_call(9, 300, (3, "w"), (4, "absent"), result=-2)]
    assert _names(lines) == {(NAME_OPENED, 200, b"/lib/libc.so"), (NAME_GIVEN, 300, b"/w/absent")}


def test_a_bpftrace_that_lags_behind_is_not_interrupted_before_it_has_printed_all(tmp_path):
    """On a busy machine it lags, and drops at an interrupt what it has not printed."""
    code = (
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(0))\nprint('READY', flush=True)\n"
        "for line in range(30):\n sum(range(300_000)); print(line, flush=True)\nsignal.pause()"
    )
    backend = BpftraceBackend.__new__(BpftraceBackend)
    with (tmp_path / "out").open("wb") as out:
        backend._process = subprocess.Popen([sys.executable, "-c", code], stdout=out)
    while b"READY" not in (tmp_path / "out").read_bytes():
        assert backend._process.poll() is None
    backend._end()
    assert (tmp_path / "out").read_text().split() == ["READY", *map(str, range(30))]
    assert backend._process.returncode == 0
