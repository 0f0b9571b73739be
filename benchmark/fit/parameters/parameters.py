"""Derive a DLIO-style YAML from the trace of a job whose samples are files.

The YAML serves studies of checkpoint policies, and users who publish parameters instead of a recording. A twin that replays a
recording imitates the job more closely.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.batches.labels import label_calls
from iotwin.benchmark.fit.checkpoints.cadences import find_cadence
from iotwin.benchmark.fit.checkpoints.find_checkpoints import find_checkpoints, unnumbered
from iotwin.benchmark.fit.checkpoints.snapshots import apart_from_snapshots
from iotwin.benchmark.fit.confidence import agreement, mean_time
from iotwin.benchmark.fit.fitted import Fitted, loss_notes
from iotwin.benchmark.fit.parameters.checkpoint_keys import in_words, set_checkpoints, twin_checkpoint
from iotwin.benchmark.fit.parameters.distributions import by_step, quantiles, warm_up
from iotwin.benchmark.fit.parameters.pipeline_stages import SeenPipeline, find_pipeline, ranks_by_start
from iotwin.benchmark.fit.parameters.sample_files import SampleFiles, find_sample_files
from iotwin.benchmark.fit.passes import Pass, Passes, find_passes
from iotwin.benchmark.fit.traced_job import Job, look
from iotwin.common.units import counted
from iotwin.trace_store.reader import Trace

_SAME_ORDER = 0.8  # least rank correlation of two orders of samples that count as the same order


def fit_parameters(trace: Trace) -> Fitted:
    """Return the parameters of the traced job as a workload configuration.

    Raises IotwinError with the reason if the trace does not show batches, or if the samples are not files that are read whole.
    """
    job = look(trace)
    labelled = label_calls(job)
    passes, calls = find_passes(job, labelled), labelled.calls
    training, evaluations = passes.training, passes.evaluations
    samples = find_sample_files(job, calls, passes)
    assumptions, checkpoints = loss_notes(job.trace.manifest), find_checkpoints(job, training)
    if early := sum(part.epoch == 0 for part in evaluations):
        assumptions.append(f"evaluations before the first epoch are left out: {early}")
    evaluations = [part for part in evaluations if part.epoch]
    unnumbered(checkpoints.each, "{epoch}" if checkpoints.between_epochs else "{step}")
    training, evaluations = ([_preprocessed(part, calls) for part in parts] for parts in (training, evaluations))
    compute_s, snapshots_s = apart_from_snapshots(training, checkpoints)
    first_step_s, compute_s = warm_up(compute_s)
    preprocess_s = _preprocess_s(calls, training)
    config = c.Config(
        model=c.Model(name=job.trace.manifest.workload or PurePosixPath(samples.folder).name),
        workflow=c.Workflow(evaluation=bool(evaluations), checkpoint=bool(checkpoints.each)),
        dataset=_dataset(samples),
        reader=_reader(training, evaluations, samples, quantiles(preprocess_s)),
        train=c.Train(
            epochs=len(training),
            computation_time=quantiles(compute_s),
            computation_batch_size=most_common(_sizes(training)),
            seed_change_epoch=not (_is_shuffled(samples) and _repeats_order(samples)),
        ),
        evaluation=_evaluation(training, evaluations, assumptions),
        twin=_twin(job, passes, training, evaluations, samples, calls),
    )
    config.twin.epoch_warm_up_time = c.InOrder([first_step_s, 0.0]) if first_step_s else 0.0
    pipeline = find_pipeline(job, len(training), assumptions)
    ranks = passes.ranks if pipeline is None else ranks_by_start(job, passes.ranks, pipeline.ranks)
    config.twin.checkpoint = twin_checkpoint(checkpoints, assumptions, ranks, snapshots_s)
    set_checkpoints(config, checkpoints, len(training), sum(len(part.batches) for part in training), assumptions)
    if _is_shuffled(samples):
        assumptions.append("the order within an epoch is a permutation of the twin's own, not the job's own permutation")
    config.twin.assumptions = assumptions
    steps = [len(part.batches) for part in training]
    evidence = {
        "dataset": f"{counted(len(samples.train), 'sample')} in {samples.folder}",
        "epochs": f"{counted(len(training), 'pass')} over the samples",
        "evaluation": counted(len(evaluations), "evaluation"),
        "checkpoint": in_words(checkpoints, most_common(steps)),
    }
    if pipeline is not None:
        batches_s = np.concatenate([_outside_calls_ns(calls, part) / 1e9 for part in training])
        _set_pipeline(config, pipeline, float(np.median(batches_s)))
        stages = pipeline.section.stages
        replicas = "-".join(str(len(stage.ranks)) for stage in stages)
        evidence["pipeline"] = f"{counted(len(stages), 'stage')} of {replicas} ranks, {pipeline.section.schedule}"
        evidence["edits"] = "stages, schedule, batch size, loaders, epochs, checkpoints"
    confidence = {
        "reader.batch_size": agreement(_sizes(training).tolist()),
        "train.steps_per_epoch": agreement(steps),
        "train.computation_time": mean_time(compute_s),
        "reader.preprocess_time": mean_time(preprocess_s),
    }
    return Fitted(config, evidence, samples.files, confidence)


def _set_pipeline(config: c.Config, pipeline: SeenPipeline, batch_s: float) -> None:
    """Replace the steps' computation in the workload by the pipeline's passes.

    `batch_s`: seconds that a loader needs for a minibatch after its first. The first minibatch of an epoch takes longer.
    """
    if any(waits := [round(max(wait_s - batch_s, 0.0), 6) for wait_s in pipeline.first_waits_s]):
        config.twin.epoch_warm_up_time = c.InOrder(waits)
    config.twin.pipeline, config.twin.ranks = pipeline.section, pipeline.ranks
    config.train.computation_time, config.evaluation.eval_time = 0.0, 0.0
    evaluated = len(config.twin.eval_files or ())
    if pipeline.evaluated and -(-evaluated // config.reader.batch_size_eval) != pipeline.evaluated:
        config.reader.batch_size_eval = -(-evaluated // pipeline.evaluated)


def most_common(values: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the most frequent value; the least one in a tie."""
    found, counts = np.unique(np.asarray(values, dtype=np.int64), return_counts=True)
    return int(found[counts.argmax()])


def _sizes(passes: Sequence[Pass]) -> NDArray[np.int64]:
    return np.concatenate([part.samples for part in passes])


def _outside_calls_ns(calls: pd.DataFrame, part: Pass) -> NDArray[np.int64]:
    """Return, for each batch of `part`, the nanoseconds of its reading in which no call on a file was in flight."""
    in_calls_ns = calls.groupby("batch")["duration_ns"].sum().reindex(part.batches).fillna(0).to_numpy(np.int64)
    outside_ns: NDArray[np.int64] = np.maximum(part.delivered_ns - part.received_ns - in_calls_ns, 0)
    return outside_ns


def _preprocessed(part: Pass, calls: pd.DataFrame) -> Pass:
    """Return `part` with the time at which each batch's last sample had been preprocessed as the time of delivery.

    If the rank has no loaders, no call shows this time. Then preprocessing the last sample is assumed to take as long as the time
    between reads of the batch's samples.
    """
    if part.loaders:
        return part
    each_ns = _outside_calls_ns(calls, part) // np.maximum(part.samples - 1, 1)
    last_ns = np.where(part.samples > 1, np.minimum(each_ns, part.computed_ns - part.taken_ns), 0)
    return replace(part, delivered_ns=part.delivered_ns + last_ns, taken_ns=part.taken_ns + last_ns)


def _preprocess_s(calls: pd.DataFrame, passes: Sequence[Pass]) -> NDArray[np.float64]:
    """Return the seconds that readers spent on each sample outside of calls on files.

    If a batch has another number of files than samples, or if several threads read it, the batch's mean is used for each sample.
    """
    seconds = [_outside_calls_by_sample_ns(calls, part) / 1e9 for part in passes]
    return np.concatenate(seconds) if seconds else np.zeros(0)


def _outside_calls_by_sample_ns(calls: pd.DataFrame, part: Pass) -> NDArray[np.float64]:
    """Return, for each sample of `part`, the nanoseconds from its first call to the next sample's, without those in calls."""
    own = calls[calls["batch"].isin(part.batches)]
    read = own.groupby(["batch", "file_id"]).agg(begin_ns=("start_ns", "min"), in_calls_ns=("duration_ns", "sum"))
    read = read.sort_values("begin_ns").reset_index("file_id", drop=True)
    threads = own.groupby("batch")["tid"].nunique().reindex(part.batches).fillna(0)
    found = []
    bounds = zip(part.batches, part.samples, part.received_ns, part.delivered_ns, _outside_calls_ns(calls, part), strict=True)
    for batch, samples, received_ns, delivered_ns, outside_ns in bounds:
        files = read.loc[[batch]] if threads[batch] == 1 else read.iloc[:0]
        if len(files) != samples:
            found.append(np.full(samples, outside_ns / max(samples, 1)))
            continue
        times_ns = np.concatenate(([received_ns], files["begin_ns"].to_numpy()[1:], [delivered_ns]))
        found.append(np.maximum(np.diff(times_ns) - files["in_calls_ns"].to_numpy(), 0))
    return np.concatenate(found) if found else np.zeros(0)


def _dataset(samples: SampleFiles) -> c.Dataset:
    return c.Dataset(
        data_folder=samples.folder,
        format="npy" if samples.layout is not None else "bin",
        num_files_train=len(samples.train),
        num_files_eval=len(samples.evaluated) or None,
        record_length_bytes=round(float(samples.size_bytes.mean())),
        record_length_bytes_stdev=round(float(samples.size_bytes.std()), 1),
    )


def _reader(training: Sequence[Pass], evaluations: Sequence[Pass], samples: SampleFiles, preprocess_time: c.Duration) -> c.Reader:
    loaders, depth = most_common([len(part.loaders) for part in training]), max(part.depth for part in training)
    return c.Reader(
        batch_size=most_common(_sizes(training)),
        batch_size_eval=most_common(_sizes(evaluations)) if evaluations else 1,
        read_threads=loaders,
        prefetch_size=depth or None,
        sample_shuffle="seed" if _is_shuffled(samples) else "off",
        preprocess_time=preprocess_time,
    )


def _evaluation(training: Sequence[Pass], evaluations: Sequence[Pass], assumptions: list[str]) -> c.Evaluation:
    if not evaluations:
        return c.Evaluation()
    seen = [part.epoch for part in evaluations]
    first, between, _ = find_cadence(seen, max(len(training), seen[-1]), exact=True, one_more=False)
    if len(evaluations) == 1:
        assumptions.append(f"one evaluation, after epoch {first}: taken to come every {counted(between, 'epoch')}")
    steps = most_common([len(part.batches) for part in evaluations])
    times = by_step([part.computation_s for part in evaluations], steps)
    return c.Evaluation(eval_time=times, eval_after_epoch=first, epochs_between_evals=between)


def _twin(
    job: Job,
    passes: Passes,
    training: Sequence[Pass],
    evaluations: Sequence[Pass],
    samples: SampleFiles,
    calls: pd.DataFrame,
) -> c.Twin:
    begin_ns = min(int(part.requested_ns[0]) for part in passes.each)
    init = job.phases[job.phases["phase"] == "init"]
    start_ns = int(init["start_ns"].iloc[0]) if len(init) else job.trace.manifest.start_ns
    twin = c.Twin(
        ranks=len(passes.ranks),
        layout=samples.layout,
        train_files=samples.train,
        eval_files=samples.evaluated or None,
        startup_time=round(max(start_ns - job.trace.manifest.start_ns, 0) / 1e9, 3),
        init_time=round(max(begin_ns - start_ns, 0) / 1e9, 3),
        persistent_workers=len(training) > 1 and bool(training[0].loaders) and training[0].loaders == training[1].loaders,
        reader=c.TwinReader(read_sizes=samples.read_sizes),
    )
    if evaluations:
        workers = most_common([len(part.loaders) for part in evaluations])
        twin.evaluation = c.TwinEvaluation(
            read_threads=workers, preprocess_time=quantiles(_preprocess_s(calls, evaluations)),
            after_checkpoint=_evaluates_after_saving(job),
        )  # fmt: skip
    return twin


def _evaluates_after_saving(job: Job) -> bool:
    """Return True if most evaluations next to a checkpoint in the log come after it, not before it."""
    logged = job.phases[job.phases["phase"].isin(["epoch", "block", "evaluation", "checkpoint"])].sort_values("start_ns")
    names = logged["phase"].astype(str).tolist()
    pairs = list(pairwise(names))
    return pairs.count(("checkpoint", "evaluation")) > pairs.count(("evaluation", "checkpoint"))


def _is_shuffled(samples: SampleFiles) -> bool:
    return _agreement_of_orders(samples.orders[0], np.sort(samples.orders[0])) < _SAME_ORDER


def _repeats_order(samples: SampleFiles) -> bool:
    return len(samples.orders) > 1 and _agreement_of_orders(samples.orders[0], samples.orders[1]) >= _SAME_ORDER


def _agreement_of_orders(order: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return Spearman's rank correlation (-1 to 1) of two orders of the same samples.

    Loaders overtake one another, so even equal orders appear slightly different in a trace.
    """
    common, positions, others = np.intersect1d(order, other, return_indices=True)
    if len(common) < 3:
        return 1.0
    return float(np.corrcoef(np.argsort(np.argsort(positions)), np.argsort(np.argsort(others)))[0, 1])
