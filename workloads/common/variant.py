"""The variants of a workload: the original job, one that also logs the parts of steps, one that sleeps instead of computing."""

import math
import os
from argparse import ArgumentParser
from pathlib import Path

from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.durations import Duration, Normal, Quantiles
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.common.untrusted_files import read_foreign_json

ORIGINAL, INSTRUMENTED, SLEEP, PROFILER = "original", "instrumented", "sleep", "profiler"
TIMED = (INSTRUMENTED, SLEEP)  # variants that log the parts of steps
_FROM_ENVIRONMENT = "WORKLOAD_VARIANT"  # environment variable that a container image of a variant sets


def add_variant_options(parser: ArgumentParser, variants: tuple[str, ...] = (ORIGINAL, INSTRUMENTED, SLEEP)) -> None:
    """Add --variant (one of `variants`, by default the image's) and --sleep to `parser`."""
    default = os.environ.get(_FROM_ENVIRONMENT, ORIGINAL)
    parser.add_argument("--variant", default=default, metavar="NAME", help=f"{', '.join(variants)} (default {default})")
    parser.add_argument(
        "--sleep",
        metavar="MODEL",
        help="seconds slept for every training batch by the variant sleep: SECONDS, MEAN,STDEV of a normal curve, or a "
        "computation_time.json of iotwin plot steps",
    )
    parser.set_defaults(variants=variants)


def check_variant(variant: str, sleep: str | None, known: tuple[str, ...]) -> None:
    """Check --variant and --sleep.

    Raises UsageError if `variant` is not in `known`, or if `sleep` is missing for the variant sleep or given for another one.
    """
    if variant not in known:
        raise UsageError(f"--variant '{variant}' is unknown{nearest(variant, list(known))}; choose {', '.join(known)}")
    if variant == SLEEP and sleep is None:
        raise UsageError("--variant sleep needs --sleep: seconds, MEAN,STDEV, or a file that iotwin plot steps wrote")
    if variant != SLEEP and sleep is not None:
        raise UsageError(f"--sleep is for --variant sleep, not for {variant}")
    if sleep is not None:
        parse_sleep(sleep)


def parse_sleep(text: str) -> Duration:
    """Return the duration or distribution that --sleep describes: '0.2', '1.36,0.01', or a file of `iotwin plot steps`.

    Raises UsageError if a time is impossible, IotwinError if the file is invalid.
    """
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return _read_sleep(Path(text))
    if len(numbers) > 2:
        raise UsageError(f"--sleep '{text}' has {len(numbers)} numbers; write SECONDS or MEAN,STDEV")
    return _checked(numbers[0] if len(numbers) == 1 else Normal(*numbers))


def _read_sleep(path: Path) -> Duration:
    try:
        document = read_foreign_json(path)
        if isinstance(document, dict) and document.get("type") == "quantiles" and document["values"]:
            return _checked(Quantiles(sorted(float(value) for value in document["values"])))
        if isinstance(document, dict) and document.get("type") == "normal":
            return _checked(Normal(float(document["mean"]), float(document.get("stdev", 0.0))))
        return _checked(float(document))
    except OSError as error:
        raise IotwinError(f"--sleep {path}: {error.strerror}; write seconds, MEAN,STDEV, or an existing file") from None
    except UsageError:
        raise
    except (IotwinError, ValueError, TypeError, KeyError):
        raise IotwinError(
            f"{path} is no computation_time of the kinds normal and quantiles; make one with iotwin plot steps"
        ) from None


def _checked(duration: Duration) -> Duration:
    """Return `duration`. Raises UsageError if one of its times is infinite, NaN or negative."""
    match duration:
        case Quantiles(values):
            seconds = values
        case Normal(mean, stdev):
            seconds = [mean, stdev]
        case _:
            seconds = [float(duration)]  # type: ignore[arg-type]
    if not all(math.isfinite(value) and value >= 0 for value in seconds):
        raise UsageError("the seconds of a --sleep model must be finite and at least 0")
    return duration


class SleptSteps:
    """Sleeps instead of computing, for one rank. The time of each step is drawn from a distribution."""

    _STRATA = (
        64  # each 64 steps draw one time from each 64th of the distribution, so even short runs take about the mean per step
    )

    def __init__(self, duration: Duration, seed: int, rank: int) -> None:
        self._time, self._rank, self._step = DrawnTime(duration, seed, Purpose.SLEPT_STEP, self._STRATA), rank, 0
        self._sleeper = Sleeper()

    def next_step(self) -> None:
        """Sleep for the time of the next step."""
        self._sleeper.sleep(self._time.seconds(self._rank, 0, self._step))
        self._step += 1
