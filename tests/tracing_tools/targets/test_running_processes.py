"""A signal to a tree of processes reaches those, too, that it starts meanwhile."""

import signal
import subprocess
import sys

from iotwin.tracing_tools.targets.running_processes import signal_tree
from tests.processes import members, wait_for

_FORKING = """
import os, signal
for _ in range(5000):
    if os.fork() == 0:
        signal.pause()
signal.pause()
"""


def test_a_program_that_starts_others_all_the_while_leaves_none():
    program = subprocess.Popen([sys.executable, "-c", _FORKING], start_new_session=True)
    wait_for(lambda: len(members(program.pid)) > 20, "its children")
    signalled = signal_tree([program.pid], signal.SIGTERM)
    assert program.wait() == -signal.SIGTERM and len(signalled) > 20
    wait_for(lambda: not members(program.pid), "their end")


def test_a_signal_to_a_program_that_has_ended_is_none():
    program = subprocess.Popen(["true"])
    program.wait()
    assert signal_tree([program.pid], signal.SIGTERM) == set()
