"""Where a job went on that had been stopped: told by the checkpoint that it read first, and by a short first epoch."""

import re
from collections import Counter
from collections.abc import Sequence

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.checkpoints import SeenCheckpoints
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.passes import Pass
from iotwin.benchmark.fit.startup import StartUp
from iotwin.workload_yaml import listed_reads

_STEP = re.compile(r"/step-(\d+)[^/]*/[^/]+$")  # a checkpoint of iotwin.common.commit


def find_resume(job: Job, start_up: StartUp, training: Sequence[Pass], steps_in_data: int) -> c.TwinResume | None:
    """Return the position that the job went on at; None if it began at its first step, for all that can be seen.

    `steps_in_data`: those that go once through the samples, of a job whose steps are counted by no epochs.
    """
    if not start_up.read_bytes.get("checkpoint"):
        return None
    steps, named = [len(part.batch_sizes) for part in training], _named_step(start_up)
    if training[0].phase == "block":
        fits = named is not None and named + sum(steps) <= steps_in_data
        return c.TwinResume(epoch=1, step=named) if fits and named else None
    if len(steps) < 2:
        return None
    typical = sorted(steps[1:])[len(steps[1:]) // 2]
    missing = max(typical - steps[0], 0)
    epoch = _logged_epoch(job)
    if named is not None:
        whole = round((named - missing) / typical)
        if abs(named - missing - whole * typical) <= whole:  # a step of each epoch may have been miscounted
            epoch = whole + 1
    return c.TwinResume(epoch=epoch, step=missing) if missing or epoch > 1 else None


def go_on(resume: c.TwinResume, passes: Sequence[Pass], checkpoints: SeenCheckpoints, steps: int) -> tuple[int, int]:
    """Number passes and checkpoints as the whole job does, of `steps` an epoch; return the epochs and steps done before."""
    epochs, done = resume.epoch - 1, (resume.epoch - 1) * steps + resume.step
    for part in passes:
        part.epoch += epochs
    for point in checkpoints.each:
        point.epoch, point.steps = point.epoch + epochs, point.steps + done
    return epochs, done


def _named_step(start_up: StartUp) -> int | None:
    """The step in the name of the file that most was read of: of older checkpoints no more than the manifests are."""
    read_bytes = Counter[int]()
    for reads in start_up.reads:
        for number, _, size_bytes, _ in listed_reads.parse(reads):
            read_bytes[number] += size_bytes
    steps = {number: int(match[1]) for number, (name, _) in enumerate(start_up.files) if (match := _STEP.search(name))}
    return steps[max(steps, key=lambda number: read_bytes[number])] if steps else None


def _logged_epoch(job: Job) -> int:
    """The number that the job gave its first epoch; 1 if it gave none."""
    phases = job.phases
    numbers = phases.loc[phases["phase"].isin(["epoch", "block"])].sort_values("start_ns")["epoch"].dropna()
    return max(int(numbers.iloc[0]), 1) if len(numbers) else 1
