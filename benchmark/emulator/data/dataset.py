"""The samples of a workload: the files that contain each sample, and how to read a sample as the real job does."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from iotwin.benchmark.emulator.data.folders import Folder, NamedFiles, Paths, RemoteFolder, open_folder
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.readers import file_format, make_reader
from iotwin.benchmark.emulator.readers.access import Buffered, KeptOpen, Opener
from iotwin.benchmark.emulator.readers.listed import BufferedToEnd, ListedReads
from iotwin.benchmark.emulator.readers.numpy_files import NumpyLoad
from iotwin.benchmark.emulator.readers.records import Raw
from iotwin.benchmark.emulator.readers.sample import SampleReader
from iotwin.common.errors import IotwinError, nearest
from iotwin.common.progress import note
from iotwin.common.units import format_size
from iotwin.datagen.layouts import BertLayout, Case, DlrmLayout, FormatLayout, Unet3dLayout
from iotwin.workload_yaml import Config, listed_reads
from iotwin.workload_yaml.checkpoint_names import found_first

_NOTED_SIZE_DIFFERENCE = 0.1  # as a share of dataset.record_length_bytes
_PROBED = 4096  # the sizes of at most so many files are checked before the first epoch
_PROBED_REMOTE = 16  # the same in an object store, where each file costs a request
_BERT_SHARD = re.compile(r"part-\d+-of-\d+")
_SUFFIXES = {"jpeg": "jpe?g", "csv": r"csv(\.(gz|bz2|xz))?", "hdf5": "(hdf5|h5)", "tfrecord": "tfrecords?"}
_NUMPY = NumpyLoad()


@dataclass(frozen=True)
class SampleSet:
    """Samples by index. Each item of `files` holds `each` samples; it has several paths if a sample is in several files."""

    files: Sequence[Paths]
    size_bytes: int = 0  # of all files; an estimate if only some were inspected
    reader: SampleReader = _NUMPY
    each: int = 1
    shapes: tuple[tuple[int, ...], ...] = ()  # allowed shapes of a sample that is an array; (): any shape
    shared: "SharedFiles | None" = None  # files that the main process opens for each pass

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

    @property
    def in_runs(self) -> bool:
        """True if one read can fetch several consecutive samples."""
        return isinstance(self.reader, Raw)

    def read_runs(self, batch: Batch) -> int:
        """Read the samples of `batch`, with one read for each run of consecutive samples in a file, and return their bytes."""
        reader = cast(Raw, self.reader)
        breaks = np.flatnonzero((np.diff(batch) != 1) | (batch[1:] % self.each == 0)) + 1
        read_bytes = 0
        for start, stop in pairwise([0, *breaks.tolist(), len(batch)]):
            if stop > start:
                number, inner = divmod(int(batch[start]), self.each)
                for path in self.files[number]:
                    read_bytes += reader.read_run(path, inner, stop - start, self.each).read_bytes
        return read_bytes


class SharedFiles(NamedTuple):
    """Files that the main process opens before it starts its loaders, which inherit and read them."""

    opener: KeptOpen
    paths: Sequence[str]

    def open(self) -> None:
        """Open the files. Raises IotwinError, which names the file, if one cannot be opened."""
        self.opener.share(self.paths)

    def close(self) -> None:
        """Close the files."""
        self.opener.close_shared()


class SampleSets(NamedTuple):
    """The training and the evaluation samples. There are no evaluation samples if the workload does not evaluate."""

    train: SampleSet
    evaluation: SampleSet


class _FoundFiles(NamedTuple):
    """All existing files of one part, training or evaluation, and the number of samples in each file."""

    files: Sequence[Paths]
    each: int


def open_dataset(config: Config, ranks: int = 1) -> SampleSets:
    """Return the data set of the workload, after a check that its files exist and are not empty. At most 4096 files are checked.

    Raises IotwinError, which names the file or the folder, if a file is missing or empty. Also raises it if there are
    fewer samples than the workload specifies or than `ranks` batches need.
    """
    dataset = config.dataset
    if file_format(config) == "synthetic":
        return _synthetic(config)
    folder, opener = open_folder(config)
    if not folder.exists():
        raise IotwinError(f"{folder.path}: no such data folder; generate the data set, or correct dataset.data_folder")
    train, evaluation, reader = _find(folder, config, opener)
    chosen = _first(train, dataset.num_files_train, folder, "training", "dataset.num_files_train")
    chosen_evaluation = _FoundFiles([], 1)
    if config.workflow.evaluation:
        chosen_evaluation = _first(evaluation, dataset.num_files_eval, folder, "evaluation", "dataset.num_files_eval")
    listed = config.twin.train_reads, config.twin.eval_reads
    parts = zip((chosen, chosen_evaluation), listed, strict=True)
    opened = SampleSets(*(_listed_samples(_samples(found, folder, reader, config), reads, opener) for found, reads in parts))
    _check_enough(config, opened, folder, ranks)
    _compare_sizes(config, opened)
    if not isinstance(opener, KeptOpen):
        return opened
    files = [[path for paths in found.files for path in paths] for found in (chosen, chosen_evaluation)]
    return _opened_first(config, opened, opener, files)


def _opened_first(config: Config, dataset: SampleSets, opener: KeptOpen, files: Sequence[Sequence[str]]) -> SampleSets:
    """Open the `files` of both parts in the main process now, or arrange that it opens them for each pass, by `reader.opened`."""
    if config.twin.reader.opened == "each_pass":
        return SampleSets(*(replace(part, shared=SharedFiles(opener, own)) for part, own in zip(dataset, files, strict=True)))
    for path in (path for own in files for path in own):
        if config.twin.reader.opened == "once":
            opener.share([path])
        elif not config.reader.read_threads:
            opener(path)  # the main process reads all samples, from files that it keeps open
    return dataset


def _synthetic(config: Config) -> SampleSets:
    """Return samples without files, as many as the configured files would contain."""
    dataset = config.dataset
    reader = make_reader(config, Buffered)
    evaluation_files = (dataset.num_files_eval or 0) if config.workflow.evaluation else 0
    return SampleSets(
        SampleSet([("synthetic",)] * (dataset.num_files_train or 0), 0, reader, dataset.num_samples_per_file),
        SampleSet([("synthetic",)] * evaluation_files, 0, reader, _evaluation_each(config)),
    )


def _evaluation_each(config: Config) -> int:
    return config.dataset.eval_num_samples_per_file or config.dataset.num_samples_per_file


def _find(folder: Folder, config: Config, opener: Opener) -> tuple[_FoundFiles, _FoundFiles, SampleReader]:
    """Return all training files, all evaluation files and their reader."""
    each, evaluation_each = config.dataset.num_samples_per_file, _evaluation_each(config)
    layout = config.twin.layout or _recognised(folder, config)
    if layout == "dlrm":
        return *_dlrm(folder, config), Raw(opener, DlrmLayout.SAMPLE_BYTES)
    if layout == "unet3d":
        train, evaluation = _unet3d(folder, config)
        return _FoundFiles(train, 1), _FoundFiles(evaluation, 1), make_reader(config, opener)
    if layout == "bert":
        shards = [(f"{folder.path}/{name}",) for name in folder.names(_BERT_SHARD)]
        evaluation_file = [(f"{folder.path}/{BertLayout.EVALUATION_NAME}",)]
        return _FoundFiles(shards, each), _FoundFiles(evaluation_file, evaluation_each), make_reader(config, opener)
    files, evaluation_files = _given(folder, config) or _by_format(folder, config)
    return _FoundFiles(files, each), _FoundFiles(evaluation_files, evaluation_each), make_reader(config, opener)


def _recognised(folder: Folder, config: Config) -> str | None:
    """Return the layout of the files if their format and a name reveal it, else None."""
    if config.dataset.format == "bin" and folder.names(re.compile(re.escape(DlrmLayout.TRAIN_NAME))):
        return "dlrm"
    if config.dataset.format == "tfrecord" and folder.names(_BERT_SHARD, first_only=True):
        return "bert"
    return None


def _dlrm(folder: Folder, config: Config) -> tuple[_FoundFiles, _FoundFiles]:
    """Return the one big training file and the one big evaluation file, with the samples that they hold.

    If the workload specifies fewer samples, that number counts. Without evaluation, the evaluation file may be missing.
    """
    parts = []
    for name, wanted in (
        (DlrmLayout.TRAIN_NAME, config.dataset.num_samples_per_file),
        (DlrmLayout.TEST_NAME, _evaluation_each(config)),
    ):
        if name == DlrmLayout.TEST_NAME and not config.workflow.evaluation:
            parts.append(_FoundFiles([], 1))
            continue
        path = f"{folder.path}/{name}"
        held = folder.size_bytes(path) // DlrmLayout.SAMPLE_BYTES
        parts.append(_FoundFiles([(path,)], min(held, wanted) if wanted > 1 else held))
    return parts[0], parts[1]


def _unet3d(folder: Folder, config: Config) -> tuple[list[Paths], list[Paths]]:
    cases = Unet3dLayout.discover(Path(folder.path)) if folder.exists() else []
    pairs: dict[str, Paths] = {_stem(case): (str(case.image), str(case.mask)) for case in cases}
    train, evaluation = ([_stem(case) for case in part] for part in Unet3dLayout.split(cases))
    given_train, given_evaluation = config.twin.train_files or [], config.twin.eval_files or []
    # If only one of the lists is given, the other part has none of its cases.
    train = given_train or [name for name in train if name not in set(given_evaluation)]
    evaluation = given_evaluation or [name for name in evaluation if name not in set(given_train)]
    return _named(train, pairs, folder), _named(evaluation, pairs, folder)


def _stem(case: Case) -> str:
    return case.image.name.removesuffix("_x.npy")


def _named(names: list[str], pairs: dict[str, Paths], folder: Folder) -> list[Paths]:
    for name in names:
        if name not in pairs:
            raise IotwinError(
                f"{folder.path}/{name}_x.npy: no such case{nearest(name, list(pairs))}; generate the data set again"
            )
    return [pairs[name] for name in names]


def _given(folder: Folder, config: Config) -> tuple[Sequence[Paths], Sequence[Paths]] | None:
    """Return the training and evaluation files that the twin lists. A part without a list has the files of the format.

    None if the twin lists no files.
    """
    twin = config.twin
    if not twin.train_files and not twin.eval_files:
        return None
    found: list[Sequence[Paths]] = [
        [(f"{folder.path}/{name}",) for name in names or []] for names in (twin.train_files, twin.eval_files)
    ]
    if not all(found):
        found = [given or others for given, others in zip(found, _by_format(folder, config), strict=True)]
    return found[0], found[1]


def _by_format(folder: Folder, config: Config) -> tuple[Sequence[Paths], Sequence[Paths]]:
    """Return the files of the format in train/ and valid/. Without these folders, all files are for training."""
    inner = folder.below("train")
    parts: list[Sequence[Paths]] = []
    for part in (inner if inner.exists() else folder, folder.below("valid")):
        named = _by_number(folder, part, config) if part is not folder else None
        parts.append(named or _listed(part, file_format(config)))
    return parts[0], parts[1]


def _by_number(folder: Folder, part: Folder, config: Config) -> NamedFiles | None:
    """Return the files of `part` (train/ or valid/) if they have DLIO's names, which need not be listed."""
    dataset, name = config.dataset, file_format(config)
    if name not in FormatLayout.FORMATS:
        return None
    evaluation = part.path.endswith("/valid")
    folders = dataset.num_subfolders_eval if evaluation else dataset.num_subfolders_train
    first = part.below("0".zfill(len(str(folders)))) if folders > 1 else part
    count = _named_count(
        first, dataset.file_prefix, _suffix(name), dataset.num_files_eval if evaluation else dataset.num_files_train
    )
    if count is None:
        return None
    layout = FormatLayout(
        format=name,
        prefix=dataset.file_prefix,
        train_folders=dataset.num_subfolders_train,
        evaluation_folders=dataset.num_subfolders_eval,
        evaluation_files=count if evaluation else 0,
        compression=dataset.compression if name == "csv" else "none",
    )
    return NamedFiles(folder.path, layout, 0 if evaluation else count, range(count))


def _named_count(folder: Folder, prefix: str, suffix: str, wanted: int | None) -> int | None:
    """Return the N of the files in `folder` that DLIO names PREFIX_I_of_N.SUFFIX: `wanted` if they exist, else a larger N.

    None if no files match. Several data sets, each with another N, may share the folder.
    """
    for number in (r"\d+", *([] if wanted is None else [str(wanted)]))[::-1]:
        pattern = re.compile(rf"{re.escape(prefix)}_\d+_of_({number})\.{suffix}")
        names = folder.names(pattern, first_only=True)
        if names and (match := pattern.fullmatch(names[0])) and int(match[1]) >= (wanted or 0):
            return int(match[1])
    return None


def _suffix(format_name: str) -> str:
    return _SUFFIXES.get(format_name, re.escape(format_name))


def _listed(folder: Folder, format_name: str) -> list[Paths]:
    names = folder.names(re.compile(rf".*\.{_suffix(format_name)}"))
    return [(f"{folder.path}/{name}",) for name in names]


def _first(found: _FoundFiles, count: int | None, folder: Folder, kind: str, key: str) -> _FoundFiles:
    if count is not None and count > len(found.files):
        remedy = "; generate more or lower it" if len(found.files) else "; generate the data set, or correct dataset.format"
        raise IotwinError(f"{folder.path}: has {len(found.files)} {kind} samples, but {key} is {count}{remedy}")
    return found if count is None else found._replace(files=found.files[:count])


def _samples(found: _FoundFiles, folder: Folder, reader: SampleReader, config: Config) -> SampleSet:
    """Return the samples of `found`, with the sum of the files' sizes. The sum is an estimate if there are very many files."""
    probed = _PROBED_REMOTE if isinstance(folder, RemoteFolder) else _PROBED
    count = len(found.files)
    numbers = sorted({index * (count - 1) // max(1, min(count, probed) - 1) for index in range(min(count, probed))})
    sizes = [_size(folder, path) for number in numbers for path in found.files[number]]
    size_bytes = round(math.fsum(sizes) / max(1, len(numbers)) * count)
    return SampleSet(found.files, size_bytes, reader, found.each, _shapes(config))


def start_up(config: Config, rank: int = 0, ranks: int = 1) -> int:
    """Read the files that `rank` reads before its first epoch, and return the bytes read.

    Raises IotwinError, which names the file, if one cannot be read.
    """
    twin, folder = config.twin, Path(config.dataset.data_folder)
    if not twin.startup_reads:
        return 0
    found, saved = found_first(config), Path(config.checkpoint.checkpoint_folder)
    paths = [str(saved / found[name] if name in found else folder / name) for name in twin.startup_files]
    reader = ListedReads(BufferedToEnd, paths, twin.startup_reads)
    readers = twin.startup_ranks or [0] * len(twin.startup_reads)
    own = [index for index, reader_rank in enumerate(readers) if min(reader_rank, ranks - 1) == rank]
    return sum(reader.read(str(number), 0, 1).read_bytes for number in own)


def _listed_samples(samples: SampleSet, listed: list[str] | None, opener: Opener) -> SampleSet:
    """Return the samples whose reads the twin lists in `listed`, or `samples` unchanged if it lists none."""
    if listed is None or not len(samples):
        return samples
    paths = [path for paths in samples.files for path in paths]
    reader = ListedReads(BufferedToEnd if opener is Buffered else opener, paths, listed)
    return SampleSet([(str(index),) for index in range(len(listed))], listed_reads.size_bytes(listed), reader)


def _shapes(config: Config) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that a sample may have. In npy and npz files with one sample, the array may keep the axis of samples."""
    dims = tuple(config.dataset.record_dims)
    return (dims, (*dims, 1)) if dims else ()


def _size(folder: Folder, path: str) -> int:
    size_bytes = folder.size_bytes(path)
    if size_bytes == 0:
        raise IotwinError(f"{path}: is empty (zero bytes); generate the data set again")
    return size_bytes


def _check_enough(config: Config, dataset: SampleSets, folder: Folder, ranks: int) -> None:
    samples, batch = len(dataset.train), config.reader.batch_size
    if config.workflow.train and samples < ranks * batch:
        wanted = f"a batch of {batch}" if ranks == 1 else f"a batch of {batch} on each of {ranks} ranks"
        raise IotwinError(
            f"{folder.path}: has {samples} training samples, fewer than {wanted}; generate more or lower reader.batch_size"
        )
    if config.workflow.evaluation and config.dataset.num_files_eval == 0:
        note("dataset.num_files_eval is 0, so nothing is evaluated")
    elif config.workflow.evaluation and not len(dataset.evaluation):
        raise IotwinError(f"{folder.path}: has no evaluation samples; generate more or set workflow.evaluation to false")


def _compare_sizes(config: Config, dataset: SampleSets) -> None:
    """Print a note if the mean sample size differs from the twin's, because the run then emulates another data set."""
    expected = config.dataset.record_length_bytes
    found = dataset.train.size_bytes / max(1, len(dataset.train))
    if expected and abs(found - expected) > _NOTED_SIZE_DIFFERENCE * expected:
        note(f"the training samples are {format_size(found)} on average, in the workload {format_size(expected)}")
