"""The keys of the YAML that define when and how checkpoints are written."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.checkpoints.cadences import explains, find_cadence, find_intervals, steady
from iotwin.benchmark.fit.checkpoints.checkpoint_files import SeenFile
from iotwin.benchmark.fit.checkpoints.find_checkpoints import SeenCheckpoint, SeenCheckpoints
from iotwin.benchmark.fit.parameters.distributions import quantiles, warm_first
from iotwin.common.units import counted
from iotwin.workload_yaml.checkpoint_names import numbers_in

_CHECKPOINT_FOLDER = "./twin_checkpoints/"
_FORMATS = {"zip": "torch.save's zip", "legacy": "torch.save's legacy format", "dcp": "torch.distributed.checkpoint's files"}
_NO_TIMES = np.zeros(0)


def set_checkpoints(config: c.Config, checkpoints: SeenCheckpoints, epochs: int, steps: int, assumptions: list[str]) -> None:
    """Set in `config` when and how checkpoints are written, in a job of `epochs` epochs with `steps` steps in all."""
    if not checkpoints.each:
        return
    # The twin writes random bytes, so it must not write into the job's own folder.
    assumptions.append(f"the job kept its checkpoints in {checkpoints.folder}; the twin writes to {_CHECKPOINT_FOLDER}")
    between, section, twin = checkpoints.between_epochs, config.checkpoint, config.twin.checkpoint
    section.checkpoint_folder = _CHECKPOINT_FOLDER
    twin.seconds_between = None if between else checkpoints.seconds_between
    if twin.seconds_between is not None:
        assumptions.append(f"checkpoints come every {twin.seconds_between} s, which vary less than the steps between them")
    times = [point.epoch if between else point.steps for point in checkpoints.each]
    before_training, times = times[0] == 0, [time for time in times if time]
    until = epochs if between else steps
    due = find_cadence(times, until, between, not before_training)
    if len(times) == 1:
        unit = "epochs" if between else "steps"
        assumptions.append(f"one checkpoint, after {times[0]} {unit}: taken to come every {due.every} {unit}")
    section.checkpoint_after_step = 0 if before_training else -1
    if between:
        section.checkpoint_after_epoch, section.epochs_between_checkpoints = due.first, due.every
        twin.after = times if due.also > 0 else None
        return
    section.steps_between_checkpoints = due.every
    if due.also > 0:
        section.checkpoint_after_step = due.also
    several = any(file.after for file in twin.files)  # True if kinds of files have separate cadences
    is_cadence = due.first == due.every and (not times or explains(due, times, until, exact=False))
    explained = twin.seconds_between is not None or is_cadence
    if several or not explained:
        times = [point.steps for point in checkpoints.each if point.steps]
        twin.after, section.checkpoint_after_step = sorted(times), 0 if before_training else -1
        assumptions.append("no cadence of steps explains all checkpoints: twin.checkpoint.after lists when they come")


def in_words(checkpoints: SeenCheckpoints, in_epoch: int) -> str:
    """Return a sentence with the number of checkpoints, what triggered them, and their format if known.

    `in_epoch`: number of steps of an epoch.
    """
    words = [counted(len(checkpoints.each), "checkpoint")]
    if checkpoints.asynchronous:
        words.append("while training goes on")
    if checkpoints.each:
        words.append(_when_saved(checkpoints, in_epoch))
    known = {file.format for point in checkpoints.each for file in point.files}
    return ", ".join(words + [_FORMATS[name] for name in _FORMATS if name in known])


def _when_saved(checkpoints: SeenCheckpoints, in_epoch: int) -> str:
    """Return in words what triggered the checkpoints. `in_epoch`: number of steps of an epoch."""
    if checkpoints.between_epochs:
        return "at ends of epochs"
    if checkpoints.seconds_between is not None:
        return f"every {checkpoints.seconds_between} s"
    seen = [point.steps for point in checkpoints.each if point.steps]
    if checkpoints.asynchronous and (every := steady(seen)) is not None:
        return f"every {counted(every, 'step')}"
    found = find_intervals([point.steps for point in checkpoints.each], in_epoch)
    if len(found) < 2:
        return f"every {counted(found[0][1], 'step')}" if found else "by steps"
    return "at an interval that changes: " + ", ".join(
        f"{counted(interval, 'step')} from step {step}" for step, interval in found
    )


def twin_checkpoint(
    checkpoints: SeenCheckpoints,
    assumptions: list[str],
    ranks: Sequence[int] = (),
    snapshots_s: NDArray[np.float64] = _NO_TIMES,
) -> c.TwinCheckpoint:
    """Return the section twin.checkpoint of the YAML: the files that the twin writes at a checkpoint, and how.

    `ranks`: pids of the job's ranks; `snapshots_s`: seconds of each snapshot that was detected.
    """
    if not checkpoints.each:
        return c.TwinCheckpoint()
    files = [file for point in checkpoints.each for file in point.files]
    recorded = _checkpoint_files(checkpoints, ranks, checkpoints.between_epochs, assumptions)
    return c.TwinCheckpoint(
        files=recorded,
        asynchronous=checkpoints.asynchronous,
        logged=None if checkpoints.logged is not checkpoints.asynchronous else checkpoints.logged,
        serialization_ahead=round(_ahead(files), 3),
        lead_time=warm_first(checkpoints.lead_s),
        tail_time=0.0 if checkpoints.asynchronous else quantiles(checkpoints.tail_s),
        in_flight=checkpoints.in_flight if checkpoints.asynchronous else 1,
        snapshot_time=quantiles(snapshots_s) if len(snapshots_s) else None,
        directory_sync=checkpoints.directory_sync,
        keep=checkpoints.keep,
        before=_before(checkpoints.before, [file.name for file in recorded]),
        keep_every="epoch" if checkpoints.keep_epoch_ends else None,
        on_processors=checkpoints.on_processors,
        commit="folder" if any("/" in file.name and file.folder_renamed for file in files) else "file",
    )


def _before(names: Sequence[str], patterns: Sequence[str]) -> list[tuple[int, int]]:
    """Return the (epoch, step) that each of `names` contains. `patterns`: the twin's file names with '{epoch}' and '{step}'."""
    found = ((numbers_in(name, pattern) for pattern in patterns) for name in names)
    return [number for each in found if (number := next(filter(None, each), None)) is not None]


def _ahead(files: Sequence[SeenFile]) -> float:
    """Return the share (0 to 1) of the files' serialization time that passed before their first writes."""
    return min(sum(file.ahead_s for file in files) / max(sum(file.serialization_s for file in files), 1e-9), 1.0)


def _checkpoint_files(
    checkpoints: SeenCheckpoints, ranks: Sequence[int], by_epochs: bool, assumptions: list[str]
) -> list[c.CheckpointFile]:
    """Return an entry for each file name. If only some checkpoints wrote a file, its entry lists their epochs or steps."""
    names = dict.fromkeys(file.name for point in checkpoints.each for file in point.files)
    every = {point.epoch for point in checkpoints.each}
    found = []
    for name in names:
        seen = [(point, file) for point in checkpoints.each for file in point.files if file.name == name]
        epochs, steps = {point.epoch for point, _ in seen}, {point.steps for point, _ in seen}
        last, some = seen[-1][1], epochs != every
        # A file missing from one checkpoint may have been cut off. Steps of asynchronous checkpoints are not known exactly.
        exact = not (by_epochs or checkpoints.asynchronous) and checkpoints.seconds_between is None
        cut_off = len(checkpoints.each) - len(seen) == 1 and _is_cut_off(checkpoints.each[-1], name, list(names))
        listed = exact and len(seen) < len(checkpoints.each) and not cut_off
        if some and not (by_epochs or listed):
            assumptions.append(f"{name} was not written at every checkpoint; the twin does so")
        found.append(c.CheckpointFile(
            name=name, write_sizes=last.write_sizes, fsync=last.fsync, rename=last.renamed, direct=last.direct,
            format=last.format, read_back=last.read_back, looked_at=_looked_at([file for _, file in seen]),
            rank=ranks.index(last.rank) if last.rank in ranks else 0,
            after=sorted(epochs) if some and by_epochs else sorted(steps) if listed else None,
            keep=last.keep or 0 if listed else None,
            serialization_time=quantiles(np.array([file.serialization_s for _, file in seen])),
        ))  # fmt: skip
    return found


def _is_cut_off(point: SeenCheckpoint, name: str, names: Sequence[str]) -> bool:
    """True if the checkpoint `point` may lack the file `name` because the job ended: it lacks all later ones of `names`, too."""
    return not {file.name for file in point.files} & set(names[names.index(name) :])


def _looked_at(files: Sequence[SeenFile]) -> Literal["opened", "read"] | None:
    """Return what the job did to most of `files` when it wrote later checkpoints; None if nothing."""
    found = [file.looked_at for file in files if file.next_ns is not None]
    shown = [look for look in found if look is not None]
    if 2 * len(shown) <= len(found):
        return None
    return "read" if 2 * shown.count("read") > len(shown) else "opened"
