"""The table of processes: how each process ended, from the kernel's wait status."""

import os
import signal
import sys

import pytest

from iotwin.trace_store.raw.process_table import process_table
from iotwin.trace_store.raw.records import NAME_EXIT, NAME_FORK, NameRecord


def _wait_status(end: str) -> int:
    """Return the wait status of a real process that ends by the statement `end`, without leaving a file of its memory."""
    code = f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); {end}"
    _, status = os.waitpid(os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code]), 0)
    return status


@pytest.mark.parametrize("status", [0, 1, 2, 3, 127, 128, 255])
def test_a_process_that_exits_has_its_status(status):
    assert _ended(_wait_status(f"os._exit({status})")) == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGRTMAX])
def test_a_process_that_a_signal_ends_has_its_negative_number(number):
    assert _ended(_wait_status(f"os.kill(os.getpid(), {int(number)})")) == -number


def test_a_dumped_core_changes_nothing_about_the_signal():
    assert _ended(signal.SIGSEGV | 0x80) == -signal.SIGSEGV


def _ended(wait_status: int) -> int:
    records = [NameRecord(1, NAME_FORK, 7, 7), NameRecord(2, NAME_EXIT, 7, 7, result=wait_status)]
    return process_table(records, {}, 7, {}).column("exit_status").to_pylist()[0]
