"""Parts of a twin that every fitted job has: checkpoints, cadences, times before the first step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.cadences import explains, find_cadence, find_intervals, steady
from iotwin.benchmark.fit.checkpoint_files import SeenFile
from iotwin.benchmark.fit.checkpoints import SeenCheckpoint, SeenCheckpoints
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.startup import StartUp
from iotwin.benchmark.fit.times import quantiles, warm_up
from iotwin.trace_store.manifest import Manifest
from iotwin.workload_yaml.checkpoint_names import numbers_in
from iotwin.workload_yaml.recording import TwinRecording

_CHECKPOINT_FOLDER = "./twin_checkpoints/"
_FORMATS = {"zip": "torch.save's zip", "legacy": "torch.save's legacy format", "dcp": "torch.distributed.checkpoint's files"}
_NO_TIMES = np.zeros(0)
SAME_ORDER = 0.8  # order_agreement from which two orders count as one


@dataclass
class Fitted:
    """A twin, and for each value that matters where it comes from (for the person who must trust it)."""

    config: c.Config
    evidence: dict[str, str]
    files: list[tuple[str, int]]  # of the data set: name within its folder, bytes; those whose size was seen
    confidence: dict[str, dict[str, Any]] = field(default_factory=dict)  # by key of the YAML; see iotwin.benchmark.fit.confidence
    start_up: StartUp = field(default_factory=StartUp)
    coverage: dict[str, Any] = field(default_factory=dict)  # see iotwin.benchmark.fit.coverage
    by_numpy: bool = False  # the job reads .npy files as its twin does, by numpy.load
    recording: TwinRecording | None = None  # of a recorded twin; goes into a file beside the YAML


def failure(manifest: Manifest) -> str | None:
    """Return how the traced command failed, in words; None if it did not, or if that is not known."""
    return f"the traced command ended with status {manifest.exit_status}" if manifest.exit_status else None


def loss_notes(job: Job) -> list[str]:
    """Return assumptions about what the trace lacks: the rest of a job that failed, and calls that were lost."""
    failed = failure(job.manifest)
    said = [f"{failed}, so the twin is one of what it did until then"] if failed else []
    if not job.manifest.lost_events:
        return said
    lost = ", ".join(f"{count} in {source}" for source, count in job.manifest.lost.items())
    return [*said, f"the trace lost {job.manifest.lost_events} events ({lost}); counts may be too low"]


def most_common(values: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the value that comes most often; of several such, the least."""
    found, counts = np.unique(np.asarray(values, dtype=np.int64), return_counts=True)
    return int(found[counts.argmax()])


def order_agreement(order: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """How alike two orders of samples are: Spearman's rank correlation of the positions of the samples in both; 1 is the same.

    Loader processes overtake each other, so the order seen is never exactly the order asked for.
    """
    common, positions, other_positions = np.intersect1d(order, other, return_indices=True)
    if len(common) < 3:
        return 1.0
    return float(np.corrcoef(np.argsort(np.argsort(positions)), np.argsort(np.argsort(other_positions)))[0, 1])


def set_checkpoints(
    config: c.Config,
    checkpoints: SeenCheckpoints,
    epochs: int,
    steps: int,
    in_blocks: int | None,
    assumptions: list[str],
    since: tuple[int, int] = (0, 0),
) -> None:
    """Say in `config` when the twin, which ends after so many `epochs` and `steps`, writes checkpoints, beside what it writes.

    `in_blocks`: the steps of a block, where the job counts no epochs; `epochs` are then its blocks. `since`: the whole epochs and
    the steps that were done before it began.
    """
    if not checkpoints.each:
        return
    # Never the job's own folder: the twin writes random bytes.
    assumptions.append(f"the job kept its checkpoints in {checkpoints.folder}; the twin writes to {_CHECKPOINT_FOLDER}")
    between, section, twin = checkpoints.between_epochs, config.checkpoint, config.twin.checkpoint
    section.checkpoint_folder = _CHECKPOINT_FOLDER
    twin.seconds_between = None if between else checkpoints.seconds_between
    if twin.seconds_between is not None:
        assumptions.append(f"checkpoints come every {twin.seconds_between} s, which vary less than the steps between them")
    times = [point.epoch if between else point.steps for point in checkpoints.each]
    before_training, times = times[0] == 0, [time for time in times if time]
    until, begun = (epochs, since[0]) if between else (steps, since[1])
    due = find_cadence(times, until, between, not before_training, begun)
    if len(times) == 1:
        unit = "epochs" if between else "steps"
        assumptions.append(f"one checkpoint, after {times[0]} {unit}: taken to come every {due.every} {unit}")
    section.checkpoint_after_step = 0 if before_training else -1
    if between and in_blocks is None:
        section.checkpoint_after_epoch, section.epochs_between_checkpoints = due.first, due.every
        twin.also_after_epoch = due.also if due.also > 0 else None
        return
    each = in_blocks if between and in_blocks is not None else 1
    section.steps_between_checkpoints = due.every * each
    twin.first_after_step = due.first * each if due.first != due.every else None
    if due.also > 0:
        section.checkpoint_after_step = due.also * each
    several = any(file.after_steps for file in twin.files)  # kinds of checkpoints, each of its own cadence
    explained = between or twin.seconds_between is not None or explains(due, times, until, exact=False, since=begun)
    if several or not explained:
        times = [point.steps for point in checkpoints.each if point.steps]
        twin.after_steps, section.checkpoint_after_step = sorted(times), 0 if before_training else -1
        assumptions.append("no cadence explains all checkpoints: twin.checkpoint.after_steps lists when they come")


def in_words(checkpoints: SeenCheckpoints, in_epoch: int) -> str:
    """Return how many there were, what decided when they came, in epochs of so many steps, and in which format, where known."""
    words = [f"{len(checkpoints.each)} checkpoints"]
    if checkpoints.asynchronous:
        words.append("while training goes on")
    if checkpoints.each:
        words.append(_when_saved(checkpoints, in_epoch))
    known = {file.format for point in checkpoints.each for file in point.files}
    return ", ".join(words + [_FORMATS[name] for name in _FORMATS if name in known])


def _when_saved(checkpoints: SeenCheckpoints, in_epoch: int) -> str:
    """Return in words what decided when checkpoints came, in epochs of so many steps."""
    if checkpoints.between_epochs:
        return "at ends of epochs"
    if checkpoints.seconds_between is not None:
        return f"every {checkpoints.seconds_between} s"
    seen = [point.steps for point in checkpoints.each if point.steps]
    if checkpoints.asynchronous and (every := steady(seen)) is not None:
        return f"every {every} steps"
    found = find_intervals([point.steps for point in checkpoints.each], in_epoch)
    if len(found) < 2:
        return f"every {found[0][1]} steps" if found else "by steps"
    return "at an interval that changes: " + ", ".join(f"{interval} steps from step {step}" for step, interval in found)


def twin_checkpoint(
    checkpoints: SeenCheckpoints,
    assumptions: list[str],
    ranks: Sequence[int] = (),
    snapshots_s: NDArray[np.float64] = _NO_TIMES,
    by_epochs: bool = True,
) -> c.TwinCheckpoint:
    """Return what the twin writes at a checkpoint, and how.

    `ranks` are the pids of the twin's ranks; `snapshots_s` the seconds of each snapshot, where they were seen; `by_epochs`: the
    job's epochs are counted, so that what came at their ends does so in the twin.
    """
    if not checkpoints.each:
        return c.TwinCheckpoint()
    files = [file for point in checkpoints.each for file in point.files]
    first_lead_s, lead_s = warm_up(checkpoints.lead_s)
    recorded = _checkpoint_files(checkpoints, ranks, by_epochs and checkpoints.between_epochs, assumptions)
    return c.TwinCheckpoint(
        files=recorded,
        asynchronous=checkpoints.asynchronous,
        logged=None if checkpoints.logged is not checkpoints.asynchronous else checkpoints.logged,
        serialization_ahead=round(_ahead(files), 3),
        lead_time=quantiles(lead_s),
        first_lead_time=first_lead_s,
        tail_time=0.0 if checkpoints.asynchronous else quantiles(checkpoints.tail_s),
        in_flight=checkpoints.in_flight if checkpoints.asynchronous else 1,
        snapshot_time=quantiles(snapshots_s) if len(snapshots_s) else None,
        directory_sync=checkpoints.directory_sync,
        keep=checkpoints.keep,
        before=_before(checkpoints.before, [file.name for file in recorded]),
        keep_epoch_ends=checkpoints.keep_epoch_ends,
        on_processors=checkpoints.on_processors,
        commit="folder" if any("/" in file.name and file.folder_renamed for file in files) else "file",
    )


def _before(names: Sequence[str], patterns: Sequence[str]) -> list[tuple[int, int]]:
    """The (epoch, step) of files by the names that the twin gives such."""
    found = ((numbers_in(name, pattern) for pattern in patterns) for name in names)
    return [number for each in found if (number := next(filter(None, each), None)) is not None]


def _ahead(files: Sequence[SeenFile]) -> float:
    """Share of the files' serialization that passed before their first writes; 0..1."""
    return min(sum(file.ahead_s for file in files) / max(sum(file.serialization_s for file in files), 1e-9), 1.0)


def _checkpoint_files(
    checkpoints: SeenCheckpoints, ranks: Sequence[int], by_epochs: bool, assumptions: list[str]
) -> list[c.CheckpointFile]:
    """One entry per file name; a file that only some checkpoints wrote says at which epochs, or after which steps."""
    names = dict.fromkeys(file.name for point in checkpoints.each for file in point.files)
    every = {point.epoch for point in checkpoints.each}
    found = []
    for name in names:
        seen = [(point, file) for point in checkpoints.each for file in point.files if file.name == name]
        epochs, steps = {point.epoch for point, _ in seen}, {point.steps for point, _ in seen}
        last, some = seen[-1][1], epochs != every
        # One that is missing once may have been cut off; beside training, steps are not told exactly.
        told = not (by_epochs or checkpoints.asynchronous) and checkpoints.seconds_between is None
        cut_off = len(checkpoints.each) - len(seen) == 1 and _is_cut_off(checkpoints.each[-1], name, list(names))
        listed = told and len(seen) < len(checkpoints.each) and not cut_off
        if some and not (by_epochs or listed):
            assumptions.append(f"{name} was not written at every checkpoint; the twin does so")
        found.append(c.CheckpointFile(
            name=name, write_sizes=last.write_sizes, fsync=last.fsync, rename=last.renamed, direct=last.direct,
            format=last.format, made_first=last.made_first,
            read_back=last.read_back, looked_at=_looked_at([file for _, file in seen]),
            rank=ranks.index(last.rank) if last.rank in ranks else 0,
            epochs=sorted(epochs) if some and by_epochs else None,
            after_steps=sorted(steps) if listed else None,
            keep=last.keep or 0 if listed else None,
            serialization_time=quantiles(np.array([file.serialization_s for _, file in seen])),
        ))  # fmt: skip
    return found


def _is_cut_off(point: SeenCheckpoint, name: str, names: Sequence[str]) -> bool:
    """Whether a checkpoint may lack the file `name` because the job ended: it has none of the `names` that follow."""
    return not {file.name for file in point.files} & set(names[names.index(name) :])


def _looked_at(files: Sequence[SeenFile]) -> Literal["opened", "read"] | None:
    """What is done to a file at later checkpoints, if most that have a later one show it."""
    found = [file.looked_at for file in files if file.next_ns is not None]
    shown = [look for look in found if look is not None]
    if 2 * len(shown) <= len(found):
        return None
    return "read" if 2 * shown.count("read") > len(shown) else "opened"


def start_times(job: Job, start_up: StartUp, first_epoch_ns: int, assumptions: list[str]) -> tuple[float, float]:
    """Seconds from the job's start to the start of init, and from there to the first epoch.

    The emulator reads what it starts from when init begins; where no log tells of init, it begins with these reads.
    """
    phases = job.phases
    init = phases[phases["phase"] == "init"]
    if len(init):
        begin, end = int(init["start_ns"].iloc[0]), int(init["end_ns"].iloc[0])
    elif start_up.begin_ns is not None:
        assumptions.append("the job logged no init phase: init is taken to begin with the first read of what it starts from")
        begin, end = start_up.begin_ns, first_epoch_ns
    else:
        assumptions.append("the job logged no init phase: all before the first read of the data set counts as init")
        begin, end = job.manifest.start_ns, first_epoch_ns
    return round(max(begin - job.manifest.start_ns, 0) / 1e9, 3), round(max(end - begin, 0) / 1e9, 3)


def phases_in_order(job: Job) -> list[str]:
    """Return the names of the passes and checkpoints that the job logged, in order of start."""
    phases = job.phases
    named = phases.loc[phases["phase"].isin(["epoch", "block", "evaluation", "checkpoint"])].sort_values("start_ns")["phase"]
    return [str(name) for name in named]


def evaluated_after_saving(names: Sequence[str]) -> bool:
    """Whether most evaluations that a checkpoint is next to come after it; `names` as of `phases_in_order`."""
    pairs = list(pairwise(names))
    return pairs.count(("checkpoint", "evaluation")) > pairs.count(("evaluation", "checkpoint"))
