"""The samples of a workload: the files that contain each sample, and how to read a sample as the real job does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.data.train_eval_files import Paths, find_files
from iotwin.benchmark.emulator.readers.access import Buffered
from iotwin.benchmark.emulator.readers.numpy_files import NumpyLoad
from iotwin.benchmark.emulator.readers.open_reader import file_format, make_reader, open_reader
from iotwin.benchmark.emulator.readers.records import Raw
from iotwin.benchmark.emulator.readers.sample import SampleReader
from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.common.units import counted, format_size
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workload_yaml import Config

_NOTED_SIZE_DIFFERENCE = 0.1  # as a share of dataset.record_length_bytes
_NUMPY = NumpyLoad()


@dataclass(frozen=True)
class SampleSet:
    """Samples by index. Each item of `files` holds `each` samples; it has several paths if a sample is in several files."""

    files: Sequence[Paths]
    size_bytes: int = 0  # total size of all files; an estimate if the sizes of only some files were read
    reader: SampleReader = _NUMPY
    each: int = 1
    shapes: tuple[tuple[int, ...], ...] = ()  # allowed shapes of a sample that is an array; (): any shape
    file_format: str = "npy"

    def __len__(self) -> int:
        return len(self.files) * self.each

    def read(self, index: int) -> int:
        """Read the sample `index` and return the number of bytes read from its files.

        Raises IotwinError, which names the file, if a file cannot be read, is incomplete or has unexpected content.
        """
        number, inner = divmod(index, self.each)
        read_bytes = 0
        for path in self.files[number]:
            sample = self.reader.read(path, inner, self.each)
            if self.shapes and isinstance(sample.content, np.ndarray) and sample.content.shape not in self.shapes:
                found, expected = sample.content.shape, list(self.shapes[0])
                raise IotwinError(
                    f"{path}: holds samples of shape {found}, but dataset.record_dims is {expected}; "
                    "correct it or generate the data set again"
                )
            read_bytes += sample.read_bytes
        return read_bytes

    def read_runs(self, batch: Batch) -> int:
        """Read the samples of `batch` by one read for each run of consecutive samples in a file, and return their bytes."""
        reader = cast(Raw, self.reader)
        breaks = np.flatnonzero((np.diff(batch) != 1) | (batch[1:] % self.each == 0)) + 1
        read_bytes = 0
        for start, stop in pairwise([0, *breaks.tolist(), len(batch)]):
            if stop > start:
                number, inner = divmod(int(batch[start]), self.each)
                for path in self.files[number]:
                    read_bytes += reader.read_run(path, inner, stop - start, self.each).read_bytes
        return read_bytes


class DataSetFacts(NamedTuple):
    """The size of the data set."""

    train_samples: int = 0
    evaluation_samples: int = 0
    train_files: int = 0
    evaluation_files: int = 0
    size_bytes: int = 0


@dataclass
class SampleSets:
    """The training and the evaluation samples. There are no evaluation samples if the workload does not evaluate."""

    train: SampleSet
    evaluation: SampleSet
    facts: DataSetFacts = field(init=False)

    def __post_init__(self) -> None:
        files = len(self.train.files), len(self.evaluation.files)
        size_bytes = self.train.size_bytes + self.evaluation.size_bytes
        self.facts = DataSetFacts(len(self.train), len(self.evaluation), *files, size_bytes)

    def __iter__(self) -> Iterator[SampleSet]:
        return iter((self.train, self.evaluation))


def open_dataset(config: Config, ranks: int = 1) -> SampleSets:
    """Return the data set of the workload, after a check that its files exist and are not empty. At most 4096 files are checked.

    Raises IotwinError, which names the file or the folder, if a file is missing or empty. Also raises it if there are
    fewer samples than the workload specifies or than `ranks` batches need.
    """
    dataset, name = config.dataset, file_format(config)
    if name == "synthetic":
        return _synthetic(config)
    found = find_files(config, name)
    reader, opener = open_reader(config, found.remote)
    if found.layout == "dlrm":
        reader = Raw(opener, DlrmLayout.SAMPLE_BYTES)
    # In npy and npz files with one sample, the array may keep the axis of samples.
    dims = tuple(dataset.record_dims)
    shapes = (dims, (*dims, 1)) if dims else ()
    parts = (found.train, found.evaluation)
    opened = SampleSets(*(SampleSet(part.files, part.size_bytes, reader, part.each, shapes, name) for part in parts))
    _check_sizes(config, opened, found.folder, ranks)
    return opened


def _synthetic(config: Config) -> SampleSets:
    """Return samples without files, as many as the configured files would contain."""
    dataset, reader, each = config.dataset, make_reader(config, Buffered), config.dataset.num_samples_per_file
    evaluation_files = (dataset.num_files_eval or 0) if config.workflow.evaluation else 0
    return SampleSets(
        SampleSet([("synthetic",)] * (dataset.num_files_train or 0), 0, reader, each),
        SampleSet([("synthetic",)] * evaluation_files, 0, reader, dataset.eval_num_samples_per_file or each),
    )


def _check_sizes(config: Config, dataset: SampleSets, folder: str, ranks: int) -> None:
    """Raise IotwinError if there are too few samples. Print a note if their mean size is another data set's."""
    samples, batch = len(dataset.train), config.reader.batch_size
    if config.workflow.train and samples < ranks * batch:
        wanted = f"a batch of {batch}" if ranks == 1 else f"a batch of {batch} on each of {ranks} ranks"
        raise IotwinError(
            f"{folder}: has {counted(samples, 'training sample')}, fewer than {wanted}; generate more or lower reader.batch_size"
        )
    if config.workflow.evaluation and config.dataset.num_files_eval == 0:
        note("dataset.num_files_eval is 0, so nothing is evaluated")
    elif config.workflow.evaluation and not len(dataset.evaluation):
        raise IotwinError(f"{folder}: has no evaluation samples; generate more or set workflow.evaluation to false")
    expected, found = config.dataset.record_length_bytes, dataset.train.size_bytes / max(1, samples)
    if expected and abs(found - expected) > _NOTED_SIZE_DIFFERENCE * expected:
        note(f"the training samples are {format_size(found)} on average, in the workload {format_size(expected)}")
