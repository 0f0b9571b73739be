"""Simulates when a pipeline computes each pass, if passes take the times in the plan.

A rank runs its passes in order. A forward pass (F) waits for the output of the previous stage, a backward pass (B) for the
gradient from the next stage. Transfers overlap passes. As in the optimizer's formulas, each rank has one link to the previous
stage, for one transfer at a time. Replicas of a stage do not wait for one another. Reads take no time.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from iotwin.workloads.policies.pipeline import Pass, PipelinePlan, order, routes, versions


@dataclass(frozen=True)
class Timeline:
    """The passes of a run as columns of equal length, in no particular order. Times are seconds since the start of the run."""

    rank: np.ndarray
    stage: np.ndarray
    minibatch: np.ndarray
    backward: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    @property
    def seconds(self) -> float:
        """Return the end of the last pass."""
        return float(self.end_s.max(initial=0.0))


class Stalled(Exception):
    """Raised if the order of the passes is a deadlock."""


def simulate(plan: PipelinePlan, minibatches: int, schedule: str | None = None) -> Timeline:
    """Return the timeline of a run of `minibatches`. Raises Stalled if the plan's `depth` causes a deadlock."""
    run = _Simulation(plan, minibatches, schedule)
    run.go()
    return _timeline(run.rows)


class _Simulation:
    """Processes events in the order of time: an arriving input, or a pass's end, which frees the rank and starts a transfer."""

    def __init__(self, plan: PipelinePlan, minibatches: int, schedule: str | None) -> None:
        self.plan = plan
        self.stage_and_replica = {
            rank: (stage.stage, replica) for stage in plan.stages for replica, rank in enumerate(stage.ranks)
        }
        self.ahead = {rank: deque(order(plan, *at, minibatches, schedule)) for rank, at in self.stage_and_replica.items()}
        self.events: list[tuple[float, int, int, Pass, bool]] = []  # time, index, rank, pass, True: arrival
        self.number = 0  # index of the next event; at the same time, the event with the lower index is first
        self.arrived: set[tuple[int, Pass]] = set()  # each (rank, pass) whose input has arrived
        self.idle = set(self.stage_and_replica)
        # time at which each rank's link to the previous stage is free
        self.link_free = dict.fromkeys(self.stage_and_replica, 0.0)
        self.rows: list[tuple[int, int, int, bool, float, float]] = []

    def go(self) -> None:
        for rank in self.stage_and_replica:
            self._begin(rank, 0.0)
        while self.events:
            time, _, rank, done, arrives = heappop(self.events)
            if arrives:
                self.arrived.add((rank, done))
            else:
                self.idle.add(rank)
                self._send(rank, done, time)
            self._begin(rank, time)
        if any(self.ahead.values()):
            raise Stalled

    def _begin(self, rank: int, time: float) -> None:
        """Begin the rank's next pass if the rank is idle and the input has arrived."""
        if rank not in self.idle or not self.ahead[rank]:
            return
        upcoming = self.ahead[rank][0]
        stage = self.stage_and_replica[rank][0]
        own_input = stage == (0 if upcoming[0] == "F" else len(self.plan.stages) - 1)
        if not own_input and (rank, upcoming) not in self.arrived:
            return
        self.ahead[rank].popleft()
        self.arrived.discard((rank, upcoming))
        self.idle.remove(rank)
        own = self.plan.stages[stage]
        end = time + (own.forward_s if upcoming[0] == "F" else own.backward_s + own.all_reduce_s)
        self.rows.append((rank, stage, upcoming[1], upcoming[0] == "B", time, end))
        self._at(end, rank, upcoming, False)

    def _send(self, rank: int, done: Pass, time: float) -> None:
        stage = self.stage_and_replica[rank][0]
        target = stage + (1 if done[0] == "F" else -1)
        if not 0 <= target < len(self.plan.stages):
            return
        receiver = self.plan.rank_of(target, done[1])
        link = receiver if done[0] == "F" else rank
        self.link_free[link] = max(time, self.link_free[link]) + self.plan.stages[max(stage, target)].receive_s / 2
        self._at(self.link_free[link], receiver, done, True)

    def _at(self, time: float, rank: int, done: Pass, arrives: bool) -> None:
        heappush(self.events, (time, self.number, rank, done, arrives))
        self.number += 1


def _timeline(rows: list[tuple[int, int, int, bool, float, float]]) -> Timeline:
    table = np.array(rows, float).reshape(-1, 6)
    whole = table[:, :3].astype(int)
    return Timeline(whole[:, 0], whole[:, 1], whole[:, 2], table[:, 3].astype(bool), table[:, 4], table[:, 5])


def summary(plan: PipelinePlan, timeline: Timeline, minibatches: int, schedule: str | None = None) -> dict[str, Any]:
    """Return the times of the run, and the times, memory and bytes of each stage, as a JSON object.

    `fill_s` is the time until the last stage begins, `drain_s` the time after its last pass. The seconds per minibatch exclude
    both. Shares are of the total time of the stage's ranks.
    """
    last = timeline.stage == len(plan.stages) - 1
    total = timeline.seconds
    fill_s, drain_s = float(timeline.start_s[last].min()), total - float(timeline.end_s[last].max())
    return {
        "seconds": total,
        "fill_s": fill_s,
        "drain_s": drain_s,
        "seconds_per_minibatch": (total - fill_s - drain_s) / minibatches,
        "bottleneck_stage": plan.bottleneck.stage,
        "bottleneck_seconds_per_minibatch": plan.bottleneck.seconds_per_minibatch,
        "stages": [_stage_summary(plan, timeline, stage.stage, minibatches, schedule) for stage in plan.stages],
    }


def _stage_summary(plan: PipelinePlan, timeline: Timeline, number: int, minibatches: int, schedule: str | None) -> dict[str, Any]:
    stage = plan.stages[number]
    own = timeline.stage == number
    busy = float((timeline.end_s[own] - timeline.start_s[own]).sum()) / (timeline.seconds * stage.replicas or 1)
    held = plan.versions_kept(number, schedule)
    entering, leaving = (0 if number == 0 else stage.input_bytes), (0 if number == len(plan.stages) - 1 else stage.output_bytes)
    # bytes that each rank sends per minibatch, by ring all-reduce
    shared = 2 * (stage.replicas - 1) / stage.replicas * stage.parameter_bytes
    return {
        "stage": number,
        "replicas": stage.replicas,
        "warm_up": plan.warm_up(number) if (schedule or plan.schedule) != "none" else 0,
        "versions": held,
        "busy_share": busy,
        "bubble_share": 1 - busy,
        "peak_bytes": (held + 1) * stage.parameter_bytes + in_flight(timeline, stage.ranks[0]) * stage.activation_bytes,
        "bytes_sent": (entering + leaving + shared) * minibatches,
        "bytes_received": (entering + leaving + shared) * minibatches,
        "read_bytes": stage.input_bytes * minibatches if number == 0 else 0,
        "checkpoint_bytes": 2 * stage.parameter_bytes,
    }


def in_flight(timeline: Timeline, rank: int) -> int:
    """Return the largest number of minibatches whose activations a rank holds at once, from the start of F to the end of B."""
    own = timeline.rank == rank
    starts = np.sort(timeline.start_s[own & ~timeline.backward])
    ends = np.sort(timeline.end_s[own & timeline.backward])
    return int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")).max(initial=0))


def details(plan: PipelinePlan, minibatches: int, schedule: str | None = None) -> dict[str, Any]:
    """Return the passes and weight versions of each rank, and the ranks of every minibatch, as a JSON object."""
    placed = sorted((rank, stage.stage, replica) for stage in plan.stages for replica, rank in enumerate(stage.ranks))

    def text(passes: list[Pass]) -> list[str]:
        return [f"{kind}{minibatch}" for kind, minibatch in passes]

    return {
        "order": {str(rank): text(order(plan, stage, replica, minibatches, schedule)) for rank, stage, replica in placed},
        "versions": {str(rank): versions(plan, stage, replica, minibatches, schedule) for rank, stage, replica in placed},
        "routes": routes(plan, minibatches),
    }
