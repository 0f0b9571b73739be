"""The channels of a pipeline's ranks on one machine, and the pipeline that a workload describes."""

import mmap
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from iotwin.benchmark.emulator import waits
from iotwin.common.errors import UsageError
from iotwin.workload_yaml.schema import Pipeline
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage


def plan_of(section: Pipeline) -> PipelinePlan:
    """Return the pipeline that `section` describes. Raises UsageError if a rank is in no stage or in two."""
    listed = [rank for stage in section.stages for rank in stage.ranks]
    if sorted(listed) != list(range(len(listed))):
        raise UsageError(
            f"twin.pipeline.stages: their ranks are {sorted(listed)}; each of 0 to {len(listed) - 1} is in one stage"
        )
    stages = tuple(
        Stage(
            index,
            tuple(stage.ranks),
            0.0,  # passes take times that each rank draws
            0.0,
            all_reduce_s=stage.all_reduce_s,
            receive_s=stage.receive_s
            if section.link_bytes_per_s is None
            else 2 * (stage.input_bytes if index else 0) / section.link_bytes_per_s,
        )
        for index, stage in enumerate(section.stages)
    )
    unknown = [name for name in section.depth if name not in map(str, range(len(stages)))]
    if unknown:
        raise UsageError(f"twin.pipeline.depth: '{unknown[0]}' is no stage; stages are 0 to {len(stages) - 1}")
    return PipelinePlan(stages, section.schedule or "1f1b", {int(stage): warm_up for stage, warm_up in section.depth.items()})


class Channels:
    """Connects neighbouring ranks by counters (by direction, sender and receiver), and records when each output was sent."""

    def __init__(self, plan: PipelinePlan, minibatches: int) -> None:
        self._counters: dict[tuple[str, int, int], waits.EventCounter] = {}
        for before, after in zip(plan.stages, plan.stages[1:], strict=False):
            for a in before.ranks:
                for b in after.ranks:
                    for key in (("F", a, b), ("B", b, a)):
                        self._counters[key] = waits.EventCounter(single=True)
        for stage in plan.stages:
            for a, b in permutations(stage.ranks, 2):
                self._counters["meet", a, b] = waits.EventCounter(single=True)
        # When each rank was due at the meeting before the last one, and at the last one.
        self._met_ns = np.frombuffer(mmap.mmap(-1, 2 * plan.ranks * 8), np.int64).reshape(2, plan.ranks)
        shape = (2, len(plan.stages), minibatches)  # direction, receiving stage, minibatch
        self._sent_ns = np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * 8), np.int64).reshape(shape)

    def send(self, kind: str, sender: int, receiver: int, stage: int, minibatch: int, due_ns: int) -> None:
        """Send the output of a pass, due at `due_ns` (CLOCK_MONOTONIC), to the rank `receiver` of `stage`."""
        self._sent_ns["FB".index(kind), stage, minibatch] = due_ns
        self._counters[kind, sender, receiver].give()

    def receive(self, kind: str, sender: int, receiver: int, stage: int, minibatch: int) -> int:
        """Wait for the output of a pass, and return when it was due (CLOCK_MONOTONIC, ns)."""
        self._counters[kind, sender, receiver].take()
        return int(self._sent_ns["FB".index(kind), stage, minibatch])

    def meet(self, number: int, rank: int, others: Sequence[int], due_ns: int) -> int:
        """Wait for the `others`, at the rank's meeting `number`. Return when the last one was due (CLOCK_MONOTONIC, ns)."""
        self._met_ns[number % 2, rank] = due_ns
        for other in others:
            self._counters["meet", rank, other].give()
        for other in others:
            self._counters["meet", other, rank].take()
        return int(self._met_ns[number % 2, [rank, *others]].max())

    def close(self) -> None:
        """Close the counters, in the process that started the ranks."""
        for counter in self._counters.values():
            counter.close()
