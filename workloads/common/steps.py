"""Collects the times of a rank's training steps for the job's result."""

from statistics import fmean, median


class StepMeter:
    """The times of each step: waiting for the batch, and computing from the batch's arrival until the weights are updated."""

    def __init__(self) -> None:
        self._wait_s: list[float] = []
        self._compute_s: list[float] = []

    def __len__(self) -> int:
        return len(self._wait_s)

    def add(self, asked_ns: int, arrived_ns: int, done_ns: int) -> None:
        """Add a step that requested a batch at `asked_ns`, received it at `arrived_ns` and ended at `done_ns` (same clock)."""
        self._wait_s.append((arrived_ns - asked_ns) / 1e9)
        self._compute_s.append((done_ns - arrived_ns) / 1e9)

    def summary(self) -> dict[str, float | None]:
        """Return mean seconds of steps, of waiting and of computing, and the median of steps, by name. Values are None without
        steps.

        The first steps, which are slower, affect the means but not the median.
        """
        if not self._wait_s:
            return dict.fromkeys(
                ("seconds_per_step", "median_seconds_per_step", "wait_seconds_per_step", "compute_seconds_per_step")
            )
        wait_s, compute_s = fmean(self._wait_s), fmean(self._compute_s)
        whole_s = median(wait + compute for wait, compute in zip(self._wait_s, self._compute_s, strict=True))
        return {
            "seconds_per_step": wait_s + compute_s,
            "median_seconds_per_step": whole_s,
            "wait_seconds_per_step": wait_s,
            "compute_seconds_per_step": compute_s,
        }
