"""Sleep in place of computation, and shorten later sleeps by the time that the emulator loses, as when a sleep ends late."""

import time
from collections.abc import Callable

LONGEST_DELAY_NS = 10_000_000  # longer delays are pauses of the machine, and do not shorten later sleeps


class Sleeper:
    """Sleeps, or keeps a CPU busy if `busy`, so that the total time of many short sleeps is the sum of their seconds.

    It records how far the emulator lags behind the job that it emulates, and shortens the next sleeps by that delay. It reads
    only CLOCK_MONOTONIC, so setting the machine's clock has no effect. `now_ns` and `sleep` may be those of another clock.
    A delay beyond `longest_delay_ns` does not shorten later sleeps.
    """

    def __init__(
        self,
        busy: bool = False,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
        longest_delay_ns: int = LONGEST_DELAY_NS,
    ) -> None:
        self._delay_ns = 0
        self.shortened_ns = 0  # by how much sleeps were shortened, in sum
        self._longest_ns = longest_delay_ns
        self.set_ns = 0  # when the delay was last measured: as a sleep began or ended, or when `set_due` was called
        self.busy, self._now_ns, self._sleep = busy, now_ns, sleep

    def sleep(self, seconds: float, since_ns: int | None = None) -> None:
        """Sleep for `seconds` minus the present delay. If `seconds` is not positive, return at once.

        `since_ns`: when the emulated job began to sleep, in CLOCK_MONOTONIC ns. The emulator has spent the time since then on its
        own work, which adds to the delay.
        """
        due_ns = self.begin(seconds, since_ns)
        if seconds > 0:
            self.finish(due_ns)

    def begin(self, seconds: float, since_ns: int | None = None) -> int:
        """Return when `sleep` with these arguments would end, in CLOCK_MONOTONIC ns, without sleeping.

        The caller then calls `finish`, or waits itself and calls `set_due`.
        """
        self.set_ns = now_ns = self._now_ns()
        if since_ns is not None:
            self._delay_ns = min(self._delay_ns + now_ns - since_ns, self._longest_ns)
        length_ns = max(0, int(seconds * 1e9))
        self.shortened_ns += min(self._delay_ns, length_ns)
        return now_ns - self._delay_ns + length_ns

    def finish(self, due_ns: int) -> None:
        """Sleep until `due_ns`, which `begin` has just returned."""
        if self.busy:
            while self._now_ns() < due_ns:
                pass
        elif due_ns > self.set_ns:
            self._sleep((due_ns - self.set_ns) / 1e9)
        self.set_due(due_ns)

    def due_ns(self) -> int:
        """Return the time in CLOCK_MONOTONIC ns at which the emulated job would have reached the present state."""
        return self._now_ns() - self._delay_ns

    def set_due(self, due_ns: int) -> None:
        """Set the time in CLOCK_MONOTONIC ns at which the emulated job would have reached the present state."""
        self.set_ns = self._now_ns()
        self._delay_ns = min(max(0, self.set_ns - due_ns), self._longest_ns)
