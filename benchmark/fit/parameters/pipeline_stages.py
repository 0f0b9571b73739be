"""Find the stages, the schedule and the times of a pipeline in the forward and backward passes that its ranks logged.

A job logs passes as parts of steps with the names F and B and the pipeline's stage, as `iotwin.workloads.pipedream` does with
`--variant instrumented`. A rank's time within an epoch consists of its passes, and of waits for other ranks and data. A pass
includes sending or updating weights, and an equal share of the time that the log does not show.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.parameters.distributions import quantiles
from iotwin.benchmark.fit.traced_job import Job
from iotwin.workload_yaml.schema import Pipeline, PipelineStage
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage, order, versions

_WAITS = ("recv_act", "recv_grad", "data_wait", "allreduce")
_OF_FORWARD, _OF_BACKWARD = ("send_act",), ("send_grad", "opt_step")
_SCHEDULES = ("1f1b", "none", "flush", "gpipe")  # 2bw has the same order as 1f1b, but other versions of weights
_TRANSFER = 0.05  # quantile of the times of receiving that is taken as the pure transfer time: the data had arrived already
_LABELS = ("stage", "rank", "step")


@dataclass(frozen=True)
class SeenPipeline:
    """The pipeline of a traced job. `section` lists its stages; `evaluated` is the number of minibatches of an evaluation.

    `first_waits_s` has, for each epoch, the mean time that the ranks of stage 0 waited for their first minibatches.
    """

    section: Pipeline
    evaluated: int
    first_waits_s: list[float]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(len(stage.ranks) for stage in self.section.stages)


def logs_passes(parts: pd.DataFrame | None) -> bool:
    """Return True if the parts of steps include forward and backward passes of a pipeline's stages."""
    if parts is None or not len(parts):
        return False
    passes = parts[parts["name"].isin(("f", "b")) & parts[list(_LABELS)].notna().all(axis=1)]
    return set(passes["name"].astype(str)) == {"f", "b"}


def ranks_by_start(job: Job, known: Sequence[int], count: int) -> list[int]:
    """Return the pids of a job's ranks in order of start: the `known` ranks and their siblings, if these are `count` in all.

    Otherwise, returns `known`. Ranks of a pipeline that read no data look like helper processes. Launchers start ranks in order.
    """
    processes = job.processes.sort_values("start_ns", kind="stable")
    parents = processes.loc[processes["pid"].isin(known), "ppid"].unique()
    found: list[int] = processes.loc[processes["ppid"].isin(parents), "pid"].tolist()
    return found if len(found) == count else list(known)


def find_pipeline(job: Job, epochs: int, assumptions: list[str]) -> SeenPipeline | None:
    """Return the pipeline whose passes the job logged in `epochs` epochs; None without passes, or if no plan explains them."""
    parts = job.trace.step_parts()
    if parts is None or not logs_passes(parts):
        return None
    parts = parts[parts[list(_LABELS)].notna().all(axis=1)].astype(dict.fromkeys(_LABELS, np.int64) | {"name": str})
    forward = parts[parts["name"] == "f"]
    stages = _ranks_of_stages(forward)
    minibatches = forward.loc[forward["stage"] == 0, "step"].nunique() // epochs
    if stages is None or not minibatches:
        assumptions.append("the logged passes are of stages that share ranks or have none; the twin is no pipeline")
        return None
    plan = _plan(parts, stages, minibatches, assumptions)
    times = [_stage(parts, stage, minibatches) for stage in plan.stages]
    depth = {str(stage): warm_up for stage, warm_up in plan.depth.items()}
    schedule: Any = plan.schedule
    section = Pipeline(times, schedule=schedule, depth=depth, minibatches=minibatches)
    evaluated = ((parts["name"] == "eval_f") & (parts["stage"] == 0)).sum()
    return SeenPipeline(section, int(evaluated) // epochs, _first_waits_s(parts, minibatches))


def _ranks_of_stages(forward: pd.DataFrame) -> list[tuple[int, ...]] | None:
    """Return the ranks of each stage, in the order in which they take minibatches; None if a rank or a stage is missing."""
    first = forward.sort_values("start_ns", kind="stable").drop_duplicates(["stage", "rank"])
    found: dict[int, list[int]] = defaultdict(list)
    for stage, rank in first.sort_values("step", kind="stable")[["stage", "rank"]].itertuples(index=False):
        found[stage].append(rank)
    ranks = sorted(rank for each in found.values() for rank in each)
    if sorted(found) != list(range(len(found))) or ranks != list(range(len(ranks))):
        return None
    return [tuple(found[stage]) for stage in range(len(found))]


def _plan(parts: pd.DataFrame, stages: Sequence[tuple[int, ...]], minibatches: int, assumptions: list[str]) -> PipelinePlan:
    """Return the plan whose order of passes is that of the first epoch on all ranks."""
    passes = parts[parts["name"].isin(("f", "b"))]
    passes = passes[passes["step"] < passes["step"].min() + minibatches].sort_values("start_ns", kind="stable")
    base = int(passes["step"].min())
    names = passes["name"].str.upper()
    seen = {rank: list(zip(names[own.index], (own["step"] - base).tolist(), strict=True)) for rank, own in passes.groupby("rank")}
    own = tuple(Stage(index, ranks, 0.0, 0.0) for index, ranks in enumerate(stages))
    observed = {stage.stage: _warm_up(seen[stage.ranks[0]]) for stage in own}
    for depth, schedule in product(({}, observed), _SCHEDULES):
        plan = PipelinePlan(own, schedule, depth)
        placed = [(stage, replica, rank) for stage in own for replica, rank in enumerate(stage.ranks)]
        if all(order(plan, stage.stage, replica, minibatches) == seen[rank] for stage, replica, rank in placed):
            grouped = schedule == "1f1b" and _is_2bw(plan, passes, minibatches)
            return PipelinePlan(own, "2bw", depth) if grouped else plan
    assumptions.append("no schedule explains the order of all passes; the twin follows 1f1b with the job's warm-up")
    return PipelinePlan(own, "1f1b", observed)


def _warm_up(passes: Sequence[tuple[str, int]]) -> int:
    """Return the number of forward passes before the first pair of a forward and a backward pass."""
    kinds = [kind for kind, _ in passes]
    return max(kinds.index("B") - 1, 0) if "B" in kinds else len(kinds)


def _is_2bw(plan: PipelinePlan, passes: pd.DataFrame, minibatches: int) -> bool:
    """Return True if the versions of the weights are those of 2BW and not those of 1F1B."""

    def explains(schedule: str) -> bool:
        for stage, replica, rank in placed:
            own = passes[(passes["rank"] == rank) & (passes["name"] == "f")].sort_values("step")["version"]
            if own.isna().any() or (own - own.min()).tolist() != versions(plan, stage, replica, minibatches, schedule):
                return False
        return True

    placed = [(stage.stage, replica, rank) for stage in plan.stages for replica, rank in enumerate(stage.ranks)]

    return not explains("1f1b") and explains("2bw")


def _stage(parts: pd.DataFrame, stage: Stage, minibatches: int) -> PipelineStage:
    """Return a stage with the times of its passes. Work that is not logged as a pass is added to each pass by its mean."""
    own = parts[parts["stage"] == stage.stage]
    passes = int((own["name"] == "b").sum())
    amounts = np.sum([_own_s(own[own["rank"] == rank], minibatches) for rank in stage.ranks], axis=0) / max(passes, 1)
    sends_s, updates_s, rest_s = (float(each) for each in amounts)
    reduced = own[own["name"] == "allreduce"]
    # The last rank to arrive waits for no other one.
    reduced_s = float(reduced.groupby("step")["duration_ns"].min().sum()) / 1e9 * stage.replicas / max(passes, 1)
    evaluations = _seconds(own, "eval_f")
    return PipelineStage(
        list(stage.ranks),
        forward_s=quantiles(_seconds(own, "f") + sends_s + rest_s / 2),
        backward_s=quantiles(_seconds(own, "b") + updates_s + rest_s / 2),
        all_reduce_s=round(reduced_s, 6),
        receive_s=round(_transfer_s(parts, stage.stage, "recv_act") + _transfer_s(parts, stage.stage - 1, "recv_grad"), 6),
        evaluation_s=quantiles(evaluations) if len(evaluations) else None,
    )


def _seconds(own: pd.DataFrame, name: str) -> NDArray[np.float64]:
    return own.loc[own["name"] == name, "duration_ns"].to_numpy(np.float64) / 1e9


def _own_s(own: pd.DataFrame, minibatches: int) -> tuple[float, float, float]:
    """Return the seconds that a rank spent in its epochs on sending activations, on gradients and updates, and on the rest.

    The rest is the time that is not logged. It does not include passes and waits.
    """
    passes = own[own["name"].isin(("f", "b"))]
    found = np.zeros(3)
    for _, epoch in passes.groupby((passes["step"] - passes["step"].min()) // minibatches):
        begin_ns, last_ns = epoch["start_ns"].min(), epoch["start_ns"].max()
        inside = own[(own["start_ns"] >= begin_ns) & (own["start_ns"] <= last_ns)]
        # The update after the last backward pass begins before any evaluation or other epoch.
        later = own[(own["start_ns"] > last_ns) & (own["name"] == "opt_step")].nsmallest(1, "start_ns")
        inside = pd.concat([inside, later]).drop_duplicates()
        took = inside["duration_ns"].groupby(inside["name"]).sum()
        end_ns = int((inside["start_ns"] + inside["duration_ns"]).max())
        waited = own[own["name"].isin(_WAITS) & (own["start_ns"] >= begin_ns) & (own["start_ns"] < end_ns)]["duration_ns"].sum()
        computed, forward, backward = (float(took.reindex(names).sum()) for names in (("f", "b"), _OF_FORWARD, _OF_BACKWARD))
        found += (forward, backward, max(end_ns - begin_ns - waited - computed - forward - backward, 0.0))
    return found[0] / 1e9, found[1] / 1e9, found[2] / 1e9


def _first_waits_s(parts: pd.DataFrame, minibatches: int) -> list[float]:
    """Return the mean seconds that the ranks of stage 0 waited for data before the first pass of each epoch."""
    waits, forward = parts[parts["name"] == "data_wait"], parts[(parts["name"] == "f") & (parts["stage"] == 0)]
    epochs = (forward["step"] - forward["step"].min()) // minibatches
    found: dict[int, list[float]] = defaultdict(list)
    for epoch, rank in sorted(set(zip(epochs.tolist(), forward["rank"].tolist(), strict=True))):
        first_ns = int(forward.loc[(epochs == epoch) & (forward["rank"] == rank), "start_ns"].min())
        before = waits[(waits["rank"] == rank) & (waits["start_ns"] < first_ns)]["duration_ns"].to_numpy()
        if len(before):  # parts are in order of start
            found[epoch].append(int(before[-1]) / 1e9)
    return [float(np.mean(found[epoch])) for epoch in sorted(found)]


def _transfer_s(parts: pd.DataFrame, stage: int, name: str) -> float:
    """Return the seconds that `stage` needs for a transfer if it need not wait for the data.

    `name`: "recv_act" or "recv_grad". The result is the 5 % quantile of their durations in `parts`; 0 if there are none.
    """
    took = parts.loc[(parts["stage"] == stage) & (parts["name"] == name), "duration_ns"]
    return float(took.quantile(_TRANSFER)) / 1e9 if len(took) else 0.0
