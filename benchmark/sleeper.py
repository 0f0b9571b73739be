"""Emulated time: sleeping, with each overshoot taken off the next sleep."""

import time

_LONGEST_CARRY_NS = 10_000_000  # a longer overshoot is the machine pausing, not the timer being late


class Sleeper:
    """Sleeps without spinning, so that many short sleeps last as long as their sum."""

    def __init__(self) -> None:
        self._overshoot_ns = 0

    def sleep(self, seconds: float) -> None:
        """Sleep `seconds` less what earlier sleeps took too long; zero or less returns at once."""
        if seconds <= 0:
            return
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9) - self._overshoot_ns
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        self._overshoot_ns = min(max(0, time.monotonic_ns() - deadline_ns), _LONGEST_CARRY_NS)
