"""Sleep in place of computation, and shorten later sleeps by the time that the emulator loses, as when a sleep ends late."""

import time

_LONGEST_DELAY_NS = 10_000_000  # longer delays are pauses of the machine, and do not shorten later sleeps


class Sleeper:
    """Sleeps, or keeps a CPU busy if `busy`, so that many short sleeps together last as long as the sum of their seconds.

    It records how far the emulator lags behind the job that it emulates, and shortens the next sleeps by that delay. It reads
    only CLOCK_MONOTONIC, so setting the machine's clock has no effect.
    """

    def __init__(self, busy: bool = False) -> None:
        self._delay_ns = 0
        self._busy = busy

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` minus the present delay. If `seconds` is not positive, return at once."""
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
        """Return the time in CLOCK_MONOTONIC ns at which the emulated job would have reached the present state."""
        return time.monotonic_ns() - self._delay_ns

    def set_due(self, due_ns: int) -> None:
        """Set the time in CLOCK_MONOTONIC ns at which the emulated job would have reached the present state."""
        self._delay_ns = min(max(0, time.monotonic_ns() - due_ns), _LONGEST_DELAY_NS)

    def add_delay(self, took_ns: int) -> None:
        """Add `took_ns`, which the emulator spent on its own work, to the delay."""
        self._delay_ns = min(self._delay_ns + took_ns, _LONGEST_DELAY_NS)
