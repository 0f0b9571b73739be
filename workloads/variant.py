"""What each program can run as: the original job, the same with its parts timed, or with its computation slept away."""

import json
import os
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import NormalDist

import numpy as np

from tracing_tools.trace.errors import IotwinError, UsageError, nearest

ORIGINAL, INSTRUMENTED, SLEEP, PROFILER = "original", "instrumented", "sleep", "profiler"
TIMED = (INSTRUMENTED, SLEEP)  # these log the parts of steps
_FROM_ENVIRONMENT = "WORKLOAD_VARIANT"  # set by an image that was built for one variant
_STRATA = 64
_LARGEST_BELOW_ONE = float(np.nextafter(1.0, 0.0))


def add_variant_options(parser: ArgumentParser, variants: tuple[str, ...] = (ORIGINAL, INSTRUMENTED, SLEEP)) -> None:
    """Add --variant (one of `variants`; the default is the image's) and --sleep to `parser`."""
    default = os.environ.get(_FROM_ENVIRONMENT, ORIGINAL)
    parser.add_argument("--variant", default=default, metavar="NAME", help=f"{', '.join(variants)} (default {default})")
    parser.add_argument(
        "--sleep", metavar="MODEL",
        help="seconds slept for every training batch by the variant sleep: SECONDS, MEAN,STDEV of a normal curve, or a "
        "computation_time.json of iotwin plot steps",
    )  # fmt: skip
    parser.set_defaults(variants=variants)


def check_variant(variant: str, sleep: str | None, known: tuple[str, ...]) -> None:
    """Raise UsageError unless `variant` is one of `known` and has a --sleep model exactly if it sleeps."""
    if variant not in known:
        raise UsageError(f"--variant '{variant}' is unknown{nearest(variant, list(known))}; choose {', '.join(known)}")
    if variant == SLEEP and sleep is None:
        raise UsageError("--variant sleep needs --sleep: seconds, MEAN,STDEV, or a file that iotwin plot steps wrote")
    if variant != SLEEP and sleep is not None:
        raise UsageError(f"--sleep is for --variant sleep, not for {variant}")
    if sleep is not None:
        SleepModel.parse(sleep)


class SleepModel:
    """A distribution of seconds, drawn by inverse transform and keyed by (seed, rank, step), so that a rerun sleeps the same.

    Draws are stratified: each 64 steps of a rank have one in every 64th of the distribution, in random order, so that a short run
    takes its mean time, too.
    """

    def __init__(self, quantiles: list[float] | None = None, mean: float = 0.0, stdev: float = 0.0) -> None:
        numbers = np.array([*(quantiles or []), mean, stdev], dtype=float)
        if not np.isfinite(numbers).all() or (numbers < 0).any():
            raise UsageError("the seconds of a --sleep model must be finite and at least 0")
        self._quantiles, self._mean, self._stdev = quantiles, mean, stdev

    @classmethod
    def parse(cls, text: str) -> "SleepModel":
        """Return the model that `text` means: '0.2', '1.36,0.01' or a JSON file with an emulator's computation_time."""
        parts = text.split(",")
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            return cls._read(Path(text))
        if len(numbers) > 2:
            raise UsageError(f"--sleep '{text}' has {len(numbers)} numbers; write SECONDS or MEAN,STDEV")
        return cls(mean=numbers[0], stdev=numbers[1] if len(numbers) == 2 else 0.0)

    @classmethod
    def _read(cls, path: Path) -> "SleepModel":
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(document, dict) and document.get("type") == "quantiles" and document["values"]:
                return cls(quantiles=sorted(float(value) for value in document["values"]))
            if isinstance(document, dict) and document.get("type") == "normal":
                return cls(mean=float(document["mean"]), stdev=float(document.get("stdev", 0.0)))
            return cls(mean=float(document))
        except OSError as error:
            raise IotwinError(f"--sleep {path}: {error.strerror}; write seconds, MEAN,STDEV, or an existing file") from None
        except (ValueError, TypeError, KeyError):
            raise IotwinError(
                f"{path} is no computation_time of the kinds normal and quantiles; make one with iotwin plot steps"
            ) from None

    def seconds(self, seed: int, rank: int, step: int) -> float:
        """Return the seconds to sleep in step `step` of `rank`; a normal curve is truncated at zero."""
        block, place = divmod(step, _STRATA)
        rng = np.random.Generator(np.random.Philox(key=[seed, 0x5EE9], counter=[0, rank, block, 0]))
        draw = float(rng.permutation(_STRATA)[place] + rng.random(_STRATA)[place]) / _STRATA
        if self._quantiles is not None:
            return float(np.interp(draw * (len(self._quantiles) - 1), np.arange(len(self._quantiles)), self._quantiles))
        if not self._stdev:
            return self._mean
        curve = NormalDist(self._mean, self._stdev)
        below_zero = curve.cdf(0.0)
        return max(0.0, curve.inv_cdf(min(max(below_zero + draw * (1 - below_zero), 5e-324), _LARGEST_BELOW_ONE)))


class Slumber:
    """Sleeps a drawn time per step; what one sleep takes too long is taken off the next."""

    def __init__(self, model: SleepModel, seed: int, rank: int) -> None:
        self._model, self._seed, self._rank = model, seed, rank
        self._step, self._overshoot_s = 0, 0.0

    def next_step(self) -> None:
        """Sleep as long as this step computes."""
        wanted = self._model.seconds(self._seed, self._rank, self._step) - self._overshoot_s
        self._step += 1
        begin = time.perf_counter()
        time.sleep(max(0.0, wanted))
        self._overshoot_s = max(0.0, time.perf_counter() - begin - wanted) if wanted > 0 else -wanted
