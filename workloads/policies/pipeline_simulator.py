"""When each pass of a plan runs, if every pass takes as long as the plan says: the timeline of a pipeline that never ran.

A rank does its passes in their order; F waits for the output of the stage before, B for the gradient of the stage after. What is
sent travels beside the passes; a rank and the stage before it share one link, which carries one thing at a time, as the
optimizer's formulas have it. Replicas do not wait for one another, and reads and updates take no time of their own.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from workloads.policies.pipeline import Pass, Plan, order, routes, versions


@dataclass(frozen=True)
class Timeline:
    """Every pass of a run, in no order: columns of equal length, times in seconds from the start, minibatches from 0."""

    rank: np.ndarray
    stage: np.ndarray
    minibatch: np.ndarray
    backward: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    @property
    def seconds(self) -> float:
        """Return when the last pass ends."""
        return float(self.end_s.max(initial=0.0))


class Stalled(Exception):
    """The order of the passes makes ranks wait for one another for ever."""


def simulate(plan: Plan, minibatches: int, schedule: str | None = None) -> Timeline:
    """Return the timeline of `minibatches`; Stalled where warm-ups (`depth`) make ranks wait for one another."""
    run = _Run(plan, minibatches, schedule)
    run.go()
    return _timeline(run.rows)


class _Run:
    """Events in the order of time: a pass ends, which frees its rank and sends something; or what was sent arrives."""

    def __init__(self, plan: Plan, minibatches: int, schedule: str | None) -> None:
        self.plan = plan
        self.stage_and_replica = {
            rank: (stage.stage, replica) for stage in plan.stages for replica, rank in enumerate(stage.ranks)
        }
        self.ahead = {rank: deque(order(plan, *at, minibatches, schedule)) for rank, at in self.stage_and_replica.items()}
        self.events: list[tuple[float, int, int, Pass, bool]] = []  # time, number, rank, pass, whether it arrives
        self.number = 0  # of events, so that equal times keep their order
        self.there: set[tuple[int, Pass]] = set()  # by rank, whose input is there
        self.idle = set(self.stage_and_replica)
        self.link_free = dict.fromkeys(self.stage_and_replica, 0.0)  # by the receiving side's rank, for both directions
        self.rows: list[tuple[int, int, int, bool, float, float]] = []

    def go(self) -> None:
        """Run all passes."""
        for rank in self.stage_and_replica:
            self._begin(rank, 0.0)
        while self.events:
            time, _, rank, done, arrives = heappop(self.events)
            if arrives:
                self.there.add((rank, done))
            else:
                self.idle.add(rank)
                self._send(rank, done, time)
            self._begin(rank, time)
        if any(self.ahead.values()):
            raise Stalled

    def _begin(self, rank: int, time: float) -> None:
        """Begin the rank's next pass if it is idle and its input is there."""
        if rank not in self.idle or not self.ahead[rank]:
            return
        upcoming = self.ahead[rank][0]
        stage = self.stage_and_replica[rank][0]
        own_input = stage == (0 if upcoming[0] == "F" else len(self.plan.stages) - 1)
        if not own_input and (rank, upcoming) not in self.there:
            return
        self.ahead[rank].popleft()
        self.there.discard((rank, upcoming))
        self.idle.remove(rank)
        own = self.plan.stages[stage]
        end = time + (own.forward_s if upcoming[0] == "F" else own.backward_s + own.all_reduce_s)
        self.rows.append((rank, stage, upcoming[1], upcoming[0] == "B", time, end))
        self._at(end, rank, upcoming, False)

    def _send(self, rank: int, done: Pass, time: float) -> None:
        """Send a pass's output on: forward to the next stage, backward to the one before."""
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


def summary(plan: Plan, timeline: Timeline, minibatches: int, schedule: str | None = None) -> dict[str, Any]:
    """Return what the timeline says of the run and of each stage.

    Fill is the time until the last stage begins, drain the time after its last pass, and the seconds of a minibatch are those
    between; shares are of all time of the stage's ranks.
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


def _stage_summary(plan: Plan, timeline: Timeline, number: int, minibatches: int, schedule: str | None) -> dict[str, Any]:
    stage = plan.stages[number]
    own = timeline.stage == number
    busy = float((timeline.end_s[own] - timeline.start_s[own]).sum()) / (timeline.seconds * stage.replicas or 1)
    held = plan.versions_kept(number, schedule)
    entering, leaving = (0 if number == 0 else stage.input_bytes), (0 if number == len(plan.stages) - 1 else stage.output_bytes)
    shared = 2 * (stage.replicas - 1) / stage.replicas * stage.parameter_bytes  # ring all-reduce, of each rank and minibatch
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
    """Return the most minibatches whose activations a rank holds at once: from the start of F to the end of B."""
    own = timeline.rank == rank
    starts = np.sort(timeline.start_s[own & ~timeline.backward])
    ends = np.sort(timeline.end_s[own & timeline.backward])
    return int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")).max(initial=0))


def details(plan: Plan, minibatches: int, schedule: str | None = None) -> dict[str, Any]:
    """Return order and versions by rank, and the route of every minibatch."""
    placed = sorted((rank, stage.stage, replica) for stage in plan.stages for replica, rank in enumerate(stage.ranks))

    def text(passes: list[Pass]) -> list[str]:
        return [f"{kind}{minibatch}" for kind, minibatch in passes]

    return {
        "order": {str(rank): text(order(plan, stage, replica, minibatches, schedule)) for rank, stage, replica in placed},
        "versions": {str(rank): versions(plan, stage, replica, minibatches, schedule) for rank, stage, replica in placed},
        "routes": routes(plan, minibatches),
    }
