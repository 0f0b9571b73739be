"""Types of a step time in the YAML: a duration, a model of one of the paper's workloads, or a time under a memory budget."""

from typing import Annotated, Literal

import msgspec

from iotwin.common.numbers.durations import Distribution, Duration, Factor


class StepTimeRegression(Distribution, tag_field="type", tag="regression"):
    """A normal distribution of the step time of one of the paper's workloads, by a regression (see step_time_models.py)."""

    workload: Literal["unet3d", "bert", "dlrm"]
    gpus: Annotated[int, msgspec.Meta(ge=1)] | None = None  # number of GPUs; None: num_gpus, or else the number of ranks
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None  # None: reader.batch_size


class MeasuredStepTime(Distribution, tag_field="type", tag="measured"):
    """The distribution of measured step times of one of the paper's workloads, by quartiles and mean (step_time_models.py)."""

    workload: Literal["unet3d", "bert", "dlrm"]
    gpus: Annotated[int, msgspec.Meta(ge=1)] | None = None
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Rematerialized(Distribution, tag_field="type", tag="rematerialized"):
    """The step time `base` under a memory budget; see rematerialized.py.

    curve: [share of peak memory, overhead] of every known feasible budget
    budget: bytes if above 1, else a share of `peak_bytes`; None means that nothing is recomputed
    simulated: False if only the budgets of the curve were measured, so that others are unknown
    """

    base: Duration
    curve: Annotated[list[tuple[Factor, Annotated[float, msgspec.Meta(ge=1, le=1e6)]]], msgspec.Meta(min_length=1)]
    peak_bytes: Annotated[int, msgspec.Meta(ge=1)]
    budget: Annotated[float, msgspec.Meta(gt=0, le=1e18)] | None = None
    simulated: bool = True


NamedStepTime = StepTimeRegression | MeasuredStepTime | Rematerialized
StepTime = Duration | NamedStepTime
