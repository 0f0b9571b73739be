"""What the emulator will do by a fitted YAML: its steps, and what it reads, writes and opens, told without running it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.samples.kept_open import Dealt, Shuffled, openings
from iotwin.benchmark.fit.samples.numpy_reads import read_twice
from iotwin.benchmark.fit.twin_parts import Fitted
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workload_yaml import listed_reads
from iotwin.workloads.policies.cadence import LoopPosition, checkpoint_policy, evaluation_cadence
from iotwin.workloads.policies.read_ahead import BATCHES_AHEAD, OPENED_AHEAD


@dataclass(frozen=True)
class Plan:
    """What a twin will do."""

    steps: int  # of all ranks together, in training and evaluation
    checkpoints: int
    bytes_or_opens: dict[tuple[str, str], float]  # by (read | write | open, kind of file)
    data_reads: float | None  # calls that bring something; None: what a format's own reader makes


@dataclass(frozen=True)
class _Planned:
    """One pass: steps of one rank, and the samples and bytes of all."""

    steps: int
    samples: int
    size_bytes: float
    files: int
    each: int  # samples of a file
    reads: float | None  # calls; None: what a format's own reader makes
    opens: float  # where no file stays open
    listed: list[set[int]] | None  # files of each sample, where its reads are listed


def plan(fitted: Fitted) -> Plan:
    """Return what the twin will do."""
    config, sizes = fitted.config, dict(fitted.files)
    dataset, epochs = config.dataset, config.train.epochs
    training = _pass(
        config,
        sizes,
        config.twin.train_files,
        config.twin.train_reads,
        dataset.num_files_train or len(sizes),
        dataset.num_samples_per_file,
        config.reader.batch_size,
        config.train.total_training_steps,
        fitted.by_numpy,
    )
    evaluation = _pass(
        config,
        sizes,
        config.twin.eval_files,
        config.twin.eval_reads,
        dataset.num_files_eval or 0,
        dataset.eval_num_samples_per_file or dataset.num_samples_per_file,
        config.reader.batch_size_eval,
        config.evaluation.total_eval_steps,
        fitted.by_numpy,
        drop_last=False,
    )
    done_epochs, done, unread = _done_before(config, training.steps)
    steps = training.steps * epochs
    evaluations, checkpoints = _evaluations(config, steps, done_epochs, done), _checkpoints(config, steps, done_epochs, done)
    passes = epochs - unread / max(training.steps, 1)
    before = _before_training(config, evaluation.steps)
    evaluated = evaluations + before / max(evaluation.steps, 1)
    read_bytes = training.size_bytes * passes + evaluation.size_bytes * evaluated
    if config.twin.reader.streamed and config.train.total_training_steps >= 0:
        read_bytes += _streamed(config, sizes, training.size_bytes * passes)[0] - training.size_bytes * passes
    amounts = _of_checkpoints(config, checkpoints)
    amounts["read", "dataset"] = read_bytes
    amounts["open", "dataset"] = _opens(config, training, evaluation, passes, evaluated, read_bytes, sizes)
    for direction, of_kind in (("read", fitted.start_up.read_bytes), ("open", fitted.start_up.opens)):
        for kind, amount in of_kind.items():
            amounts[direction, kind] = amounts.get((direction, kind), 0.0) + amount
    reads = None
    if training.reads is not None and (evaluation.reads is not None or not evaluated):
        reads = training.reads * passes + (evaluation.reads or 0.0) * evaluated + _start_up_reads(config)
    return Plan((steps - done + evaluation.steps * evaluations + before) * config.twin.ranks, checkpoints, amounts, reads)


def _before_training(config: c.Config, steps: int) -> int:
    """Steps of an evaluation, of `steps`, whose batches are read before training: those that loaders read ahead are, too."""
    workers = config.reader.read_threads if config.twin.evaluation.read_threads is None else config.twin.evaluation.read_threads
    taken = config.twin.evaluation.steps_before if config.workflow.evaluation else 0
    ahead = workers * -(-(config.reader.prefetch_size or BATCHES_AHEAD * workers) // max(workers, 1))
    return min(taken + ahead, steps) if taken else 0


def _done_before(config: c.Config, steps: int) -> tuple[int, int, int]:
    """Whole epochs, and steps of `steps` an epoch, done before the run began; and steps whose samples it does not read."""
    resume = config.twin.resume
    if resume is None:
        return 0, 0, 0
    epochs, step = resume.epoch - 1, min(resume.step, steps)
    unread = step if resume.mode in ("restore", "skip_reads") else 0
    return epochs, epochs * steps + (0 if resume.mode == "full" else step), epochs * steps + unread


def _start_up_reads(config: c.Config) -> int:
    return sum(read.size_bytes > 0 for reads in config.twin.startup_reads for read in listed_reads.parse(reads))


def _pass(
    config: c.Config, sizes: Mapping[str, int], names: Sequence[str] | None, reads: Sequence[str] | None, files: int, each: int,
    batch: int, limit: int, by_numpy: bool, drop_last: bool = True,
) -> _Planned:  # fmt: skip
    own = [size for name in names or () for size in _sizes(name, sizes)] or list(sizes.values())
    total, ranks = sum(own) + sum(map(read_twice, own)) * by_numpy, config.twin.ranks
    held = total // DlrmLayout.SAMPLE_BYTES if config.twin.layout == "dlrm" else files * each
    listed = None if reads is None else [{read.file for read in listed_reads.parse(one)} for one in reads]
    if reads is not None:
        held, total = len(reads), listed_reads.size_bytes(reads)
    steps = held // (batch * ranks) if drop_last else -(-held // (batch * ranks))
    if limit >= 0:
        steps = min(steps, limit)
    samples = min(steps * batch * ranks, held)
    sample_bytes = float(config.dataset.record_length_bytes or 0) if config.twin.layout == "dlrm" else total / max(held, 1)
    opens = samples if reads is None else sum(len(listed_reads.visits(one)) for one in reads) * samples / max(held, 1)
    calls = _calls(config, reads, own, sample_bytes)
    return _Planned(steps, samples, samples * sample_bytes, files, each, calls and calls * samples / max(held, 1), opens, listed)


def _calls(config: c.Config, reads: Sequence[str] | None, sizes: Sequence[int], sample_bytes: float) -> float | None:
    """Read calls that bring something, of one pass over all samples; None where a format's own reader makes them."""
    if reads is not None:
        return float(sum(read.size_bytes > 0 for one in reads for read in listed_reads.parse(one)))
    if config.twin.layout or config.twin.reader.streamed:
        return None
    if asked := config.twin.reader.read_sizes:
        ends = np.cumsum(asked)
        whole, beyond = np.searchsorted(ends, sizes) + 1, -(-(np.array(sizes) - ends[-1]) // asked[-1])
        return float(np.where(beyond > 0, len(ends) + beyond, whole).sum())
    return sum(sizes) / max(min(sample_bytes, config.reader.transfer_size or sample_bytes), 1)


def _streamed(config: c.Config, sizes: Mapping[str, int], used_bytes: float) -> tuple[float, float]:
    """Bytes and opens of a stream by the end of steps that use so many bytes.

    The shuffle buffer and batches made ahead take records too. Files end round by round: those in turn are read as far as
    the buffer that their records have come to, and those that threads have opened ahead to the end of their first buffer.
    """
    reader, record_bytes = config.reader, float(config.dataset.record_length_bytes or 0)
    shuffled = reader.shuffle_size if reader.sample_shuffle != "off" else 0
    taken = used_bytes + (shuffled + BATCHES_AHEAD * reader.batch_size) * record_bytes
    file_bytes = max(sum(sizes.values()) / max(len(sizes), 1), 1.0)
    buffer = min(reader.transfer_size or file_bytes, file_bytes)
    in_turn = config.twin.reader.interleave_files or 1
    rounds, further = divmod(taken / file_bytes, in_turn)
    begun = min((further / in_turn * file_bytes // buffer + 1) * buffer, file_bytes)
    ahead = in_turn * OPENED_AHEAD if reader.read_threads else 0
    return in_turn * (rounds * file_bytes + begun) + ahead * buffer, in_turn * (rounds + 1) + ahead


def _sizes(name: str, sizes: Mapping[str, int]) -> list[int]:
    """Bytes of a file, or of both files of a pair."""
    return [sizes[file] for file in (name, f"{name}_x.npy", f"{name}_y.npy") if file in sizes]


def _evaluations(config: c.Config, steps: int, done_epochs: int, done: int) -> int:
    if not config.workflow.evaluation:
        return 0
    after_epochs, after_steps = evaluation_cadence(config.evaluation)
    if after_steps is not None:
        return sum(map(after_steps.due, range(done + 1, steps + 1)))
    return sum(map(after_epochs.due, range(done_epochs + 1, config.train.epochs + 1))) if after_epochs is not None else 0


def _checkpoints(config: c.Config, steps: int, done_epochs: int, done: int) -> int:
    if not config.workflow.checkpoint:
        return 0
    section, twin = config.checkpoint, config.twin.checkpoint
    policy, several = checkpoint_policy(section, twin), Counter(twin.after_steps or [])
    within = (step for step in range(done + 1, steps + 1) if policy.due(LoopPosition(0, step), 0.0))
    ends = (epoch for epoch in range(done_epochs + 1, config.train.epochs + 1) if policy.due(LoopPosition(epoch, 0, True), 0.0))
    before = section.checkpoint_after_step == 0 and config.twin.resume is None
    return before + sum(max(1, several[step]) for step in within) + sum(1 for _ in ends)


def _of_checkpoints(config: c.Config, checkpoints: int) -> dict[tuple[str, str], float]:
    before = len(config.twin.checkpoint.before)
    amounts = dict.fromkeys((("write", "checkpoint"), ("open", "checkpoint"), ("read", "checkpoint")), 0.0)
    for file in config.twin.checkpoint.files:
        listed = file.after_steps if file.epochs is None else file.epochs
        times = checkpoints if listed is None else len(listed)
        written = sum(size * count for size, count in file.write_sizes)
        amounts["write", "checkpoint"] += times * written
        read_anew = sum(offset == 0 or not number for number, (offset, _) in enumerate(file.read_back))
        amounts["open", "checkpoint"] += times * (1 + file.made_first + read_anew)
        amounts["read", "checkpoint"] += times * sum(size for _, size in file.read_back)
        if file.looked_at is not None:
            looks = sum(_standing(config, number, before + times) for number in range(before, before + times))
            amounts["open", "checkpoint"] += looks
            amounts["read", "checkpoint"] += looks * written if file.looked_at == "read" else 0
    return amounts


def _standing(config: c.Config, number: int, checkpoints: int) -> int:
    """How many are there after `number` of the `checkpoints`, which come about evenly over the epochs."""
    twin = config.twin.checkpoint
    newest = min(number, twin.keep or number)
    ended = number * config.train.epochs // checkpoints if twin.keep_epoch_ends else 0
    return min(newest + ended, number)


def _opens(
    config: c.Config,
    training: _Planned,
    evaluation: _Planned,
    passes: float,
    evaluations: float,
    read_bytes: float,
    sizes: Mapping[str, int],
) -> float:
    """Opens of the data: one for each file of a sample, or as few as files that stay open or are streamed take."""
    if config.twin.reader.streamed:
        file_bytes = max(sum(sizes.values()) / max(len(sizes), 1), 1)
        if config.train.total_training_steps < 0:
            return read_bytes / file_bytes
        return _streamed(config, sizes, training.size_bytes * passes)[1] + evaluation.size_bytes * evaluations / file_bytes
    if config.twin.reader.keep_open or config.twin.layout == "dlrm":
        return _kept_open(config, training, evaluation, passes, math.ceil(evaluations))
    return (training.opens * passes + evaluation.opens * evaluations) * (2 if config.twin.layout == "unet3d" else 1)


def _kept_open(config: c.Config, training: _Planned, evaluation: _Planned, passes: float, evaluations: int) -> float:
    """Opens by processes that keep files open: ranks that read, or open for loaders, open all; loaders those that they meet."""
    reader, twin = config.reader, config.twin
    if twin.reader.opened == "each_pass":
        return twin.ranks * (training.files * math.ceil(passes) + evaluation.files * evaluations)
    if twin.reader.opened == "once":
        return float(twin.ranks * _named(config, training, evaluation))
    threads = reader.read_threads, reader.read_threads if twin.evaluation.read_threads is None else twin.evaluation.read_threads
    opens = 0.0 if reader.read_threads else float(twin.ranks * _named(config, training, evaluation))
    for planned, workers, times, shuffled in (
        (training, threads[0], math.ceil(passes), _shuffled(config)),
        (evaluation, threads[1], evaluations, ""),
    ):
        batch = reader.batch_size if planned is training else reader.batch_size_eval
        dealt = Dealt(planned.steps, batch, twin.ranks, max(workers, 1), planned.files, planned.each, planned.listed, shuffled)
        if workers and not twin.persistent_workers:
            opens += (passes if planned is training else times) * openings(dealt, 1, anew=False)
        elif workers or reader.read_threads:
            opens += openings(dealt, times, config.train.seed_change_epoch)
    return opens


def _named(config: c.Config, training: _Planned, evaluation: _Planned) -> int:
    """Files of both kinds of pass, each once."""
    if not config.workflow.evaluation:
        return training.files
    named = config.twin.train_files, config.twin.eval_files
    return len({*named[0], *named[1]}) if named[0] and named[1] else training.files + evaluation.files


def _shuffled(config: c.Config) -> Shuffled:
    """What of a training pass comes in random order, as iotwin.benchmark.emulator.data.order has it."""
    reader = config.reader
    if config.twin.reader.random_batches:
        return "batches"
    if reader.sample_shuffle == "off" and reader.file_shuffle != "off" and config.dataset.num_samples_per_file > 1:
        return "files"
    return "" if reader.sample_shuffle == reader.file_shuffle == "off" else "samples"
