"""Measures how much longer calls take because they are traced, by a process that makes calls as the traced job did."""

import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

_ROUNDS, _CALLS = 40, 200  # the result is that of the shortest round; a round is shorter than a time slice
_TIMES = struct.Struct("<dd")


def costs_of_calls(
    admit: Callable[[int], bool], while_traced: Callable[[Callable[[], None]], None], stop: Callable[[], None]
) -> tuple[int, int] | tuple[None, None]:
    """Return (ns that tracing adds to a read, ns that it adds to an open or close on average); (None, None) if unknown.

    `admit(pid)` starts to trace a process, and returns False if that is impossible. `while_traced(work)` runs `work` if calls can
    be traced without being recorded. `stop` ends the tracing, and is called in any case.
    """
    caller, traced_ns = _TimedCaller(), list[tuple[float, float]]()

    def work() -> None:
        with suppress(OSError):
            if admit(caller.pid):
                traced_ns.append(caller.times_ns())

    try:
        while_traced(work)
        stop()
        if not traced_ns:
            return None, None
        transfer_ns, call_ns = (max(round(a - b), 0) for a, b in zip(traced_ns[0], caller.times_ns(), strict=True))
        return transfer_ns, call_ns
    finally:
        caller.end()


class _TimedCaller:
    """A child process that times its calls on request. It ends when `end` is called, or when this process ends."""

    def __init__(self) -> None:
        asked, self._ask = os.pipe()
        self._answer, answered = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                # Descriptors of the tracer would keep its programs attached.
                for first, end in pairwise([2, *sorted((asked, answered)), os.sysconf("SC_OPEN_MAX")]):
                    os.closerange(first + 1, end)
                while os.read(asked, 1):
                    os.write(answered, _TIMES.pack(*_times_ns()))
            finally:
                os._exit(0)
        os.close(asked)
        os.close(answered)

    def times_ns(self) -> tuple[float, float]:
        """Return the time of a read, and the mean time of an open and a close, in ns. Raises OSError if the child ended."""
        os.write(self._ask, b"\0")
        answer = os.read(self._answer, _TIMES.size)
        if len(answer) < _TIMES.size:
            raise ProcessLookupError("the process that times calls has ended")
        transfer_ns, call_ns = _TIMES.unpack(answer)
        return transfer_ns, call_ns

    def end(self) -> None:
        """End the child."""
        os.close(self._ask)
        os.close(self._answer)
        os.waitpid(self.pid, 0)


def _times_ns() -> tuple[float, float]:
    memory = os.memfd_create("iotwin")
    os.write(memory, b"0")

    def transfer() -> None:
        os.pread(memory, 1, 0)

    def call() -> None:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    try:
        return _shortest_ns(transfer), _shortest_ns(call) / 2
    finally:
        os.close(memory)


def _shortest_ns(work: Callable[[], None]) -> float:
    """Return the time of one call of `work` in ns, in the quickest of all rounds."""
    found = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter_ns()
        for _ in range(_CALLS):
            work()
        found.append(time.perf_counter_ns() - begun)
    return min(found) / _CALLS
