"""The twin of a job that streams its files, as tf.data does; what it did is found by iotwin.benchmark.fit.streams.stream."""

from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.cadences import find_cadence
from iotwin.benchmark.fit.checkpoints import SeenCheckpoints, unnumbered
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.startup import StartUp
from iotwin.benchmark.fit.streams.stream import Stream, StreamSteps, stream_checkpoints, stream_steps, within
from iotwin.benchmark.fit.times import quantiles
from iotwin.benchmark.fit.twin_parts import (
    SAME_ORDER,
    Fitted,
    evaluated_after_saving,
    loss_notes,
    order_agreement,
    phases_in_order,
    set_checkpoints,
    start_times,
    twin_checkpoint,
)
from iotwin.common.units import format_size


def fit_stream(job: Job, stream: Stream) -> Fitted:
    """The twin of a job that streams its files: see iotwin.benchmark.fit.streams.stream."""
    assumptions = loss_notes(job)
    steps = stream_steps(job, stream, assumptions)
    checkpoints = stream_checkpoints(job, stream, steps.steps)
    blocks = stream.training[0].phase == "block"
    unnumbered(checkpoints.each, "{step}" if blocks else "{epoch}")
    train_files, eval_files = (sorted(stream.files_in(windows)) for windows in (stream.training, stream.evaluations))
    order = np.array(stream.files_in(stream.training))
    shuffled = order_agreement(order, np.sort(order)) < SAME_ORDER
    config = c.Config(
        model=c.Model(name=job.manifest.workload or PurePosixPath(stream.folder).name),
        workflow=c.Workflow(evaluation=bool(eval_files), checkpoint=bool(checkpoints.each)),
        dataset=_stream_dataset(stream, steps, train_files, eval_files),
        reader=c.Reader(
            batch_size=steps.batch_size,
            batch_size_eval=steps.batch_size,
            read_threads=steps.reading_threads if steps.threads > 1 else 0,
            transfer_size=steps.buffer_bytes,
            file_shuffle="seed" if shuffled else "off",
            sample_shuffle="seed" if steps.shuffle_records else "off",
            shuffle_size=max(steps.shuffle_records, 1),
        ),
        train=c.Train(
            epochs=1 if blocks else len(stream.training),
            total_training_steps=-1 if steps.whole_files else steps.steps * (len(stream.training) if blocks else 1),
            computation_time=round(steps.compute_s, 6),
        ),
        evaluation=_stream_evaluation(stream, steps) if eval_files else c.Evaluation(),
    )
    startup_s, init_s = start_times(job, StartUp(), stream.training[0].start_ns, assumptions)
    config.twin = c.Twin(
        source=job.path.name,
        host=job.manifest.host.hostname,
        startup_time=startup_s,
        init_time=init_s,
        train_files=[stream.names[i] for i in train_files],
        eval_files=[stream.names[i] for i in eval_files] or None,
        first_step_time=None if steps.first_step_s is None else round(steps.first_step_s, 6),
        reader=c.TwinReader(
            streamed=True,
            interleave_files=steps.cycle,
            in_turn=steps.in_turn and steps.threads > 1,
            opening_threads=steps.threads if steps.threads > steps.reading_threads else None,
        ),
        evaluation=c.TwinEvaluation(
            read_threads=0,
            lead_time=quantiles(_evaluation_leads_s(stream)),
            after_checkpoint=evaluated_after_saving(phases_in_order(job)),
        ),
        checkpoint=twin_checkpoint(checkpoints, assumptions),
    )
    epochs = len(stream.training)
    set_checkpoints(config, checkpoints, epochs, epochs * steps.steps, steps.steps if blocks else None, assumptions)
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
        data_folder=stream.folder,
        format="bin",
        num_files_train=len(train_files),
        num_files_eval=len(eval_files) or None,
        num_samples_per_file=each or 1,
        eval_num_samples_per_file=eval_each,
        interleave=True,
        record_length_bytes=round(steps.record_bytes, 1),
        record_length_bytes_stdev=0,
    )


def _stream_evaluation(stream: Stream, steps: StreamSteps) -> c.Evaluation:
    """As many steps as use up what was read but for half of the last buffer, each of the same share of the time."""
    read_bytes = within(stream.reads, stream.evaluations)["result"].sum() / len(stream.evaluations)
    count = max(round((read_bytes - steps.buffer_bytes / 2) / (steps.record_bytes * steps.batch_size)), 1)
    seconds = sum(window.end_ns - window.start_ns for window in stream.evaluations) / 1e9 / len(stream.evaluations)
    seconds -= float(np.mean(_evaluation_leads_s(stream)))
    evaluation = c.Evaluation(eval_time=round(seconds / count, 6), total_eval_steps=count)
    seen = [window.epoch for window in stream.evaluations]
    first, between, _ = find_cadence(seen, max(len(stream.training), seen[-1]), exact=True, one_more=False)
    if stream.training[0].phase == "block":
        evaluation.eval_after_step, evaluation.steps_between_evals = first * steps.steps, between * steps.steps
    else:
        evaluation.eval_after_epoch, evaluation.epochs_between_evals = first, between
    return evaluation


def _evaluation_leads_s(stream: Stream) -> NDArray[np.float64]:
    """Seconds from the start of each evaluation to its first open, shape (evaluations,); none of those without one."""
    first = [within(stream.opens, [window])["start_ns"].min() - window.start_ns for window in stream.evaluations]
    return np.array([lead for lead in first if lead == lead], np.float64) / 1e9


def _stream_evidence(stream: Stream, steps: StreamSteps, checkpoints: SeenCheckpoints) -> dict[str, str]:
    return {
        "dataset": f"{len(stream.names)} files in {stream.folder}, streamed {steps.cycle} at a time "
        f"by reads of {format_size(steps.buffer_bytes)}",
        "batch_size": f"{steps.batch_size} records of {format_size(steps.record_bytes)}",
        "shuffle_size": f"{steps.shuffle_records} records, by what the first reads brought and no step used",
        "read_threads": f"{steps.reading_threads} threads that read files, of {steps.threads} that open them",
        "steps": f"{steps.steps} steps in each of {len(stream.training)} {stream.training[0].phase}s",
        "evaluation": f"{len(stream.evaluations)} evaluations",
        "checkpoint": f"{len(checkpoints.each)} checkpoints",
    }
