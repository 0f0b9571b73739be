"""What the emulator will do by a fitted YAML: its steps, and what it reads, writes and opens, told without running it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark import config as c
from benchmark.fit.twin_parts import Fitted
from datagen.layouts import DlrmLayout
from workloads.policies.cadence import Cadence

_BATCHES_AHEAD = 2  # that the emulator's stream makes
_OPEN_OF_A_TURN = 3  # files that its threads have open for each that gives records


@dataclass(frozen=True)
class Plan:
    """What a twin will do."""

    steps: int  # of all ranks together, in training and evaluation
    checkpoints: int
    bytes_or_opens: dict[tuple[str, str], float]  # by (read | write | open, kind of file)


@dataclass(frozen=True)
class _Planned:
    """One pass: steps of one rank, and the samples and bytes of all."""

    steps: int
    samples: int
    size_bytes: float


def plan(fitted: Fitted) -> Plan:
    """Return what the twin will do."""
    config, sizes = fitted.config, dict(fitted.files)
    dataset, epochs = config.dataset, config.train.epochs
    training = _pass(
        config, sizes, config.twin.train_files, dataset.num_files_train or len(sizes), dataset.num_samples_per_file,
        config.reader.batch_size, config.train.total_training_steps,
    )  # fmt: skip
    evaluation = _pass(
        config, sizes, config.twin.eval_files, dataset.num_files_eval or 0,
        dataset.eval_num_samples_per_file or dataset.num_samples_per_file, config.reader.batch_size_eval,
        config.evaluation.total_eval_steps,
    )  # fmt: skip
    steps = training.steps * epochs
    evaluations, checkpoints = _evaluations(config, steps), _checkpoints(config, steps)
    read_bytes = training.size_bytes * epochs + evaluation.size_bytes * evaluations
    samples = training.samples * epochs + evaluation.samples * evaluations
    if config.twin.reader.streamed and config.train.total_training_steps >= 0:
        read_bytes += _read_ahead(config, sizes)
    amounts = _of_checkpoints(config, checkpoints)
    amounts["read", "dataset"] = read_bytes
    amounts["open", "dataset"] = _opens(config, samples, read_bytes, sizes)
    return Plan((steps + evaluation.steps * evaluations) * config.twin.ranks, checkpoints, amounts)


def _pass(
    config: c.Config, sizes: Mapping[str, int], names: Sequence[str] | None, files: int, each: int, batch: int, limit: int
) -> _Planned:
    own = [size for name in names or () for size in _sizes(name, sizes)]
    total, ranks = sum(own or sizes.values()), config.twin.ranks
    held = total // DlrmLayout.SAMPLE_BYTES if config.twin.layout == "dlrm" else files * each
    steps = held // (batch * ranks)
    if limit >= 0:
        steps = min(steps, limit)
    samples = steps * batch * ranks
    sample_bytes = float(config.dataset.record_length_bytes or 0) if config.twin.layout == "dlrm" else total / max(held, 1)
    return _Planned(steps, samples, samples * sample_bytes)


def _read_ahead(config: c.Config, sizes: Mapping[str, int]) -> float:
    """Bytes of a stream that no step uses: in the shuffle buffer, in batches made ahead, and the first buffers of open files."""
    reader, record_bytes = config.reader, float(config.dataset.record_length_bytes or 0)
    shuffled = reader.shuffle_size if reader.sample_shuffle != "off" else 0
    files = (config.twin.reader.interleave_files or 1) * (_OPEN_OF_A_TURN if reader.read_threads else 1)
    first = min(reader.transfer_size or 0, sum(sizes.values()) / max(len(sizes), 1))
    return (shuffled + _BATCHES_AHEAD * reader.batch_size) * record_bytes + files * first


def _sizes(name: str, sizes: Mapping[str, int]) -> list[int]:
    """Bytes of a file, or of both files of a pair."""
    return [sizes[file] for file in (name, f"{name}_x.npy", f"{name}_y.npy") if file in sizes]


def _evaluations(config: c.Config, steps: int) -> int:
    if not config.workflow.evaluation:
        return 0
    section = config.evaluation
    if section.steps_between_evals > 0:
        first = section.eval_after_step if section.eval_after_step > 0 else section.steps_between_evals
        return _times(Cadence(first, section.steps_between_evals), steps)
    return _times(Cadence(section.eval_after_epoch, section.epochs_between_evals), config.train.epochs)


def _checkpoints(config: c.Config, steps: int) -> int:
    if not config.workflow.checkpoint:
        return 0
    section = config.checkpoint
    before = int(section.checkpoint_after_step == 0)
    if section.steps_between_checkpoints > 0:
        every = section.steps_between_checkpoints
        return before + _times(Cadence(every, every, section.checkpoint_after_step), steps)
    also = int(0 < section.checkpoint_after_step <= steps)
    return (
        before + also + _times(Cadence(section.checkpoint_after_epoch, section.epochs_between_checkpoints), config.train.epochs)
    )


def _times(cadence: Cadence, until: int) -> int:
    return sum(map(cadence.due, range(1, until + 1)))


def _of_checkpoints(config: c.Config, checkpoints: int) -> dict[tuple[str, str], float]:
    amounts = dict.fromkeys((("write", "checkpoint"), ("open", "checkpoint"), ("read", "checkpoint")), 0.0)
    for file in config.twin.checkpoint.files:
        times = checkpoints if file.epochs is None else len(file.epochs)
        amounts["write", "checkpoint"] += times * sum(size * count for size, count in file.write_sizes)
        amounts["open", "checkpoint"] += times * (1 + bool(file.read_back))
        amounts["read", "checkpoint"] += times * sum(size for _, size in file.read_back)
    return amounts


def _opens(config: c.Config, samples: int, read_bytes: float, sizes: Mapping[str, int]) -> float:
    """Opens of the data: one for each file of a sample, or as few as files that stay open or are streamed take."""
    files = len(sizes)
    if config.twin.reader.streamed:
        return read_bytes / max(sum(sizes.values()) / max(files, 1), 1)
    if config.twin.reader.keep_open or config.twin.layout == "dlrm":
        workers = config.reader.read_threads * (1 if config.twin.persistent_workers else config.train.epochs)
        return float(min(files * max(workers, 1) * config.twin.ranks, samples))
    return float(samples * (2 if config.twin.layout == "unet3d" else 1))
