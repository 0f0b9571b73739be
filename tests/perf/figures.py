"""Figures: measured values and their bounds, one line of a table each; the statistics of repeated measurements."""

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HEADING = "| figure | bound | measured | met | detail |\n|---|---|---|---|---|"


@dataclass
class Figure:
    """One measured value and its bound."""

    name: str
    value: float
    bound: float | None = None
    at_most: bool = True
    detail: str = ""

    @property
    def met(self) -> bool:
        """True if the value keeps its bound, or has none."""
        return self.bound is None or (self.value <= self.bound if self.at_most else self.value >= self.bound)

    def line(self) -> str:
        """Return the figure as a row of a Markdown table under HEADING."""
        bound = "" if self.bound is None else f"{'at most' if self.at_most else 'at least'} {self.bound:g}"
        met = "" if self.bound is None else "yes" if self.met else "NO"
        return f"| {self.name} | {bound} | {self.value:.4g} | {met} | {self.detail} |"


def interleaved(rounds: int, *work: Callable[[], float]) -> list[list[float]]:
    """Call each of `work` once a round and return the values of each. Every other round runs backwards, against drift."""
    values: list[list[float]] = [[] for _ in work]
    for number in range(rounds):
        pairs = list(zip(work, values, strict=True))
        for each, results in pairs if number % 2 == 0 else reversed(pairs):
            results.append(each())
    return values


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    """Return the ratio of the medians."""
    return statistics.median(numerators) / statistics.median(denominators)


def paired_ratio(numerators: list[float], denominators: list[float]) -> float:
    """Return the median of the rounds' ratios. Use it for long work, during which the machine's load changes."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def paired_median(numerators: list[float], denominators: list[float]) -> tuple[float, float, float]:
    """Return the median of the rounds' ratios and its 95 % confidence interval, from order statistics."""
    ratios = sorted(a / b for a, b in zip(numerators, denominators, strict=True))
    out = max(0, math.floor((len(ratios) - 1.96 * math.sqrt(len(ratios))) / 2) - 1)  # of so many at each end
    return statistics.median(ratios), ratios[out], ratios[-1 - out]


def machine() -> str:
    """Return the machine in words."""
    system = os.uname()
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), system.machine)
    return f"{os.cpu_count()} CPUs ({model}), {memory_gib:.1f} GiB, Linux {system.release}"
