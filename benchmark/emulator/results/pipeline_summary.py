"""The summary of a pipeline's run: the seconds of a minibatch, and what each stage computed, read and wrote."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from iotwin.benchmark.emulator.journal import Measured
from iotwin.benchmark.emulator.pipeline_channels import plan_of
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.workload_yaml import Config
from iotwin.workloads.policies.pipeline import Stage


def pipeline_summary(config: Config, ranks: Sequence[Measured], table: StepTable) -> dict[str, Any]:
    """Return the summary of a run of a pipeline by the measurements and the steps of its `ranks`.

    ``{"seconds", "seconds_per_minibatch", "stages": [{"stage", "replicas", "busy_share", "bubble_share", "data_wait_s",
    "read_bytes", "checkpoint_bytes"}]}``. `seconds` covers all epochs. `seconds_per_minibatch` is measured at the last stage.
    Shares are shares of the time of all epochs, on all ranks of the stage.
    """
    section = config.twin.pipeline
    assert section is not None  # noqa: S101
    plan = plan_of(section)
    epochs = config.train.epochs
    passes = [np.array(one.passes, np.int64).reshape(epochs, -1, 4) for one in ranks]
    spans_ns = [
        max(int(p[e, :, 3].max()) for p in passes if p.size) - min(int(p[e, :, 2].min()) for p in passes if p.size)
        for e in range(epochs)
    ]
    total_s = sum(spans_ns) / 1e9
    last = [passes[rank] for rank in plan.stages[-1].ranks if passes[rank].size]
    steady_s = sum(
        (max(int(p[e, :, 3].max()) for p in last) - min(int(p[e, :, 2].min()) for p in last)) / 1e9 for e in range(epochs)
    )
    minibatches = sum(p[:, :, 0].sum() for p in last)
    return {
        "seconds": total_s,
        "seconds_per_minibatch": steady_s / int(minibatches),
        "stages": [_stage_summary(stage, [ranks[rank] for rank in stage.ranks], table, total_s) for stage in plan.stages],
    }


def _stage_summary(stage: Stage, ranks: Sequence[Measured], table: StepTable, total_s: float) -> dict[str, Any]:
    busy_s = sum((end_ns - begin_ns) / 1e9 for one in ranks for _, _, begin_ns, end_ns in one.passes)
    columns = [table.of_rank(one.rank) for one in ranks]
    share = busy_s / (total_s * stage.replicas)
    return {
        "stage": stage.stage,
        "replicas": stage.replicas,
        "busy_share": share,
        "bubble_share": 1 - share,
        "data_wait_s": sum(int(each["data_wait_ns"].sum()) for each in columns) / 1e9,
        "read_bytes": sum(int(each["bytes_read"].sum()) for each in columns),
        "checkpoint_bytes": sum(file.size_bytes for one in ranks for file in one.saved),
    }
