"""The twin of a job that reads sample by sample, as PyTorch's loaders do, or batch by batch."""

from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.cadences import find_cadence
from iotwin.benchmark.fit.checkpoints import SeenCheckpoints, find_checkpoints, unnumbered
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.passes import Pass, find_passes
from iotwin.benchmark.fit.refusal import check_is_training
from iotwin.benchmark.fit.resume import find_resume, go_on
from iotwin.benchmark.fit.samples.evidence import confidence_of, evidence_of
from iotwin.benchmark.fit.samples.find_samples import find_samples
from iotwin.benchmark.fit.samples.kept_open import opened_by
from iotwin.benchmark.fit.samples.listed import are_listed, drawn_at_random, listed
from iotwin.benchmark.fit.samples.numpy_reads import are_read_by_numpy
from iotwin.benchmark.fit.samples.samples import Samples
from iotwin.benchmark.fit.snapshots import apart_from_snapshots
from iotwin.benchmark.fit.startup import find_start_up
from iotwin.benchmark.fit.times import (
    Times,
    apart_from_first,
    by_step,
    epoch_warm_up,
    pass_times,
    quantiles,
    start_time,
    taken_ns,
)
from iotwin.benchmark.fit.twin_parts import (
    SAME_ORDER,
    Fitted,
    evaluated_after_saving,
    loss_notes,
    most_common,
    order_agreement,
    phases_in_order,
    set_checkpoints,
    start_times,
    twin_checkpoint,
)
from iotwin.common.errors import IotwinError
from iotwin.common.units import format_size
from iotwin.datagen.layouts import DlrmLayout

_ALIKE = 0.5  # the most common size is the batch size if this share of the batches has it


def fit_samples(job: Job) -> Fitted:
    """Return the twin; IotwinError, saying why, when the trace shows no training that can be emulated."""
    samples = find_samples(job)
    passes = find_passes(job, samples)
    training = [part for part in passes if part.phase != "evaluation"]
    evaluations = [part for part in passes if part.phase == "evaluation"]
    if not training:
        reason = "its log and its events may use different clocks" if not passes else "only evaluations do"
        raise IotwinError(f"{job.path}: no training epoch reads the data set: {reason}; is this the trace of a training job?")
    check_is_training(job, training)
    evaluations, steps_before = _since_training(job, training[0].start_ns, evaluations)
    assumptions, checkpoints = loss_notes(job), find_checkpoints(job, training)
    times, snapshots_s = apart_from_snapshots(pass_times(job, training), checkpoints)
    first_step_s, times = apart_from_first(times)
    epochs = [part for part in training[first_step_s is not None :] if part.phase == "epoch"]
    epoch_warm_up_s, times = epoch_warm_up(times, epochs)
    start_up, since = find_start_up(job, samples.folder, passes), (0, 0)
    resume, typical = find_resume(job, start_up, training, _steps_in_data(samples, training)), training
    if resume is not None:
        # The rest of a resumed epoch shows least of how the job reads.
        typical = [*training[1:], training[0]]
        since = go_on(resume, passes, checkpoints, len(typical[0].batch_sizes))
    in_blocks = _steps_of_blocks(training)
    unnumbered(checkpoints.each, "{epoch}" if checkpoints.between_epochs and in_blocks is None else "{step}")
    lists = are_listed(samples, training, evaluations)
    config = c.Config(
        model=c.Model(name=job.manifest.workload or PurePosixPath(samples.folder).name),
        workflow=c.Workflow(evaluation=bool(evaluations), checkpoint=bool(checkpoints.each)),
        dataset=_dataset(samples, typical, evaluations),
        reader=_reader(times, samples, typical, evaluations, assumptions),
        train=_train(times, samples, typical, lists, since, assumptions),
        evaluation=_evaluation(job, samples, typical, evaluations, since[0], assumptions),
    )
    of_checkpoints, before = list[str](), len(assumptions)
    config.twin = _twin(job, samples, typical, evaluations, checkpoints, assumptions)
    first_ns = min(part.start_ns for part in passes)
    config.twin.startup_time, config.twin.init_time = start_times(job, start_up, first_ns, assumptions)
    config.twin.checkpoint = twin_checkpoint(checkpoints, assumptions, typical[0].rank_pids, snapshots_s, in_blocks is None)
    config.twin.evaluation.steps_before = steps_before
    config.twin.first_step_time, config.twin.resume = first_step_s, resume
    config.twin.epoch_warm_up_time = epoch_warm_up_s
    steps = sum(len(part.batch_sizes) for part in training)
    ends = since[0] + len(training), since[1] + steps
    set_checkpoints(config, checkpoints, *ends, in_blocks, of_checkpoints, since)
    assumptions[before:before] = of_checkpoints
    confidence = confidence_of(times, training, evaluations, checkpoints)
    files = _files(job, samples, training, evaluations)
    config.twin.startup_files, config.twin.startup_reads = [name for name, _ in start_up.files], start_up.reads
    config.twin.startup_ranks = start_up.ranks if any(start_up.ranks) else []
    evidence = evidence_of(samples, typical, evaluations, steps_before, checkpoints)
    if resume is not None:
        evidence["resume"] = f"after step {resume.step} of epoch {resume.epoch}, from what was read first: " + ", ".join(
            format_size(size) + f" of {kind} files" for kind, size in start_up.read_bytes.items()
        )
    return Fitted(config, evidence, files, confidence, start_up, by_numpy=are_read_by_numpy(job, samples))


def _since_training(job: Job, training_ns: int, evaluations: list[Pass]) -> tuple[list[Pass], int]:
    """Return the evaluations since training began, and the steps of those before, as of a first look whether it will work.

    Of a look that ends early the steps are those that had loaders read what they did.
    """
    since = [part for part in evaluations if part.start_ns > training_ns]
    if not since:
        return evaluations, 0
    usual, steps = max(len(part.batch_sizes) for part in since), 0
    for part in evaluations[: len(evaluations) - len(since)]:
        read = len(part.batch_sizes)
        whole = part.batches_ahead is None or read >= usual
        steps += len(taken_ns(job, part)) if whole else max(read - (part.batches_ahead or 0), 1)
    return since, steps


def _files(job: Job, samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass]) -> list[tuple[str, int]]:
    """The data set's files; those of records are whole multiples of as many records as the twin says each holds."""
    files = job.files
    files = files[(files["kind"] == "dataset") & (files["size_bytes"] > 0)].sort_values("path")
    found = zip(map(PurePosixPath, files["path"]), files["size_bytes"].astype(int), strict=True)
    sizes = {str(path.relative_to(samples.folder)): int(size) for path, size in found if path.is_relative_to(samples.folder)}
    if samples.layout == "records" and not are_listed(samples, training, evaluations):
        for passes in filter(None, (evaluations, training)):
            read, whole = _files_of(samples, passes), _record_sizes(samples, passes) * _records_in(samples, passes)
            sizes |= {samples.names[file]: int(size) for file, size in zip(read, whole, strict=True) if size}
    return list(sizes.items())


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
    if samples.first_record is not None and not are_listed(samples, training, evaluations):
        dataset.num_samples_per_file = _records_in(samples, training)
        dataset.eval_num_samples_per_file = _records_in(samples, evaluations) if evaluations else None
    if samples.layout == "dlrm":
        # A read is a batch of rows; the emulator knows the rows.
        dataset.record_length_bytes, dataset.record_length_bytes_stdev = DlrmLayout.SAMPLE_BYTES, 0
        dataset.num_samples_per_file, dataset.eval_num_samples_per_file = 1, None
    return dataset


def _records_in(samples: Samples, passes: Sequence[Pass]) -> int:
    """Records of each file that the passes read: the YAML knows one number, so where they differ it is their mean."""
    return max(round(float(samples.records()[_files_of(samples, passes)].mean())), 1)


def _record_sizes(samples: Samples, passes: Sequence[Pass]) -> NDArray[np.int64]:
    """Bytes of a record of the twin in each file of the passes: the job's, or an equal share where it holds more or fewer."""
    read, count = _files_of(samples, passes), _records_in(samples, passes)
    own = samples.file_bytes if samples.record_bytes is None else samples.record_bytes
    sizes: NDArray[np.int64] = np.where(samples.records()[read] == count, own[read], samples.file_bytes[read] // count)
    return sizes


def _files_of(samples: Samples, passes: Sequence[Pass]) -> list[int]:
    """The files (by index in samples.names) that the passes read, each once, ascending."""
    files = samples.file_of(np.array(_members(passes), np.int64))
    in_several = samples.buffer_bytes is not None or samples.sample_of is not None
    if passes and in_several and samples.reads is not None:
        read = samples.reads["read"].isin(np.concatenate([part.reads for part in passes]))
        files = np.append(files, samples.reads.loc[read, "file"])
    return [int(file) for file in np.unique(files)]


def _in_order_read(samples: Samples, training: Sequence[Pass]) -> list[int]:
    """The files of training by name; where ranks without loaders read them in an order that is not random, in that order."""
    if _is_shuffled(training) or training[0].workers:
        return _files_of(samples, training)
    every = np.concatenate([part.every for part in training])
    return [int(file) for file in pd.unique(np.append(samples.file_of(every), _files_of(samples, training)))]


def _members(passes: Sequence[Pass]) -> list[int]:
    """The samples that the passes read, each once, ascending."""
    return np.unique(np.concatenate([part.every for part in passes])).tolist() if passes else []


def _reader(
    times: Times, samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass], assumptions: list[str]
) -> c.Reader:
    if not len(times.preprocess_s):
        assumptions.append("preprocessing time could not be seen and is taken as zero")
    workers = most_common([part.workers for part in training])
    record_bytes = _record_sizes(samples, training) if samples.layout == "records" else None
    shuffled, lists = _is_shuffled(training), are_listed(samples, training, evaluations)
    ordered = samples.buffer_bytes is not None or (lists and drawn_at_random(training))
    return c.Reader(
        batch_size=_batch_size(samples, training),
        batch_size_eval=_batch_size(samples, evaluations) if evaluations else 1,
        read_threads=workers,
        prefetch_size=_prefetch(training, workers, assumptions),
        sample_shuffle="seed" if shuffled and samples.layout != "dlrm" and not ordered else "off",
        file_shuffle="seed" if shuffled and samples.buffer_bytes is not None and not lists else "off",
        # Records that follow one another are read one by one all the same.
        transfer_size=None if record_bytes is None or lists else samples.buffer_bytes or int(record_bytes.max()),
        preprocess_time=quantiles(times.preprocess_s),
    )


def _accesses_of_a_batch(passes: Sequence[Pass]) -> int:
    """The most common number; where few batches have it, the mean, which keeps the bytes."""
    sizes = [size for part in passes for size in part.batch_sizes]
    common = most_common(sizes)
    return common if sizes.count(common) >= _ALIKE * len(sizes) else max(round(float(np.mean(sizes))), 1)


def _batch_size(samples: Samples, passes: Sequence[Pass]) -> int:
    reads = _accesses_of_a_batch(passes)
    if samples.layout != "dlrm" or samples.record_bytes is None:
        return reads
    return reads * most_common(samples.size_bytes(passes[0].samples).tolist()) // DlrmLayout.SAMPLE_BYTES


def _prefetch(training: Sequence[Pass], workers: int, assumptions: list[str]) -> int | None:
    if not workers:
        return None
    seen = [(part.batches_ahead, len(part.batch_sizes)) for part in training if part.batches_ahead is not None]
    # A rank that asks for most batches of an epoch at its beginning does not show how many it would ask for.
    depths = [ahead for ahead, batches in seen if 2 * ahead <= batches]
    # Of short epochs one shows a few only where the machine was slow to ask, as others of that length then tell.
    if depths and most_common(depths) >= max((ahead for ahead, batches in seen if 2 * ahead > batches), default=0):
        return most_common(depths)
    assumptions.append("how many batches are loaded ahead could not be seen; two per loader process, as PyTorch does")
    return max([2 * workers, *(ahead for ahead, _ in seen)])


def _is_shuffled(training: Sequence[Pass]) -> bool:
    """Whether the order of the first epoch is far from that of the names."""
    return order_agreement(training[0].samples, np.sort(training[0].samples)) < SAME_ORDER


def _same_order_each_epoch(training: Sequence[Pass]) -> bool:
    """Whether the second epoch repeats the order of the first."""
    return len(training) > 1 and order_agreement(training[0].samples, training[1].samples) >= SAME_ORDER


def _train(
    times: Times, samples: Samples, training: Sequence[Pass], lists: bool, since: tuple[int, int], assumptions: list[str]
) -> c.Train:
    if times.waits_unseen:
        assumptions.append("the rank's waits for data could not be seen: computation_time includes them")
    if not training[0].logged:
        assumptions.append("the job logged no epochs: passes are told by who read what; log them (docs/trace.md) to be sure")
    if len(training) == 1 and not training[0].logged:
        assumptions.append("one pass and no log of the job's: nothing but the reading of a data set says that this is training")
    if len(training) == 1 and _is_shuffled(training):
        assumptions.append("one epoch only: taken to be shuffled anew in each")
    blocks = training[0].phase == "block"
    steps = [len(part.batch_sizes) for part in training]
    train = c.Train(
        epochs=1 if blocks else since[0] + len(training),
        computation_time=quantiles(times.compute_s),
        seed_change_epoch=not (_is_shuffled(training) and _same_order_each_epoch(training)),
    )
    whole = steps[:-1] if since != (0, 0) and len(steps) > 1 else steps
    if lists:
        train.total_training_steps = since[1] + sum(steps) if blocks else most_common(whole)
    elif samples.first_record is not None or blocks:
        in_one_pass = _steps_in_data(samples, training)
        train.epochs = max(train.epochs, -(-sum(steps) // in_one_pass)) if blocks else train.epochs
        in_blocks = round((since[1] + sum(steps)) / train.epochs)
        train.total_training_steps = in_blocks if blocks else min(most_common(whole), in_one_pass)
    return train


def _steps_in_data(samples: Samples, training: Sequence[Pass]) -> int:
    """Steps that go once through the files of records."""
    records = int(samples.records()[_files_of(samples, training)].sum())
    batch = _accesses_of_a_batch(training)
    return max(records // (batch * training[0].ranks), 1)


def _evaluation(
    job: Job,
    samples: Samples,
    training: Sequence[Pass],
    evaluations: Sequence[Pass],
    since: int,
    assumptions: list[str],
) -> c.Evaluation:
    if not evaluations:
        return c.Evaluation()
    seen = [part.epoch for part in evaluations]
    first, between, _ = find_cadence(seen, max(since + len(training), seen[-1]), exact=True, one_more=False, since=since)
    if len(evaluations) == 1:
        assumptions.append(f"one evaluation, after epoch {first}: taken to come every {between} epochs")
    each_s = [pass_times(job, [part]).compute_s for part in evaluations]
    evaluation = c.Evaluation(eval_time=by_step(each_s, most_common([len(part.batch_sizes) for part in evaluations])))
    if training[0].phase == "block":
        steps = most_common([len(part.batch_sizes) for part in training])
        evaluation.eval_after_step, evaluation.steps_between_evals = first * steps, between * steps
        evaluation.total_eval_steps = most_common([len(part.batch_sizes) for part in evaluations])
    else:
        evaluation.eval_after_epoch, evaluation.epochs_between_evals = first, between
        steps = most_common([len(part.batch_sizes) for part in evaluations])
        lists = are_listed(samples, training, evaluations)
        if samples.first_record is not None and not lists and steps < _steps_in_data(samples, evaluations):
            evaluation.total_eval_steps = steps  # of files that hold more than the evaluation reads
    return evaluation


def _steps_of_blocks(training: Sequence[Pass]) -> int | None:
    """Steps between evaluations or checkpoints, where the job counts no epochs."""
    return most_common([len(part.batch_sizes) for part in training]) if training[0].phase == "block" else None


def _twin(
    job: Job,
    samples: Samples,
    training: Sequence[Pass],
    evaluations: Sequence[Pass],
    checkpoints: SeenCheckpoints,
    assumptions: list[str],
) -> c.Twin:
    twin = c.Twin(
        source=job.path.name, host=job.manifest.host.hostname, persistent_workers=_are_persistent(training),
        ranks=training[0].ranks, barrier=training[0].ranks == 1 or training[0].workers > 0 or training[0].logged,
        reader=c.TwinReader(
            read_sizes=list(samples.read_sizes), read_past_end=samples.read_past_end, keep_open=samples.keep_open,
            most_open=samples.most_open, mmap=job.is_mapped(), start_time=start_time(job, [*training, *evaluations]),
            opened=opened_by(job, set(samples.accesses["pid"])) if samples.keep_open else "by_loaders",
            random_batches=samples.layout == "dlrm" and _is_shuffled(training),
        ),
    )  # fmt: skip
    if samples.layout in ("npy", "unet3d", "dlrm"):
        twin.layout = samples.layout
    if samples.layout != "dlrm":
        twin.train_files = [samples.names[i] for i in _in_order_read(samples, training)]
        twin.eval_files = [samples.names[i] for i in _files_of(samples, evaluations)] or None
    if are_listed(samples, training, evaluations):
        by_sample = _is_shuffled(training) and samples.buffer_bytes is None and not drawn_at_random(training)
        twin.train_reads = listed(samples, training, _in_order_read(samples, training), by_sample)
        twin.eval_reads = listed(samples, evaluations, _files_of(samples, evaluations), by_sample=False) or None
    if evaluations:
        times = pass_times(job, evaluations)
        workers = most_common([part.workers for part in evaluations])
        twin.evaluation = c.TwinEvaluation(
            read_threads=workers,
            preprocess_time=quantiles(times.preprocess_s),
            after_checkpoint=evaluated_after_saving(_order_of_phases(job, training, evaluations, checkpoints)),
        )
    if _is_shuffled(training):
        assumptions.append("the order within an epoch is a permutation of the twin's own, not the job's own permutation")
    twin.assumptions = assumptions
    return twin


def _order_of_phases(job: Job, training: Sequence[Pass], evaluations: Sequence[Pass], checkpoints: SeenCheckpoints) -> list[str]:
    """The names of passes and checkpoints in order of time: as logged, or as they were seen."""
    if training[0].logged:
        return phases_in_order(job)
    begun = [(part.start_ns, part.phase) for part in (*training, *evaluations)]
    begun += [(point.files[0].start_ns, "checkpoint") for point in checkpoints.each]
    return [name for _, name in sorted(begun)]


def _are_persistent(training: Sequence[Pass]) -> bool:
    """Whether loaders live through all epochs; a single block of steps, which may be several epochs of the twin, counts."""
    if len(training) == 1:
        return training[0].workers > 0 and training[0].phase == "block" and not training[0].logged
    return training[0].workers > 0 and training[0].pids == training[1].pids
