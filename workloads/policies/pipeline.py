"""The plan of a training pipeline, and the order in which its ranks compute the forward (F) and backward (B) passes.

Minibatches count from 0 over the whole run. Terms and formulas follow Narayanan et al., "PipeDream: Generalized Pipeline
Parallelism for DNN Training" (SOSP 2019) and "Memory-Efficient Pipeline-Parallel DNN Training" (ICML 2021, flush and 2BW), and
for GPipe Huang et al. (NeurIPS 2019).
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Schedule = Literal["1f1b", "gpipe", "flush", "none", "2bw"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)

CHECKPOINTS_KEPT = 2  # the newest checkpoint, and one in case that it is damaged
Pass = tuple[str, int]  # "F" or "B", and the minibatch


@dataclass(frozen=True)
class Stage:
    """One stage: its index, its ranks (replicas), the seconds and bytes of a minibatch on one rank, and its layers.

    `nodes` holds the layers' ids, `kinds` the kind of each, such as Conv2d; no `kinds` means unknown ones.

    `all_reduce_s` is the time that averaging gradients over the replicas adds to a backward pass. `receive_s` is the time to
    transfer the input and its gradient.
    """

    stage: int
    ranks: tuple[int, ...]
    forward_s: float
    backward_s: float
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    all_reduce_s: float = 0.0
    receive_s: float = 0.0
    nodes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        """Return the stage's number of ranks."""
        return len(self.ranks)

    @property
    def busy_s(self) -> float:
        """Return the seconds per minibatch in which one rank computes and averages gradients."""
        return self.forward_s + self.backward_s + self.all_reduce_s

    @property
    def seconds_per_minibatch(self) -> float:
        """Return the least seconds between two minibatches, if all ranks of the stage take turns."""
        return max(self.busy_s, self.receive_s) / self.replicas


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline. `depth` overrides the warm-up of some stages; `origin` holds the other values of the plan's file."""

    stages: tuple[Stage, ...]
    schedule: str = "1f1b"
    depth: dict[int, int] = field(default_factory=dict)
    batch_size: int | None = None
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def bottleneck(self) -> Stage:
        """Return the slowest stage, the first if several are equally slow."""
        return max(self.stages, key=lambda stage: stage.seconds_per_minibatch)

    def warm_up(self, stage: int) -> int:
        """Return a stage's warm-up: how many forward passes a rank computes before F and B alternate.

        It is floor((N - 1 - ranks of earlier stages) / replicas) for N ranks in all (SOSP paper, section 3.2).
        """
        if stage in self.depth:
            return self.depth[stage]
        before = sum(each.replicas for each in self.stages[:stage])
        return (self.ranks - 1 - before) // self.stages[stage].replicas

    @property
    def noam(self) -> int:
        """Return the number of minibatches in flight per rank of stage 0 in steady state (NUM_OPT_ACTIVE_MINIBATCHES)."""
        return math.ceil(self.ranks / self.stages[0].replicas)

    @property
    def group(self) -> int:
        """Return the minibatches of a group: as many as fill the pipeline. A flush, or an update of 2BW, follows each group."""
        return self.noam * self.stages[0].replicas

    def rank_of(self, stage: int, minibatch: int) -> int:
        """Return the rank of `stage` that computes both passes of a minibatch. The stage's ranks take minibatches in turn."""
        ranks = self.stages[stage].ranks
        return ranks[minibatch % len(ranks)]

    def update_of(self, stage: int, minibatch: int) -> int:
        """Return the index of the update of `stage`'s weights that a minibatch's gradient contributes to."""
        grouped = self.schedule in ("gpipe", "flush", "2bw")
        return minibatch // (self.group if grouped else self.stages[stage].replicas)

    def versions_kept(self, stage: int, schedule: str | None = None) -> int:
        """Return how many versions of its weights a rank of `stage` holds at once."""
        return {"1f1b": self.warm_up(stage) + 1, "2bw": 2}.get(schedule or self.schedule, 1)


def order(plan: PipelinePlan, stage: int, replica: int, minibatches: int, schedule: str | None = None) -> list[Pass]:
    """Return the passes of the `replica`-th rank of a stage, in order. `minibatches` is the number in the whole run.

    * 1f1b and 2bw: F for the warm-up, then F and B alternately, then the remaining B.
    * none: F and B alternately.
    * flush: as 1f1b, within each group of minibatches (PipelinePlan.group).
    * gpipe: all F of a group, then all B.
    """
    schedule = schedule or plan.schedule
    own = range(replica, minibatches, plan.stages[stage].replicas)
    if schedule in ("1f1b", "2bw"):
        return _one_forward_one_backward(list(own), plan.warm_up(stage))
    if schedule == "none":
        return _one_forward_one_backward(list(own), 0)
    found: list[Pass] = []
    for begin in range(0, minibatches, plan.group):
        group = [minibatch for minibatch in own if begin <= minibatch < begin + plan.group]
        found += _one_forward_one_backward(group, len(group) if schedule == "gpipe" else plan.warm_up(stage))
    return found


def _one_forward_one_backward(own: list[int], warm_up: int) -> list[Pass]:
    """Return F of the first `warm_up` minibatches, then F and B alternately, then the remaining B."""
    ahead = min(warm_up, len(own))
    found: list[Pass] = [("F", minibatch) for minibatch in own[:ahead]]
    for index, minibatch in enumerate(own[ahead:]):
        found += [("F", minibatch), ("B", own[index])]
    return found + [("B", minibatch) for minibatch in own[len(own) - ahead :]]


def versions(plan: PipelinePlan, stage: int, replica: int, minibatches: int, schedule: str | None = None) -> list[int]:
    """Return the version of the weights that each minibatch of a rank uses: the number of weight updates before it.

    For the rank's i-th minibatch it is max(0, i - warm-up) with 1f1b, and i with none. With gpipe and flush it is the index of
    the group, and with 2bw one less.
    """
    schedule = schedule or plan.schedule
    own = range(replica, minibatches, plan.stages[stage].replicas)
    if schedule in ("1f1b", "none"):
        behind = plan.warm_up(stage) if schedule == "1f1b" else 0
        return [max(0, index - behind) for index in range(len(own))]
    behind = 1 if schedule == "2bw" else 0
    return [max(0, minibatch // plan.group - behind) for minibatch in own]


def routes(plan: PipelinePlan, minibatches: int) -> list[list[int]]:
    """Return, for each minibatch, the ranks that compute it, one per stage."""
    return [[plan.rank_of(stage, minibatch) for stage in range(len(plan.stages))] for minibatch in range(minibatches)]
