"""Requests to end wait for the end of a block, whichever thread receives them and whatever handler they have."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from iotwin.common.signals import Requests, interrupts_held
from tests.processes import wait_for


@pytest.fixture
def other_thread():
    """A thread whose mask blocks no signal, as those of a library: it receives what the main thread blocks."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


def send(number: int) -> None:
    """Send the signal to this process, and wait until a thread has received it."""

    def is_pending() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("ShdPnd:")[2].split()[0], 16) >> (number - 1) & 1

    os.kill(os.getpid(), number)
    wait_for(lambda: not is_pending(), "a thread that receives the signal")


def test_a_request_that_another_thread_receives_waits_for_the_end_of_the_block(other_thread):
    is_whole = False
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        send(signal.SIGINT)
        is_whole = True
    assert is_whole and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_blocks_within_one_another_raise_at_the_end_of_the_outer(other_thread):
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        with interrupts_held():
            send(signal.SIGINT)
            reached.append("inner")
        reached.append("outer")
    assert reached == ["inner", "outer"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_request_stays_ignored(other_thread):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts_held():
            send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_that_is_set_in_the_block_stays_and_has_the_request(other_thread):
    requests = Requests()
    try:
        with interrupts_held():
            send(signal.SIGINT)
            requests.collect(even_ignored=False)
        assert requests.take() == signal.SIGINT
    finally:
        requests.restore()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_child_that_is_forked_in_the_block_ends_by_a_request():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with interrupts_held((signal.SIGTERM,)) as mask:
        child = os.fork()
        if child == 0:
            _wait_for_a_signal(mask)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def _wait_for_a_signal(mask: set[int]) -> None:
    """Wait for at most a minute and exit, whatever is raised: the child must not go on as a second process of the tests.

    It waits in short pauses, since a signal that comes just before a wait would not end it.
    """
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for _ in range(6000):
            time.sleep(0.01)
    finally:
        os._exit(1)
