"""The lines that PipeDream's training program prints, which its scripts and ``iotwin pipedream results`` read."""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

_TOP = 5  # a sample counts as right for Prec@5 if its class has one of the 5 highest scores


@dataclass
class Meter:
    """The newest value of a quantity, and its mean."""

    value: float = 0.0
    total: float = 0.0
    weight: int = 0

    def add(self, value: float, weight: int = 1) -> None:
        """Add a value that counts `weight` times."""
        self.value = value
        self.total += value * weight
        self.weight += weight

    @property
    def mean(self) -> float:
        """Return the mean of all values, 0 if there are none."""
        return self.total / self.weight if self.weight else 0.0

    def text(self, digits: int) -> str:
        """Return ``VALUE (MEAN)``."""
        return f"{self.value:.{digits}f} ({self.mean:.{digits}f})"


def precisions(output: Tensor, classes: Tensor) -> tuple[float, float] | None:
    """Return (Prec@1, Prec@5), the per cent of samples whose class has the highest score, or one of the 5 highest.

    Returns None if `output` does not have the shape (samples, classes).
    """
    if output.dim() != 2 or classes.shape != output.shape[:1] or classes.is_floating_point():
        return None
    right = output.topk(min(_TOP, output.shape[1]), dim=1).indices == classes[:, None]
    return 100 * float(right[:, 0].float().mean()), 100 * float(right.any(1).float().mean())


@dataclass
class EpochLog:
    """Prints a line for every `every`-th of the `count` minibatches of a rank, in training ("Epoch") or an evaluation ("Test").

    The last stage prints loss and precision; precision is 0 if the model is no classifier. Memory is the largest resident size
    of the process so far, in GB.
    """

    kind: str
    epoch: int
    count: int
    every: int
    index: int = 0
    begin_s: float = field(default_factory=time.time)
    took: Meter = field(default_factory=Meter)
    loss: Meter = field(default_factory=Meter)
    top1: Meter = field(default_factory=Meter)
    top5: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        """Begin to measure the time of the first minibatch."""
        self._last_s = self.begin_s

    def add(self, output: Tensor | None, targets: Sequence[Tensor], loss: float | None) -> None:
        """Count a minibatch, and print a line if one is due."""
        now_s = time.time()
        self.took.add(now_s - self._last_s)
        self._last_s = now_s
        if output is not None and loss is not None:
            self.loss.add(loss, len(output))
            top1, top5 = (precisions(output, targets[0]) if targets else None) or (0.0, 0.0)
            self.top1.add(top1, len(output))
            self.top5.add(top5, len(output))
        if self.index % self.every == 0:
            print(self._line(now_s, output is not None), flush=True)
        self.index += 1

    def _line(self, now_s: float, is_last: bool) -> str:
        hours = (now_s - self.begin_s) / 3600
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        begin, memory = f"{self.kind}: [{self.epoch}][{self.index}/{self.count}]", f"Memory: {peak_gb:.3f} ({peak_gb:.3f})"
        if not is_last:
            return f"{begin}\t{memory}"
        whole_hours = hours / (self.index + 1) * self.count
        epoch_time = [f"Epoch time [hr]: {hours:.3f} ({whole_hours:.3f})"] if self.kind == "Epoch" else []
        return "\t".join([
            begin, f"Time: {self.took.text(3)}", *epoch_time, memory, f"Loss: {self.loss.text(4)}",
            f"Prec@1: {self.top1.text(3)}", f"Prec@5: {self.top5.text(3)}",
        ])  # fmt: skip
