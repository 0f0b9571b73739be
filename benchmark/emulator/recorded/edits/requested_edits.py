"""What a user changes in a labelled twin: the difference between its YAML and the values that were recorded."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from iotwin.common.errors import UsageError
from iotwin.workload_yaml import Config, Rematerialized, Twin, TwinRecorded, TwinResume
from iotwin.workload_yaml.recorded_structure import RecordedStructure, structure_of
from iotwin.workload_yaml.recording import Header, Op, TwinRecording
from iotwin.workload_yaml.rematerialized import rematerialized
from iotwin.workload_yaml.train_section import batch_factor

_MOST_FACTOR = 10_000
# Keys and sections that change a recorded twin, by whether its batches must be known. Any other changed key is an error, since
# it would have no effect.
_OF_ANY = (
    "dataset.data_folder", "train.epochs", "train.seed", "checkpoint.checkpoint_folder", "twin.recorded.file",
    "twin.recorded.think_scale", "twin.recorded.read_latency", "twin.ranks", "twin.clock", "twin.assumptions",
    "model.name", "framework", "workflow", "output", "metric", "profiling",
)  # fmt: skip
_OF_BATCHES = (
    "dataset.num_files_train", "reader.batch_size", "reader.read_threads", "reader.prefetch_size", "reader.transfer_size",
    "reader.read_type=memory", "reader.read_type=kept_open", "reader.sample_shuffle=sorted",
    "train.computation_time", "train.computation_scale", "train.computation_per_sample",
    "checkpoint.steps_between_checkpoints", "checkpoint.fsync",
    "twin.checkpoint.asynchronous", "twin.evaluation.read_threads", "twin.recorded", "twin.resume",
)  # fmt: skip

# Operations by which a rank's main thread waits for batches; least share of batches that counts as all.
_WAITS, _NEARLY_ALL = (Op.PIPE_READ, Op.WAIT), 0.9


class Edits(NamedTuple):
    """Changes of a recorded job. The defaults change nothing."""

    batch: float = 1.0  # factor for the size of training batches
    loaders: int | None = None  # loader processes of a pass; None: as recorded
    prefetch: int | None = None  # requested, undelivered batches of all loaders; None: per loader as recorded
    epochs: int | None = None
    samples: float = 1.0  # factor for the number of samples of each pass
    computation: float = 1.0  # factor for the time of steps
    saves_every: int | None = None  # steps between checkpoints within epochs; None: as recorded
    ranks: int = 1  # ranks that share the samples of the recorded rank or, if `regrouped`, of all recorded ranks
    regrouped: bool = False  # True: the recording has several ranks, and the edited job another number of ranks
    seed: int = 123  # seed for the order in which samples are dealt anew
    decode: float = 1.0  # factor for the time between the calls that read a sample
    request_bytes: int | None = None  # most bytes of joined sequential reads; None: as recorded
    keep_open: bool = False  # a process opens each file of the data set once
    balanced: bool = False  # all ranks have equally many samples, as many loaders as most, and loaders as quick as the median
    evaluation_loaders: int | None = None  # loaders of an evaluation; None: as recorded
    asynchronous: bool = False  # a thread in the background writes checkpoints, one after another
    fsync: bool | None = None  # whether each file of a checkpoint is synced; None: as recorded
    read_once: bool = False  # a thread reads each byte of the data set once
    sequential: bool = False  # training reads its samples in the order of files and offsets
    resume: TwinResume | None = None  # None: the run begins at its first step


def replays(header: Header, ranks: int, balanced: bool = False) -> int:
    """Return how many replays run concurrently for a job of `ranks` ranks.

    One replay suffices if the recording has that many ranks already, unless samples are `balanced` over them. Otherwise, each
    rank has a replay.
    """
    return 1 if header.ranks == ranks and not balanced else ranks


def edits_of(config: Config, header: Header, ranks: int) -> Edits | None:
    """Return the edits that `config` makes of the recording with this header; None if there are none.

    `ranks`: number of ranks of the edited job.

    Raises UsageError, which names the key, if the recording cannot follow an edit.
    """
    _refuse(
        config, _OF_ANY + _OF_BATCHES,
        ": has no effect on a recorded twin, which repeats the job's calls; leave it out, or make a twin of parameters: "
        "iotwin fit TRACE -o TWIN.yaml --parameters",
    )  # fmt: skip
    if header.batches is None:
        _refuse(
            config, _OF_ANY,
            ": this twin cannot follow it, since the trace does not show when a rank took which batch; trace the job with "
            "--phases auto and fit it again, or scale its pauses by twin.recorded.think_scale",
        )  # fmt: skip
        return None
    recorded = structure_of(header.batches)
    reader, train, settings = config.reader, config.train, config.twin.recorded
    balanced = settings is not None and settings.balanced_ranks
    evaluation_loaders = config.twin.evaluation.read_threads
    if evaluation_loaders is not None and all(each.training for each in header.batches.passes):
        raise UsageError("twin.evaluation.read_threads: the recording shows no evaluation; leave it out")
    if balanced and recorded.ranks < 2:
        raise UsageError("twin.recorded.balanced_ranks: the recording has one rank; leave it out")
    edits = Edits(
        batch=reader.batch_size / recorded.batch_size,
        loaders=None if reader.read_threads == recorded.loaders else reader.read_threads,
        prefetch=None if reader.prefetch_size == recorded.prefetch else reader.prefetch_size,
        epochs=None if train.epochs == recorded.epochs else train.epochs,
        samples=(config.dataset.num_files_train or recorded.samples) / recorded.samples,
        computation=_computation(config, recorded, reader.batch_size / recorded.batch_size),
        saves_every=steps_between if (steps_between := config.checkpoint.steps_between_checkpoints) > 0 else None,
        ranks=replays(header, ranks, balanced),
        regrouped=header.ranks > 1 and (header.ranks != ranks or balanced),
        seed=train.seed,
        decode=1.0 if settings is None else settings.decode_scale,
        request_bytes=reader.transfer_size,
        keep_open=reader.read_type == "kept_open",
        balanced=balanced,
        evaluation_loaders=evaluation_loaders,
        asynchronous=config.twin.checkpoint.asynchronous,
        fsync=config.checkpoint.fsync,
        read_once=reader.read_type == "memory",
        sequential=reader.sample_shuffle == "sorted",
        resume=config.twin.resume,
    )
    if edits._replace(seed=Edits().seed) == Edits():
        return None
    _check(recorded, edits)
    return edits


def waits_for_batches(recording: TwinRecording) -> bool:
    """Return True if the main thread of each rank waits for nearly each batch that loaders deliver to the rank.

    Otherwise another thread receives the batches, such as PyTorch's thread that pins memory. A replay of that recording would
    train on batches before they arrive, so `edit` must rebuild it.
    """
    header, columns = recording.header, recording.columns
    passes = [] if header.batches is None else [each for each in header.batches.passes if each.depth]
    waits = columns["thread"][np.isin(columns["op"], _WAITS)]
    for process in {each.process for each in passes}:
        main = int(np.searchsorted(header.threads, process))
        batches = sum(each.batches for each in passes if each.process == process)
        if np.count_nonzero(waits == main) < _NEARLY_ALL * batches:
            return False
    return True


def copies_folder(config: Config, edits: Edits) -> Path:
    """Return the folder for the copies of files from which additional samples are read.

    It is next to the data set. If the data folder is the root folder, it is below the checkpoints' folder.
    """
    data = Path(config.dataset.data_folder)
    if data == Path(data.anchor):
        return Path(config.checkpoint.checkpoint_folder) / f"data.x{edits.samples:g}"
    return data.parent / f"{data.name}.x{edits.samples:g}"


def _computation(config: Config, recorded: RecordedStructure, batch: float) -> float:
    """Return the factor for the time per sample of steps. `batch`: factor for the batch size."""
    time, scale = config.train.computation_time, config.train.computation_scale * batch_factor(config.train, batch) / batch
    if isinstance(time, Rematerialized):
        time = rematerialized(time)
    if not isinstance(time, float | int):
        raise UsageError("train.computation_time: a recorded twin takes a number of seconds; train.computation_scale scales it")
    if round(time, 6) == round(recorded.computation_s, 6) or not recorded.computation_s:
        return scale
    return scale * time / recorded.computation_s


def _check(recorded: RecordedStructure, edits: Edits) -> None:
    if recorded.ranks > 1 and edits.ranks > 1 and not edits.regrouped:
        raise UsageError(f"twin.ranks: this older recording holds {recorded.ranks} ranks; leave it at 1, or fit the trace again")
    for key, factor in (("reader.batch_size", edits.batch), ("dataset.num_files_train", edits.samples)):
        if not 1 / _MOST_FACTOR <= factor <= _MOST_FACTOR:
            raise UsageError(f"{key}: is {factor:g} times what was recorded; give a factor of at most {_MOST_FACTOR}")


def _refuse(config: Config, honoured: Sequence[str], why: str) -> None:
    """Raise UsageError if the value of a key was changed that is not `honoured`. The message names the key and `why`."""
    usual = dict(_leaves(msgspec.to_builtins(Config(twin=Twin(recorded=TwinRecorded("")))), ""))
    for key, value in _leaves(msgspec.to_builtins(config), ""):
        if usual.get(key) != value and not any(
            each in (key, f"{key}={value}") or key.startswith(f"{each}.") for each in honoured
        ):
            raise UsageError(f"{key}{why}")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
