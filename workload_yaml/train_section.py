"""The section `train`: epochs and steps, and how long a step computes."""

from typing import Annotated

import msgspec

from iotwin.workload_yaml.dataset import OrNone, Positive, Section, Share
from iotwin.workload_yaml.recorded_section import Factor
from iotwin.workload_yaml.step_times import MeasuredStepTime, StepTime, StepTimeRegression

Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Train(Section):
    """Training steps. The keys computation_scale, computation_batch_size and computation_per_sample are iotwin's."""

    epochs: Positive = 1
    computation_time: StepTime = 0.0  # per step
    computation_scale: Factor = 1.0  # factor for the computation of all steps, also of evaluations
    computation_batch_size: Positive | None = None  # batch size for which computation_time holds; None: for any
    computation_per_sample: Share = 1.0  # share of the computation that grows with the batch; the rest remains as it is
    total_training_steps: OrNone = -1  # most steps of each epoch, as in DLIO; -1: all
    seed: Seed = 123  # seed for the order of samples, drawn times and checkpoint content
    seed_change_epoch: bool = True  # a new order in each epoch; False: the same order in all


def batch_factor(train: Train, batch: float) -> float:
    """Return the factor by which a step's computation changes if its batch is `batch` times as large."""
    return 1 - train.computation_per_sample + train.computation_per_sample * batch


def step_factor(train: Train, batch_size: int) -> float:
    """Return the factor for `train.computation_time` of a step with `batch_size` samples, by computation_scale and
    `batch_factor`.
    """
    return train.computation_scale * batch_factor(train, batch_size / (train.computation_batch_size or batch_size))


def knows_batch(time: StepTime) -> bool:
    """Return True if a step time is computed from reader.batch_size: the regressions and measurements of the paper."""
    return isinstance(time, StepTimeRegression | MeasuredStepTime) and time.batch_size is None
