"""Decides whether the ranks of a job have waited for data for most of the last seconds."""

from collections import deque

from iotwin.tracing_tools.recorder.live_tally import LiveTally


class StallWatch:
    """Reports if the running ranks stalled, on average, for more than the share `share` of the last `window_ns`."""

    def __init__(self, share: float, window_ns: int) -> None:
        self._share, self._window_ns = share, window_ns
        self._readings: deque[tuple[int, float]] = deque()  # (time in ns, summed stall of all ranks in s)

    def is_stalled(self, tally: LiveTally, now_ns: int) -> bool:
        """Take a reading at `now_ns`. Return True if readings cover the whole window and the stall exceeds the share."""
        self._readings.append((now_ns, sum(tally.stall_s.values())))
        while len(self._readings) > 1 and self._readings[1][0] <= now_ns - self._window_ns:
            self._readings.popleft()
        (begin_ns, before_s), ranks = self._readings[0], tally.running_ranks()
        if begin_ns > now_ns - self._window_ns or not ranks:
            return False
        stalled_s = self._readings[-1][1] - before_s
        return stalled_s * 1e9 > self._share * (now_ns - begin_ns) * ranks
