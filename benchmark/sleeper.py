"""Emulated time: sleeping, with each overshoot taken off the next sleep."""

import time

_LONGEST_CARRY_NS = 10_000_000  # a longer overshoot is the machine pausing, not the timer being late


class Sleeper:
    """Spends time, so that many short spells last as long as their sum: asleep, or `busy` on a CPU.

    Only CLOCK_MONOTONIC is read, so setting the machine's clock changes nothing.
    """

    def __init__(self, busy: bool = False) -> None:
        self._overshoot_ns = 0
        self._busy = busy

    def sleep(self, seconds: float) -> None:
        """Spend `seconds` less what earlier spells took too long; zero or less returns at once."""
        if seconds <= 0:
            return
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9) - self._overshoot_ns
        left_ns = deadline_ns - time.monotonic_ns()
        if self._busy:
            while time.monotonic_ns() < deadline_ns:
                pass
        elif left_ns > 0:
            time.sleep(left_ns / 1e9)
        self._overshoot_ns = min(max(0, time.monotonic_ns() - deadline_ns), _LONGEST_CARRY_NS)
