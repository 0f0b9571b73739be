"""How long the steps of a rank take, as its job's result tells."""

from statistics import fmean, median


class StepMeter:
    """Seconds of every step: waiting for its batch, and from having it to updated weights."""

    def __init__(self) -> None:
        self._wait_s: list[float] = []
        self._compute_s: list[float] = []

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self._wait_s)

    def add(self, asked_ns: int, arrived_ns: int, done_ns: int) -> None:
        """Add a step that asked for its batch, had it and was done at these times."""
        self._wait_s.append((arrived_ns - asked_ns) / 1e9)
        self._compute_s.append((done_ns - arrived_ns) / 1e9)

    def summary(self) -> dict[str, float | None]:
        """Return the means of whole steps and their parts, and the median, which cold steps do not move; None without steps."""
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
