"""From a trace to its twin: what the job did to storage, found in the events, as a workload YAML that the emulator runs.

Phases that the job logged sharpen the answer but are not needed for training itself. What the trace cannot tell, the YAML lists
under ``twin.assumptions``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark import config as c
from benchmark.fit_checkpoints import SeenCheckpoints, find_checkpoints, unnumbered
from benchmark.fit_confidence import agreement, interval
from benchmark.fit_passes import Pass, find_passes
from benchmark.fit_refusal import check_is_training
from benchmark.fit_samples import Samples, find_samples
from benchmark.fit_stream import Stream, StreamSteps, find_stream, stream_checkpoints, stream_steps, within
from benchmark.fit_times import Times, pass_times, quantiles
from datagen.layouts import DlrmLayout
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.units import format_size

_CHECKPOINT_FOLDER = "./twin_checkpoints/"
_SAME_ORDER = 0.8  # agreement from which two orders count as one


@dataclass
class Fitted:
    """A twin, and for each value that matters where it comes from (for the person who must trust it)."""

    config: c.Config
    evidence: dict[str, str]
    files: list[tuple[str, int]]  # of the data set: name within its folder, bytes; those whose size was seen
    confidence: dict[str, dict[str, Any]] = field(default_factory=dict)  # by key of the YAML; see fit_confidence


def fit(trace: Trace) -> Fitted:
    """Return the twin of the traced job; IotwinError, saying why, when the trace shows no training that can be emulated."""
    if (stream := find_stream(trace)) is not None:
        return _fit_stream(trace, stream)
    samples = find_samples(trace)
    passes = find_passes(trace, samples)
    training = [part for part in passes if part.phase != "evaluation"]
    evaluations = [part for part in passes if part.phase == "evaluation"]
    if not training:
        reason = "its log and its events may use different clocks" if not passes else "only evaluations do"
        raise IotwinError(f"{trace.path}: no training epoch reads the data set: {reason}; is this the trace of a training job?")
    check_is_training(trace, training)
    assumptions, times = _losses(trace), pass_times(trace, training)
    checkpoints = find_checkpoints(trace, training)
    unnumbered(checkpoints.each, "{epoch}" if checkpoints.between_epochs else "{step}")
    config = c.Config(
        model=c.Model(name=trace.manifest.workload or PurePosixPath(samples.folder).name),
        workflow=c.Workflow(evaluation=bool(evaluations), checkpoint=bool(checkpoints.each)),
        dataset=_dataset(samples, training, evaluations),
        reader=_reader(times, samples, training, evaluations, assumptions),
        train=_train(times, samples, training, assumptions),
        evaluation=_evaluation(trace, training, evaluations, assumptions),
        checkpoint=_checkpoint(_steps_of_blocks(training), checkpoints, assumptions),
        twin=_twin(trace, samples, training, evaluations, checkpoints, assumptions),
    )
    confidence = _confidence(times, training, evaluations, checkpoints)
    return Fitted(config, _evidence(samples, training, evaluations, checkpoints), _files(trace, samples), confidence)


def _fit_stream(trace: Trace, stream: Stream) -> Fitted:
    """The twin of a job that streams its files: see benchmark.fit_stream."""
    assumptions = _losses(trace)
    steps = stream_steps(trace, stream, assumptions)
    checkpoints = stream_checkpoints(trace, stream, steps.steps)
    blocks = stream.training[0].phase == "block"
    unnumbered(checkpoints.each, "{step}" if blocks else "{epoch}")
    train_files, eval_files = (sorted(stream.files_in(windows)) for windows in (stream.training, stream.evaluations))
    order = np.array(stream.files_in(stream.training))
    shuffled = _agreement(order, np.sort(order)) < _SAME_ORDER
    config = c.Config(
        model=c.Model(name=trace.manifest.workload or PurePosixPath(stream.folder).name),
        workflow=c.Workflow(evaluation=bool(eval_files), checkpoint=bool(checkpoints.each)),
        dataset=_stream_dataset(stream, steps, train_files, eval_files),
        reader=c.Reader(
            batch_size=steps.batch_size, batch_size_eval=steps.batch_size, read_threads=steps.threads if steps.threads > 1 else 0,
            transfer_size=steps.buffer_bytes, file_shuffle="seed" if shuffled else "off",
            sample_shuffle="seed" if steps.shuffle_records else "off", shuffle_size=max(steps.shuffle_records, 1),
        ),
        train=c.Train(
            epochs=1 if blocks else len(stream.training),
            total_training_steps=-1 if steps.whole_files else steps.steps * (len(stream.training) if blocks else 1),
            computation_time=round(steps.compute_s, 6),
        ),
        evaluation=_stream_evaluation(stream, steps) if eval_files else c.Evaluation(),
        checkpoint=_checkpoint(steps.steps if blocks else None, checkpoints, assumptions),
    )  # fmt: skip
    startup_s, init_s = _start_times(trace, stream.training[0].start_ns, assumptions)
    config.twin = c.Twin(
        source=trace.path.name, host=trace.manifest.host.hostname, startup_time=startup_s, init_time=init_s,
        train_files=[stream.names[i] for i in train_files], eval_files=[stream.names[i] for i in eval_files] or None,
        first_step_time=None if steps.first_step_s is None else round(steps.first_step_s, 6),
        reader=c.TwinReader(streamed=True, interleave_files=steps.cycle),
        evaluation=c.TwinEvaluation(read_threads=0, after_checkpoint=_evaluated_after_saving(trace)),
        checkpoint=_twin_checkpoint(checkpoints, assumptions),
    )  # fmt: skip
    assumptions.append("only files that the job opened are known; the data set may have more")
    assumptions.append("of the steps' times only the mean is known, since the stream hides the waits between them")
    config.twin.assumptions = assumptions
    sizes = [int(size) for size in stream.file_bytes]
    return Fitted(config, _stream_evidence(stream, steps, checkpoints), list(zip(stream.names, sizes, strict=True)))


def _stream_dataset(stream: Stream, steps: StreamSteps, train_files: list[int], eval_files: list[int]) -> c.Dataset:
    each, eval_each = (
        max(round(float(stream.file_bytes[files].mean()) / steps.record_bytes), 1) if files else None
        for files in (train_files, eval_files)
    )
    return c.Dataset(
        data_folder=stream.folder, format="bin", num_files_train=len(train_files), num_files_eval=len(eval_files) or None,
        num_samples_per_file=each or 1, eval_num_samples_per_file=eval_each, interleave=True,
        record_length_bytes=round(steps.record_bytes, 1), record_length_bytes_stdev=0,
    )  # fmt: skip


def _stream_evaluation(stream: Stream, steps: StreamSteps) -> c.Evaluation:
    """As many steps as use up what was read but for the buffer that waits, each of the same share of the time."""
    read_bytes = within(stream.reads, stream.evaluations)["result"].sum() / len(stream.evaluations)
    count = max(round((read_bytes - steps.buffer_bytes) / (steps.record_bytes * steps.batch_size)), 1)
    seconds = sum(window.end_ns - window.start_ns for window in stream.evaluations) / 1e9 / len(stream.evaluations)
    evaluation = c.Evaluation(eval_time=round(seconds / count, 6), total_eval_steps=count)
    first, between = _cadence([window.epoch for window in stream.evaluations])
    if stream.training[0].phase == "block":
        evaluation.eval_after_step, evaluation.steps_between_evals = first * steps.steps, between * steps.steps
    else:
        evaluation.eval_after_epoch, evaluation.epochs_between_evals = first, between
    return evaluation


def _evaluated_after_saving(trace: Trace) -> bool:
    """Whether most evaluations that a checkpoint is next to come after it."""
    phases = trace.phases()
    named = phases.loc[phases["phase"].isin(["epoch", "block", "evaluation", "checkpoint"])].sort_values("start_ns")["phase"]
    pairs = list(pairwise(named.astype(str)))
    return pairs.count(("checkpoint", "evaluation")) > pairs.count(("evaluation", "checkpoint"))


def _stream_evidence(stream: Stream, steps: StreamSteps, checkpoints: SeenCheckpoints) -> dict[str, str]:
    return {
        "dataset": f"{len(stream.names)} files in {stream.folder}, streamed {steps.cycle} at a time "
        f"by reads of {format_size(steps.buffer_bytes)}",
        "batch_size": f"{steps.batch_size} records of {format_size(steps.record_bytes)}",
        "shuffle_size": f"{steps.shuffle_records} records, by what the first reads brought and no step used",
        "read_threads": f"{steps.threads} threads that open files",
        "steps": f"{steps.steps} steps in each of {len(stream.training)} {stream.training[0].phase}s",
        "evaluation": f"{len(stream.evaluations)} evaluations",
        "checkpoint": f"{len(checkpoints.each)} checkpoints",
    }


def _files(trace: Trace, samples: Samples) -> list[tuple[str, int]]:
    """The data set's files; those of records without the rest that no record fills, so that records keep their size."""
    files = trace.files()
    files = files[(files["kind"] == "dataset") & (files["size_bytes"] > 0)].sort_values("path")
    found = zip(map(PurePosixPath, files["path"]), files["size_bytes"].astype(int), strict=True)
    sizes = {str(path.relative_to(samples.folder)): int(size) for path, size in found if path.is_relative_to(samples.folder)}
    if samples.layout == "records" and samples.record_bytes is not None:
        whole = samples.file_bytes // samples.record_bytes * samples.record_bytes
        sizes |= {name: int(size) for name, size in zip(samples.names, whole, strict=True) if size}
    return list(sizes.items())


def _losses(trace: Trace) -> list[str]:
    if not trace.manifest.lost_events:
        return []
    lost = ", ".join(f"{count} in {source}" for source, count in trace.manifest.lost.items())
    return [f"the trace lost {trace.manifest.lost_events} events ({lost}); counts may be too low"]


def _dataset(samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass]) -> c.Dataset:
    sizes = samples.size_bytes(np.array(_members(training), np.int64))
    dataset = c.Dataset(
        data_folder=samples.folder,
        format="npy" if samples.layout in ("npy", "unet3d") else "bin",
        num_files_train=len(_files_of(samples, training)),
        num_files_eval=len(_files_of(samples, evaluations)) if evaluations else None,
        record_length_bytes=round(float(sizes.mean())),
        record_length_bytes_stdev=round(float(sizes.std()), 1),
    )
    if samples.first_record is not None:
        dataset.num_samples_per_file = _records_in(samples, training)
        dataset.eval_num_samples_per_file = _records_in(samples, evaluations) if evaluations else None
    if samples.layout == "dlrm":
        # A read is a batch of rows; the emulator knows the rows.
        dataset.record_length_bytes, dataset.record_length_bytes_stdev = DlrmLayout.SAMPLE_BYTES, 0
        dataset.num_samples_per_file, dataset.eval_num_samples_per_file = 1, None
    return dataset


def _records_in(samples: Samples, passes: Sequence[Pass]) -> int:
    """Whole records in the smallest of the files that the passes read."""
    return int(samples.records()[_files_of(samples, passes)].min())


def _files_of(samples: Samples, passes: Sequence[Pass]) -> list[int]:
    """The files (by index in samples.names) that the passes read, each once, ascending."""
    return [int(file) for file in np.unique(samples.file_of(np.array(_members(passes), np.int64)))]


def _in_order_read(samples: Samples, training: Sequence[Pass]) -> list[int]:
    """The files of training by name; where ranks read them by themselves in no random order, in theirs, which the twin keeps."""
    if _is_shuffled(training) or training[0].workers:
        return _files_of(samples, training)
    every = np.concatenate([part.every for part in training])
    return [int(file) for file in pd.unique(samples.file_of(every))]


def _members(passes: Sequence[Pass]) -> list[int]:
    """The samples that the passes read, each once, ascending."""
    return np.unique(np.concatenate([part.every for part in passes])).tolist() if passes else []


def _most_common(values: Sequence[int] | NDArray[np.int64]) -> int:
    found, counts = np.unique(np.asarray(values, dtype=np.int64), return_counts=True)
    return int(found[counts.argmax()])


def _reader(
    times: Times, samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass], assumptions: list[str]
) -> c.Reader:
    if not len(times.preprocess_s):
        assumptions.append("preprocessing time could not be seen and is taken as zero")
    workers = _most_common([part.workers for part in training])
    record_bytes = samples.record_bytes if samples.layout == "records" else None
    shuffled = _is_shuffled(training)
    return c.Reader(
        batch_size=_batch_size(samples, training),
        batch_size_eval=_batch_size(samples, evaluations) if evaluations else 1,
        read_threads=workers,
        prefetch_size=_prefetch(training, workers, assumptions),
        sample_shuffle="seed" if shuffled and samples.layout != "dlrm" else "off",
        # Records that follow one another are read one by one all the same.
        transfer_size=None if record_bytes is None else _most_common(record_bytes),
        preprocess_time=quantiles(times.preprocess_s),
    )


def _batch_size(samples: Samples, passes: Sequence[Pass]) -> int:
    reads = _most_common([size for part in passes for size in part.batch_sizes])
    if samples.layout != "dlrm" or samples.record_bytes is None:
        return reads
    return reads * _most_common(samples.size_bytes(passes[0].samples).tolist()) // DlrmLayout.SAMPLE_BYTES


def _prefetch(training: Sequence[Pass], workers: int, assumptions: list[str]) -> int | None:
    if not workers:
        return None
    seen = [(part.batches_ahead, len(part.batch_sizes)) for part in training if part.batches_ahead is not None]
    # A rank that asks for all batches of an epoch at once does not show how many it would ask for.
    if depths := [ahead for ahead, batches in seen if ahead < batches]:
        return _most_common(depths)
    assumptions.append("how many batches are loaded ahead could not be seen; two per loader process, as PyTorch does")
    return max([2 * workers, *(ahead for ahead, _ in seen)])


def _agreement(order: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """How alike two orders of samples are: Spearman's rank correlation of the places of the samples in both; 1 is the same.

    Loader processes overtake each other, so the order seen is never exactly the order asked for.
    """
    common, places, other_places = np.intersect1d(order, other, return_indices=True)
    if len(common) < 3:
        return 1.0
    return float(np.corrcoef(np.argsort(np.argsort(places)), np.argsort(np.argsort(other_places)))[0, 1])


def _is_shuffled(training: Sequence[Pass]) -> bool:
    """Whether the order of the first epoch is far from that of the names."""
    return _agreement(training[0].samples, np.sort(training[0].samples)) < _SAME_ORDER


def _same_order_each_epoch(training: Sequence[Pass]) -> bool:
    """Whether the second epoch repeats the order of the first."""
    return len(training) > 1 and _agreement(training[0].samples, training[1].samples) >= _SAME_ORDER


def _train(times: Times, samples: Samples, training: Sequence[Pass], assumptions: list[str]) -> c.Train:
    if times.waits_unseen:
        assumptions.append("the rank's waits for data could not be seen: computation_time includes them")
    if len(training) == 1 and not training[0].logged:
        assumptions.append("one pass and no log of the job's: nothing but the reading of a data set says that this is training")
    if len(training) == 1 and _is_shuffled(training):
        assumptions.append("one epoch only: taken to be shuffled anew in each")
    blocks = training[0].phase == "block"
    steps = [len(part.batch_sizes) for part in training]
    train = c.Train(
        epochs=1 if blocks else len(training),
        computation_time=quantiles(times.compute_s),
        seed_change_epoch=not (_is_shuffled(training) and _same_order_each_epoch(training)),
    )
    if samples.first_record is not None or blocks:
        in_one_pass = _steps_in_data(samples, training)
        train.epochs = max(train.epochs, -(-sum(steps) // in_one_pass)) if blocks else train.epochs
        train.total_training_steps = min(sum(steps) if blocks else _most_common(steps), in_one_pass)
    return train


def _steps_in_data(samples: Samples, training: Sequence[Pass]) -> int:
    """Steps that go once through the files of records."""
    records = int(samples.records()[_files_of(samples, training)].sum())
    batch = _most_common([size for part in training for size in part.batch_sizes])
    return max(records // (batch * training[0].ranks), 1)


def _cadence(epochs: Sequence[int]) -> tuple[int, int]:
    """(first epoch, epochs between): the most common distance stands for the cadence."""
    distances = np.diff(sorted(set(epochs)))
    first = min(epochs)
    return first, _most_common(distances.tolist()) if len(distances) else first


def _evaluation(trace: Trace, training: Sequence[Pass], evaluations: Sequence[Pass], assumptions: list[str]) -> c.Evaluation:
    if not evaluations:
        return c.Evaluation()
    first, between = _cadence([part.epoch for part in evaluations])
    if len(evaluations) == 1:
        assumptions.append(f"one evaluation, after epoch {first}: taken to come every {between} epochs")
    evaluation = c.Evaluation(eval_time=quantiles(pass_times(trace, evaluations).compute_s))
    if training[0].phase == "block":
        steps = _most_common([len(part.batch_sizes) for part in training])
        evaluation.eval_after_step, evaluation.steps_between_evals = first * steps, between * steps
        evaluation.total_eval_steps = _most_common([len(part.batch_sizes) for part in evaluations])
    else:
        evaluation.eval_after_epoch, evaluation.epochs_between_evals = first, between
    return evaluation


def _steps_of_blocks(training: Sequence[Pass]) -> int | None:
    """Steps between evaluations or checkpoints, where the job counts no epochs."""
    return _most_common([len(part.batch_sizes) for part in training]) if training[0].phase == "block" else None


def _checkpoint(steps_of_blocks: int | None, checkpoints: SeenCheckpoints, assumptions: list[str]) -> c.Checkpoint:
    if not checkpoints.each:
        return c.Checkpoint()
    # Never the job's own folder: the twin writes random bytes.
    assumptions.append(f"the job kept its checkpoints in {checkpoints.folder}; the twin writes to {_CHECKPOINT_FOLDER}")
    if not checkpoints.between_epochs:
        return _checkpoint_by_steps([point.steps for point in checkpoints.each], assumptions)
    before_training = checkpoints.each[0].epoch == 0
    first, between = _cadence([point.epoch for point in checkpoints.each if point.epoch] or [1])
    if len(checkpoints.each) == 1:
        assumptions.append(f"one checkpoint, after epoch {first}: taken to come every {between} epochs")
    checkpoint = c.Checkpoint(checkpoint_folder=_CHECKPOINT_FOLDER, checkpoint_after_step=0 if before_training else -1)
    if steps_of_blocks is not None:
        checkpoint.steps_between_checkpoints = between * steps_of_blocks
    else:
        checkpoint.checkpoint_after_epoch, checkpoint.epochs_between_checkpoints = first, between
    return checkpoint


def _checkpoint_by_steps(steps: Sequence[int], assumptions: list[str]) -> c.Checkpoint:
    """The typical distance is the cadence; a first checkpoint that is out of step with it comes by itself."""
    between = max(round(float(np.median(np.diff(steps)))) if len(steps) > 1 else steps[0], 1)
    if len(steps) == 1:
        assumptions.append(f"one checkpoint, after {steps[0]} steps: taken to come every {between} steps")
    early = max(steps[0], 1) if steps[0] < between - 1 else -1
    return c.Checkpoint(
        checkpoint_folder=_CHECKPOINT_FOLDER, steps_between_checkpoints=between, checkpoint_after_step=early,
    )  # fmt: skip


def _twin(
    trace: Trace, samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass], checkpoints: SeenCheckpoints,
    assumptions: list[str],
) -> c.Twin:  # fmt: skip
    twin = c.Twin(
        source=trace.path.name, host=trace.manifest.host.hostname, persistent_workers=_are_persistent(training),
        ranks=training[0].ranks, barrier=training[0].ranks == 1 or training[0].workers > 0 or training[0].logged,
        reader=c.TwinReader(
            read_sizes=list(samples.read_sizes), read_past_end=samples.read_past_end, keep_open=samples.keep_open,
            random_batches=samples.layout == "dlrm" and _is_shuffled(training),
        ),
    )  # fmt: skip
    if samples.layout in ("npy", "unet3d", "dlrm"):
        twin.layout = samples.layout
    if samples.layout != "dlrm":
        twin.train_files = [samples.names[i] for i in _in_order_read(samples, training)]
        twin.eval_files = [samples.names[i] for i in _files_of(samples, evaluations)] or None
    twin.startup_time, twin.init_time = _start_times(trace, training[0].start_ns, assumptions)
    if evaluations:
        times = pass_times(trace, evaluations)
        workers = _most_common([part.workers for part in evaluations])
        twin.evaluation = c.TwinEvaluation(
            read_threads=workers, preprocess_time=quantiles(times.preprocess_s), after_checkpoint=_evaluated_after_saving(trace)
        )
    twin.checkpoint = _twin_checkpoint(checkpoints, assumptions)
    if _is_shuffled(training):
        assumptions.append("the order within an epoch is a permutation of the twin's own, not the job's own permutation")
    twin.assumptions = assumptions
    return twin


def _twin_checkpoint(checkpoints: SeenCheckpoints, assumptions: list[str]) -> c.TwinCheckpoint:
    if not checkpoints.each:
        return c.TwinCheckpoint()
    files = [file for point in checkpoints.each for file in point.files]
    return c.TwinCheckpoint(
        files=_checkpoint_files(checkpoints, assumptions), asynchronous=checkpoints.asynchronous,
        serialization_time=quantiles(np.array([file.serialization_s for file in files])),
        lead_time=quantiles(checkpoints.lead_s),
    )  # fmt: skip


def _checkpoint_files(checkpoints: SeenCheckpoints, assumptions: list[str]) -> list[c.CheckpointFile]:
    """One entry per file name; a file that only some checkpoints wrote says at which epochs."""
    names = dict.fromkeys(file.name for point in checkpoints.each for file in point.files)
    every = {point.epoch for point in checkpoints.each}
    found = []
    for name in names:
        seen = [(point.epoch, file) for point in checkpoints.each for file in point.files if file.name == name]
        epochs, last = sorted({epoch for epoch, _ in seen}), seen[-1][1]
        some = set(epochs) != every
        if some and not checkpoints.between_epochs:
            assumptions.append(f"{name} was not written at every checkpoint; the twin does so")
        found.append(c.CheckpointFile(
            name=name, write_sizes=last.write_sizes, fsync=last.fsync, rename=last.renamed, read_back=last.read_back,
            epochs=epochs if some and checkpoints.between_epochs else None,
        ))  # fmt: skip
    return found


def _are_persistent(training: Sequence[Pass]) -> bool:
    return len(training) > 1 and training[0].workers > 0 and training[0].pids == training[1].pids


def _start_times(trace: Trace, first_epoch_ns: int, assumptions: list[str]) -> tuple[float, float]:
    """Seconds from the job's start to the start of init, and from there to the first epoch."""
    phases = trace.phases()
    init = phases[phases["phase"] == "init"]
    if len(init):
        begin, end = int(init["start_ns"].iloc[0]), int(init["end_ns"].iloc[0])
    else:
        assumptions.append("the job logged no init phase: all before the first read of the data set counts as init")
        begin, end = trace.manifest.start_ns, first_epoch_ns
    return round(max(begin - trace.manifest.start_ns, 0) / 1e9, 3), round(max(end - begin, 0) / 1e9, 3)


def _confidence(
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
        found["twin.checkpoint.serialization_time"] = interval(np.array(seconds))
    return found


def _dataset_evidence(samples: Samples) -> str:
    if samples.record_bytes is None:
        return f"{len(samples.names)} samples ({samples.layout}) in {samples.folder}, by their reads"
    sizes = format_size(float(np.median(samples.record_bytes)))
    return f"{len(samples.names)} files in {samples.folder}, read {sizes} at a time, each read one batch or record"


def _evidence(
    samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass], checkpoints: SeenCheckpoints
) -> dict[str, str]:
    batches = [size for part in training for size in part.batch_sizes]
    batch = _most_common(batches)
    return {
        "dataset": _dataset_evidence(samples),
        "epochs": f"{len(training)} passes over the training samples, "
        + ("as the job logged them" if training[0].logged else "by samples read again"),
        "batch_size": f"{batch} samples between hand-overs in {np.mean(np.array(batches) == batch):.0%} "
        f"of {len(batches)} batches",
        "ranks": f"{training[0].ranks} processes that take batches",
        "read_threads": f"{_most_common([part.workers for part in training])} loader processes in each epoch",
        "steps_per_epoch": f"{_most_common([len(part.batch_sizes) for part in training])}",
        "evaluation": f"{len(evaluations)} evaluations",
        "checkpoint": f"{len(checkpoints.each)} checkpoints" + (", while training goes on" if checkpoints.asynchronous else ""),
    }
