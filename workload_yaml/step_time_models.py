"""Step times of the paper's workloads on V100 (32 GB) GPUs: regressions over number of GPUs and batch size, and measurements.

Regressions and measurements come from the artifact's emulator (github.com/discslab-dl-bench/dlio_benchmark2): the regressions
from its branch vldb-main, the measurements in step_times.csv from the commits in that file's column `source`.
"""

import csv
from pathlib import Path
from typing import NamedTuple

from iotwin.common.errors import UsageError
from iotwin.workload_yaml import Duration, MeasuredStepTime, Normal, Quantiles, Rematerialized, StepTimeRegression
from iotwin.workload_yaml.rematerialized import rematerialized
from iotwin.workload_yaml.step_times import NamedStepTime

_TABLE = Path(__file__).with_name("step_times.csv")


class _Fit(NamedTuple):
    """Coefficients of a regression: seconds = constant + per_gpu * number of GPUs + per_sample * batch size."""

    constant: float
    per_gpu: float
    per_sample: float

    def at(self, gpus: int, batch: int) -> float:
        return self.constant + self.per_gpu * gpus + self.per_sample * batch


# (fit of the mean, fit of the standard deviation). Batch size: per GPU for unet3d and bert, of all GPUs together for dlrm.
_FITS = {
    "unet3d": (_Fit(0.27739, 0.00211888, 0.27448834), _Fit(-0.02411, 0.00429292, 0.00705136)),
    "bert": (_Fit(0.32936, 0.00622823, 0.11688357), _Fit(0.00967, 0.004484, -0.00128301)),
    "dlrm": (_Fit(-0.003567, 0.00631851, 1.47435947e-6), _Fit(-0.001390, 3.3592e-4, 6.32267933e-8)),
}


def step_time(model: NamedStepTime, gpus: int, batch: int) -> Duration:
    """Return the distribution of step times, in seconds, by `model` for `gpus` GPUs and `batch` samples.

    Raises UsageError if the model does not cover this configuration.
    """
    match model:
        case StepTimeRegression(workload, own_gpus, own_batch):
            return _fitted(workload, own_gpus or gpus, own_batch or batch)
        case MeasuredStepTime(workload, own_gpus, own_batch):
            return _measured(workload, own_gpus or gpus, own_batch or batch)
        case Rematerialized():
            return rematerialized(model)


def _fitted(workload: str, gpus: int, batch: int) -> Normal:
    mean, deviation = (fit.at(gpus, batch) for fit in _FITS[workload])
    if mean <= 0:
        raise UsageError(f"the fit for {workload} has no positive step time for {gpus} GPUs and batch {batch}; give a number")
    return Normal(mean=mean, stdev=max(0.0, deviation))


def _measured(workload: str, gpus: int, batch: int) -> Quantiles:
    with _TABLE.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(line for line in lines if not line.startswith("#")) if row["workload"] == workload]
    cells = {(int(row["gpus"]), int(row["batch"])): row for row in rows}
    if (gpus, batch) not in cells:
        known = ", ".join(f"{one} x {size}" for one, size in cells)
        raise UsageError(
            f"{workload} was not measured with {gpus} GPUs and batch {batch}; known are {known}; or use a regression"
        )
    mean, first, median, third = (float(cells[gpus, batch][key]) for key in ("mean_s", "q1_s", "median_s", "q3_s"))
    return _through_quartiles(mean, first, median, third)


def _through_quartiles(mean: float, first: float, median: float, third: float) -> Quantiles:
    """Return a piecewise linear distribution with the given quartiles and mean.

    The lowest quarter has the same slope as the second. The maximum is chosen so that the distribution's mean is `mean`.
    """
    least = max(0.0, 2 * first - median)
    # A quarter's mean is the mean of its two ends, so the overall mean is (least + 2 first + 2 median + 2 third + most) / 8.
    most = max(third, 8 * mean - least - 2 * (first + median + third))
    return Quantiles(values=[least, first, median, third, most])
