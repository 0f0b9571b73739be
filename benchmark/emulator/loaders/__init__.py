"""Open the loader that a workload names, and compute the order of its training samples."""

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from iotwin.benchmark.emulator.data.dataset import SampleSet
from iotwin.benchmark.emulator.data.order import Batch, training_batches
from iotwin.benchmark.emulator.loaders.base import Fetcher, Loader, MainLoader
from iotwin.benchmark.emulator.loaders.processes import StartTime, WorkerLoader, at_once
from iotwin.benchmark.emulator.loaders.stream import TF_BUFFER_BYTES, StreamLoader, StreamPlan
from iotwin.benchmark.emulator.loaders.threads import ThreadLoader
from iotwin.benchmark.emulator.loaders.wrapped import OpenedEachPass, PinnedCopies
from iotwin.benchmark.emulator.plugins import LOADERS, SAMPLERS, load_plugin
from iotwin.benchmark.emulator.readers import DEFAULT_RECORD_BYTES, file_format, past_page_cache
from iotwin.common.numbers.draws import DrawnTime, even_strata
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.progress import note
from iotwin.workload_yaml import Config
from iotwin.workloads.policies.read_ahead import BATCHES_AHEAD

_FRAMEWORKS = {"pytorch": "torch", "tensorflow": "tensorflow"}  # package that a loader needs
_NATIVE = ("native", "synthetic", "dali", "native_dali", "terabyte", "none")
_CYCLE = 8  # number of files that the BERT job reads in turn
_DLIO_SAMPLERS = ("iterative", "index")  # DLIO's samplers, which do not change the order


def open_loader(config: Config, samples: SampleSet, rank: int = 0, ranks: int = 1, evaluation: bool = False) -> Loader:
    """Return the loader of the training or the evaluation samples for `rank`. Raises UsageError if its name is unknown."""
    loader = _named_loader(config, samples, rank, ranks, evaluation)
    return OpenedEachPass(loader, samples.shared) if samples.shared else loader


def _named_loader(config: Config, samples: SampleSet, rank: int, ranks: int, evaluation: bool) -> Loader:
    reader, twin = config.reader, config.twin
    seconds = twin.evaluation.preprocess_time if evaluation else reader.preprocess_time
    purpose = Purpose.EVALUATION_SAMPLE if evaluation else Purpose.TRAIN_SAMPLE
    preprocess = DrawnTime(seconds, config.train.seed, purpose)
    fetcher = Fetcher(samples, preprocess, config.twin.instrument)
    workers = reader.read_threads
    if evaluation and twin.evaluation.read_threads is not None:
        workers = twin.evaluation.read_threads
    total = reader.prefetch_size
    prefetch = BATCHES_AHEAD if total is None else -(-total // max(workers, 1))
    name = reader.data_loader_classname or reader.data_loader
    package = _FRAMEWORKS.get(name)
    if package is not None and not _installed(package):
        name = "native"
        if not evaluation:
            note(f"{package} is not installed: the native loader reads, by the same system calls")
    framed = file_format(config) == "tfrecord" and not past_page_cache(config) and not twin.reader.mmap
    if name == "pytorch":
        from iotwin.benchmark.emulator.loaders.pytorch import TorchLoader

        return TorchLoader(fetcher, config, workers, prefetch, _tensor_type(config))
    if name == "tensorflow":
        from iotwin.benchmark.emulator.loaders.tf_data import TfMapLoader, TfRecordLoader

        if framed:
            return TfRecordLoader(samples, preprocess, _stream_plan(config, workers, rank, ranks, evaluation))
        return TfMapLoader(fetcher, workers, total or BATCHES_AHEAD)
    if name not in _NATIVE:
        key = "reader.data_loader_classname" if reader.data_loader_classname else "reader.data_loader"
        loader: Loader = load_plugin(LOADERS, name, key, [*_NATIVE, "pytorch", "tensorflow"])(config=config, fetcher=fetcher)
    elif framed or twin.reader.streamed:
        loader = StreamLoader(samples, preprocess, _stream_plan(config, workers, rank, ranks, evaluation))
    elif twin.reader.workers == "threads" and workers:
        loader = ThreadLoader(fetcher, workers, prefetch)
    else:
        start = DrawnTime(twin.reader.start_time, config.train.seed, Purpose.LOADER_START, even_strata(config.train.epochs))
        loader = make_loader(fetcher, workers, prefetch, twin.persistent_workers, lambda epoch: start.seconds(rank, 0, epoch - 1))
    return PinnedCopies(loader) if twin.reader.pinned_copies else loader


def make_loader(fetcher: Fetcher, workers: int, prefetch: int, persistent: bool, start_s: StartTime = at_once) -> Loader:
    """Return a loader with `workers` processes, each with `prefetch` batches in flight. If `workers` is 0, this process reads.

    The processes begin to read `start_s(epoch)` seconds after the start of the first one.
    """
    return WorkerLoader(fetcher, workers, prefetch, persistent, start_s) if workers else MainLoader(fetcher)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # the module is loaded, but has no spec
        return False


def _tensor_type(config: Config) -> np.dtype[np.void] | None:
    """Return the type and shape of the tensor that the loader delivers for a sample; None if it delivers no tensor."""
    dims = config.reader.transformed_record_dims
    if dims:
        return np.dtype((config.reader.transformed_record_element_type, tuple(dims)))
    size_bytes = int(config.dataset.record_length_bytes_resize or 0)
    return np.dtype((np.uint8, (size_bytes,))) if size_bytes else None


def _stream_plan(config: Config, threads: int, rank: int, ranks: int, evaluation: bool) -> StreamPlan:
    reader = config.reader
    shuffled = reader.sample_shuffle != "off" and not evaluation
    interleaved = config.twin.reader.interleave_files or (_CYCLE if config.dataset.interleave else 1)
    return StreamPlan(
        cycle=interleaved,
        buffer_bytes=reader.transfer_size or TF_BUFFER_BYTES,
        threads=threads,
        openers=config.twin.reader.opening_threads if threads else None,
        prefetch=reader.prefetch_size or BATCHES_AHEAD,
        shuffle_files=reader.file_shuffle != "off" and not evaluation,
        shuffle_records=reader.shuffle_size if shuffled else 0,
        seed=config.train.seed,
        fresh_each_epoch=config.train.seed_change_epoch or "random" in (reader.sample_shuffle, reader.file_shuffle),
        whole_files=(config.evaluation.total_eval_steps if evaluation else config.train.total_training_steps) <= 0,
        record_bytes=None if file_format(config) == "tfrecord" else config.dataset.record_length_bytes or DEFAULT_RECORD_BYTES,
        in_turn=config.twin.reader.in_turn or not config.twin.reader.streamed or threads < 2,
        rank=rank,
        ranks=ranks,
    )


def sampled_batches(config: Config, samples: int, epoch: int, rank: int = 0, ranks: int = 1) -> Sequence[Batch]:
    """Return the batches of `rank` in training epoch `epoch`, from the workload's own sampler if it names a plug-in."""
    name = config.reader.data_loader_sampler
    if name is None or name in _DLIO_SAMPLERS:
        return training_batches(config, samples, epoch, rank, ranks)
    sampler = load_plugin(SAMPLERS, name, "reader.data_loader_sampler", list(_DLIO_SAMPLERS))
    batches: Sequence[Batch] = sampler(config=config, samples=samples, epoch=epoch, rank=rank, ranks=ranks)
    return batches
