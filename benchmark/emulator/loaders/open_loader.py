"""Open the loader that a workload names, and wrap it if the main process also opens files or copies batches."""

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Self

import numpy as np

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.data.dataset import SampleSet
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Fetcher, Loader, MainLoader, ThreadLoader
from iotwin.benchmark.emulator.loaders.loader_processes import WorkerLoader
from iotwin.benchmark.emulator.loaders.record_stream import TF_BUFFER_BYTES, StreamLoader, StreamPlan
from iotwin.benchmark.emulator.plugins import LOADERS, load_plugin
from iotwin.benchmark.emulator.readers.open_reader import past_page_cache
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.progress import note
from iotwin.workload_yaml import Config
from iotwin.workloads.policies.read_ahead import BATCHES_AHEAD

_FRAMEWORKS = {"pytorch": "torch", "tensorflow": "tensorflow"}  # package that a loader needs
_NATIVE = ("native", "synthetic", "dali", "native_dali", "terabyte", "none")
_BUFFER_BYTES = 16 << 20  # size of the buffer for copies into page-locked memory
_CYCLE = 8  # number of files that the BERT job reads in turn


def open_loader(
    config: Config, samples: SampleSet, rank: int = 0, ranks: int = 1, evaluation: bool = False, instrument: bool = False
) -> Loader:
    """Return the loader of the training or the evaluation samples for `rank`. Raises UsageError if its name is unknown.

    `instrument`: the loader also records the parts of each sample.
    """
    reader, twin = config.reader, config.twin
    seconds = twin.evaluation.preprocess_time if evaluation else reader.preprocess_time
    purpose = Purpose.EVALUATION_SAMPLE if evaluation else Purpose.TRAIN_SAMPLE
    preprocess = DrawnTime(seconds, config.train.seed, purpose) if seconds else None
    fetcher = Fetcher(samples, preprocess, instrument)
    workers = reader.read_threads
    if evaluation and twin.evaluation.read_threads is not None:
        workers = twin.evaluation.read_threads
    total = reader.prefetch_size
    prefetch = BATCHES_AHEAD if total is None else -(-total // max(workers, 1))
    name = reader.data_loader_classname or reader.data_loader
    package = _FRAMEWORKS.get(name)
    if package is not None and (waits.virtual_clock() is not None or not _installed(package)):
        name = "native"
        if not evaluation:
            why = "is not installed" if waits.virtual_clock() is None else "waits in real time"
            note(f"{package} {why}: the native loader reads, by the same system calls")
    framed = samples.file_format == "tfrecord" and not past_page_cache(config) and reader.read_type != "mapped"
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
    elif framed:
        loader = StreamLoader(samples, preprocess, _stream_plan(config, workers, rank, ranks, evaluation))
    elif reader.multiprocessing_context == "threads" and workers:
        loader = ThreadLoader(fetcher, workers, prefetch)
    else:
        loader = make_loader(fetcher, workers, prefetch, twin.persistent_workers)
    return PinnedCopies(loader) if reader.pin_memory else loader


def make_loader(fetcher: Fetcher, workers: int, prefetch: int, persistent: bool) -> Loader:
    """Return a loader with `workers` processes, each with `prefetch` batches in flight. If `workers` is 0, this process reads."""
    return WorkerLoader(fetcher, workers, prefetch, persistent) if workers else MainLoader(fetcher)


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
    return StreamPlan(
        cycle=_CYCLE if config.dataset.interleave else 1,
        buffer_bytes=reader.transfer_size or TF_BUFFER_BYTES,
        threads=threads,
        prefetch=reader.prefetch_size or BATCHES_AHEAD,
        shuffle_files=reader.file_shuffle != "off" and not evaluation,
        shuffle_records=reader.shuffle_size if shuffled else 0,
        seed=config.train.seed,
        fresh_each_epoch=config.train.seed_change_epoch or "random" in (reader.sample_shuffle, reader.file_shuffle),
        whole_files=(config.evaluation.total_eval_steps if evaluation else config.train.total_training_steps) <= 0,
        rank=rank,
        ranks=ranks,
    )


class PinnedCopies(Loader):
    """Wraps a loader; the main process copies each batch into page-locked memory before it delivers the batch.

    All copies use one buffer of 16 MiB. They take the time of real copies, but not the memory of whole batches.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._source, self._target = mmap.mmap(-1, _BUFFER_BYTES), mmap.mmap(-1, _BUFFER_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._target))
        if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(_BUFFER_BYTES)):
            note("memory cannot be locked (ulimit -l), so batches are copied into pageable memory")

    def __enter__(self) -> Self:
        self._loader.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loader.__exit__(*exception)

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        source, target = memoryview(self._source), memoryview(self._target)
        for fetched in self._loader.epoch(epoch, batches):
            begin_ns = waits.now_ns()
            for done in range(0, fetched.size_bytes, _BUFFER_BYTES):
                count = min(_BUFFER_BYTES, fetched.size_bytes - done)
                target[:count] = source[:count]
            yield fetched._replace(copy_ns=waits.now_ns() - begin_ns, ready_ns=0)
