"""What a person is told of a fitted twin's values: where each comes from, and how sure it is."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from iotwin.benchmark.fit.checkpoints import SeenCheckpoints
from iotwin.benchmark.fit.confidence import agreement, interval
from iotwin.benchmark.fit.passes import Pass
from iotwin.benchmark.fit.samples.samples import Samples
from iotwin.benchmark.fit.times import Times
from iotwin.benchmark.fit.twin_parts import in_words, most_common
from iotwin.common.units import format_size


def confidence_of(
    times: Times, training: Sequence[Pass], evaluations: Sequence[Pass], checkpoints: SeenCheckpoints
) -> dict[str, dict[str, Any]]:
    """How many observations agree with each count, and between what the mean of each time lies."""
    found = {
        "twin.ranks": agreement([part.ranks for part in training]),
        "reader.batch_size": agreement([size for part in training for size in part.batch_sizes]),
        "reader.read_threads": agreement([part.workers for part in training]),
        "reader.prefetch_size": agreement([part.batches_ahead for part in training if part.batches_ahead is not None]),
        "train.steps_per_epoch": agreement([len(part.batch_sizes) for part in training]),
        "train.computation_time": interval(times.compute_s),
        "reader.preprocess_time": interval(times.preprocess_s),
    }
    if evaluations:
        found["evaluation.epochs_between_evals"] = agreement(np.diff([part.epoch for part in evaluations]).tolist())
    if checkpoints.each:
        by_epochs = checkpoints.between_epochs
        between = np.diff([point.epoch if by_epochs else point.steps for point in checkpoints.each]).tolist()
        found[f"checkpoint.{'epochs' if by_epochs else 'steps'}_between_checkpoints"] = agreement(between)
        seconds = [file.serialization_s for point in checkpoints.each for file in point.files]
        found["twin.checkpoint.files.serialization_time"] = interval(np.array(seconds))
    return found


def _dataset_evidence(samples: Samples) -> str:
    if samples.sample_of is not None:
        return f"{samples.sample_of.max() + 1} samples of several files, {len(samples.names)} in all, in {samples.folder}"
    if samples.record_bytes is None:
        return f"{len(samples.names)} samples ({samples.layout}) in {samples.folder}, by their reads"
    sizes = format_size(float(np.median(samples.record_bytes)))
    if samples.buffer_bytes is not None:
        return f"{len(samples.names)} files in {samples.folder}, of which each step uses up {sizes}, by batches handed over"
    return f"{len(samples.names)} files in {samples.folder}, read {sizes} at a time, each read one batch or record"


def evidence_of(
    samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass], before: int, checkpoints: SeenCheckpoints
) -> dict[str, str]:
    """What each value comes from, in words; `before`: steps of an evaluation before training."""
    batches = [size for part in training for size in part.batch_sizes]
    batch, steps = most_common(batches), most_common([len(part.batch_sizes) for part in training])
    return {
        "dataset": _dataset_evidence(samples),
        "epochs": f"{len(training)} passes over the training samples, "
        + ("as the job logged them" if training[0].logged else "by samples read again"),
        "batch_size": f"{batch} samples between hand-overs in {np.mean(np.array(batches) == batch):.0%} "
        f"of {len(batches)} batches",
        "ranks": f"{training[0].ranks} processes that take batches",
        "read_threads": f"{most_common([part.workers for part in training])} loader processes in each epoch",
        "steps_per_epoch": f"{steps}",
        "evaluation": f"{len(evaluations)} evaluations" + (f", and {before} steps of one before training" if before else ""),
        "checkpoint": in_words(checkpoints, steps),
    }
