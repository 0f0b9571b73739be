"""Emulated time: what the emulator itself takes, and sleeps that end late, come off the next sleep."""

import time

_LONGEST_DELAY_NS = 10_000_000  # a longer one is the machine pausing, not the timer being late


class Sleeper:
    """Spends time, so that many short spells last as long as their sum: asleep, or `busy` on a CPU.

    It keeps how far the emulator is behind the job that it stands for, and catches up while that computes. Only
    CLOCK_MONOTONIC is read, so setting the machine's clock changes nothing.
    """

    def __init__(self, busy: bool = False) -> None:
        self._delay_ns = 0
        self._busy = busy

    def sleep(self, seconds: float) -> None:
        """Spend `seconds` less the delay so far; zero or less returns at once."""
        if seconds <= 0:
            return
        due_ns = self.due_ns() + int(seconds * 1e9)
        left_ns = due_ns - time.monotonic_ns()
        if self._busy:
            while time.monotonic_ns() < due_ns:
                pass
        elif left_ns > 0:
            time.sleep(left_ns / 1e9)
        self.set_due(due_ns)

    def due_ns(self) -> int:
        """Return the time at which the job would have reached the emulator's present point (CLOCK_MONOTONIC)."""
        return time.monotonic_ns() - self._delay_ns

    def set_due(self, due_ns: int) -> None:
        """Set the time at which the job would have reached the emulator's present point."""
        self._delay_ns = min(max(0, time.monotonic_ns() - due_ns), _LONGEST_DELAY_NS)

    def add_delay(self, took_ns: int) -> None:
        """Add `took_ns`, which the emulator spent on its own work, to the delay."""
        self._delay_ns = min(self._delay_ns + took_ns, _LONGEST_DELAY_NS)
