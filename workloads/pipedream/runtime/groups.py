"""The groups of ranks that exchange sums: the replicas of a stage, and the first replicas of all stages."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed

from iotwin.workloads.common.torch_ranks import never_destroy
from iotwin.workloads.policies.pipeline import PipelinePlan


@dataclass(frozen=True)
class StageLeader:
    """The first replica of a stage as one of the ranks that write a checkpoint together (the protocol `Together`).

    `rank` is the stage, `world_size` the number of stages.
    """

    rank: int
    world_size: int
    group: distributed.ProcessGroup | None

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over the first replicas of all stages, which must all call this method."""
        if self.group is None:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total, group=self.group)
        return list(total.tolist())


def stage_group(plan: PipelinePlan, rank: int) -> distributed.ProcessGroup | None:
    """Return the group of the ranks of `rank`'s stage, None if the stage has one rank. All ranks must call this function."""
    own = None
    for stage in plan.stages:
        if stage.replicas > 1:
            group = _new_group(stage.ranks)
            own = group if rank in stage.ranks else own
    return own


def stage_leader(plan: PipelinePlan, rank: int) -> StageLeader | None:
    """Return the StageLeader of `rank`, None if `rank` is not the first replica of its stage. All ranks must call this."""
    leaders = [stage.ranks[0] for stage in plan.stages]
    group = _new_group(leaders) if len(leaders) > 1 else None
    return StageLeader(leaders.index(rank), len(leaders), group) if rank in leaders else None


def _new_group(ranks: Sequence[int]) -> distributed.ProcessGroup:
    group = distributed.new_group(list(ranks))
    never_destroy(group)
    return group
