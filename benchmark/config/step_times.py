"""Computation time in the YAML: a duration, or what is known of the step times of the paper's workloads."""

from typing import Annotated, Literal

import msgspec

from common.numbers.durations import Distribution, Duration, Factor


class StepTimeRegression(Distribution, tag_field="type", tag="regression"):
    """Step times fitted over GPUs and batch size of the artifact's workloads, a normal distribution; see step_time_models.py."""

    workload: Literal["unet3d", "bert", "dlrm"]
    gpus: Annotated[int, msgspec.Meta(ge=1)] | None = None  # None: num_gpus, or the ranks of the run
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None  # None: reader.batch_size


class MeasuredStepTime(Distribution, tag_field="type", tag="measured"):
    """Step times that were measured of the artifact's workloads, by their quartiles and mean; see step_time_models.py."""

    workload: Literal["unet3d", "bert", "dlrm"]
    gpus: Annotated[int, msgspec.Meta(ge=1)] | None = None
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Rematerialized(Distribution, tag_field="type", tag="rematerialized"):
    """The time `base` under a memory budget: `curve` has [share of the peak, overhead] of every feasible budget that is known.

    `budget` is bytes, or up to 1 a share of `peak_bytes`; without one nothing is recomputed. See rematerialized.py.
    """

    base: Duration
    curve: Annotated[list[tuple[Factor, Annotated[float, msgspec.Meta(ge=1, le=1e6)]]], msgspec.Meta(min_length=1)]
    peak_bytes: Annotated[int, msgspec.Meta(ge=1)]
    budget: Annotated[float, msgspec.Meta(gt=0, le=1e18)] | None = None


StepTime = Duration | StepTimeRegression | MeasuredStepTime | Rematerialized
