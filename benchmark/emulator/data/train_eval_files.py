"""Find the files of a data set, in a local folder or in an object store."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, overload

from iotwin.benchmark.emulator.readers.object_stores import RemoteFolder, RemoteOpener, remote_opener
from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.datagen.layouts import BertLayout, Case, DlrmLayout, FormatLayout, Unet3dLayout
from iotwin.workload_yaml import Config, Dataset, Twin

Paths = tuple[str, ...]  # the files of a sample, or of a run of samples, in the order in which they are read

_PROBED = 4096  # most files whose sizes are checked before the first epoch
_PROBED_REMOTE = 16  # most files whose sizes are checked in an object store, where each file costs a request
_BERT_SHARD = re.compile(r"part-\d+-of-\d+")
_SUFFIXES = {"jpeg": "jpe?g", "csv": r"csv(\.(gz|bz2|xz))?", "hdf5": "(hdf5|h5)", "tfrecord": "tfrecords?"}
_PROTOCOLS = {"s3": "s3", "s3dlio": "s3"}


class Folder(Protocol):
    """Interface of a folder with a data set's files."""

    path: str
    options: Mapping[str, object]  # fsspec's options for the file system of the folder

    def exists(self) -> bool:
        """Return whether the folder exists."""

    def below(self, name: str) -> "Folder":
        """Return the folder `name` in this folder."""

    def names(self, pattern: re.Pattern[str], first_only: bool = False) -> list[str]:
        """Return the sorted names of the files in this folder that match `pattern` as a whole.

        `first_only`: return at most one, the first one that the file system lists.
        """

    def size_bytes(self, path: str) -> int:
        """Return the size of the file `path` in bytes. Raises IotwinError, which names the file, if it does not exist."""


class _LocalFolder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.options: Mapping[str, object] = {}

    def exists(self) -> bool:
        return Path(self.path).is_dir()

    def below(self, name: str) -> "_LocalFolder":
        return _LocalFolder(f"{self.path}/{name}")

    def names(self, pattern: re.Pattern[str], first_only: bool = False) -> list[str]:
        found = []
        if self.exists():
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if pattern.fullmatch(entry.name) and entry.is_file():
                        found.append(entry.name)
                        if first_only:
                            break
        return sorted(found)

    def size_bytes(self, path: str) -> int:
        try:
            return Path(path).stat().st_size
        except OSError as error:
            raise IotwinError(f"{path}: {error.strerror}; generate the data set again") from None


def open_folder(config: Config) -> tuple[Folder, RemoteOpener | None]:
    """Return the workload's data folder, and the opener of its files if it is remote.

    Raises UsageError if the storage is not supported.
    """
    storage, folder = config.storage, config.dataset.data_folder
    folder = folder.rstrip("/") or folder[:1]  # '' stands for storage_root itself, as in DLIO
    protocol, separator, _ = folder.partition("://")
    kind = storage.storage_type
    if not separator and kind in ("local_fs", "parallel_fs", "direct_fs"):
        path = str(Path(storage.storage_root) / folder) if storage.storage_root not in ("", "./", ".") else folder or "."
        return _LocalFolder(path), None
    if not separator:
        if kind not in _PROTOCOLS:
            raise UsageError(f"storage.storage_type: '{kind}' is not supported; use local_fs or s3, or a URL in data_folder")
        protocol = _PROTOCOLS[kind]
        root = storage.storage_root.removeprefix(f"{protocol}://").strip("/.")
        folder = f"{protocol}://{'/'.join(filter(None, (root, folder.strip('/'))))}"
    opener = remote_opener(config.storage, protocol, config.reader.transfer_size)
    return RemoteFolder(folder, opener), opener


class NamedFiles(Sequence[Paths]):
    """The files `indices` of a layout with `samples` samples. Names follow from indices, so a million files take no memory."""

    def __init__(self, folder: str, layout: FormatLayout, samples: int, indices: range) -> None:
        self._folder, self._layout, self._samples, self._indices = folder, layout, samples, indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, number: int) -> Paths: ...

    @overload
    def __getitem__(self, number: slice) -> "NamedFiles": ...

    def __getitem__(self, number: int | slice) -> "Paths | NamedFiles":
        """Return the paths of the file at index `number`, or the files of a slice."""
        if isinstance(number, slice):
            return NamedFiles(self._folder, self._layout, self._samples, self._indices[number])
        return (f"{self._folder}/{self._layout.file_name(self._samples, self._indices[number])}",)


class FoundFiles(NamedTuple):
    """The files of one part of a data set, training or evaluation."""

    files: Sequence[Paths]
    each: int  # samples in each file
    size_bytes: int = 0  # total of all files; an estimate if only some files were inspected


class FoundDataSet(NamedTuple):
    """The files of a data set, and how to open them."""

    train: FoundFiles
    evaluation: FoundFiles
    layout: str | None  # layout of the files; None: unknown
    folder: str
    remote: RemoteOpener | None  # opener of the files; None if they are local


def find_files(config: Config, format_name: str) -> FoundDataSet:
    """Return the workload's files, which have the format `format_name`. Without evaluation, there are none for evaluation.

    Raises IotwinError, which names the file or the folder, if a file is missing or empty, or there are fewer than specified.
    """
    folder, remote = open_folder(config)
    dataset, twin, evaluates = config.dataset, config.twin, config.workflow.evaluation
    if not folder.exists():
        raise IotwinError(f"{folder.path}: no such data folder; generate the data set, or correct dataset.data_folder")
    nothing = FoundFiles([], 1)
    layout = twin.layout or _recognised(folder, dataset.format)
    each, evaluation_each = dataset.num_samples_per_file, dataset.eval_num_samples_per_file or dataset.num_samples_per_file
    if layout == "dlrm":
        train = _one_big_file(folder, DlrmLayout.TRAIN_NAME, each)
        evaluation = _one_big_file(folder, DlrmLayout.TEST_NAME, evaluation_each) if evaluates else nothing
    else:
        files, evaluation_files = _of_layout(folder, dataset, twin, format_name, layout)
        # A pair of an image and a mask of U-Net3D is one sample.
        train = FoundFiles(files, 1 if layout == "unet3d" else each)
        evaluation = FoundFiles(evaluation_files, 1 if layout == "unet3d" else evaluation_each)
    train = _first(train, dataset.num_files_train, folder, "training", "dataset.num_files_train")
    if evaluates:
        evaluation = _first(evaluation, dataset.num_files_eval, folder, "evaluation", "dataset.num_files_eval")
    parts = _measured(train, folder), _measured(evaluation if evaluates else nothing, folder)
    return FoundDataSet(*parts, layout, folder.path, remote)


def _of_layout(
    folder: Folder, dataset: Dataset, twin: Twin, format_name: str, layout: str | None
) -> tuple[Sequence[Paths], Sequence[Paths]]:
    if layout == "unet3d":
        return _unet3d(folder, twin.train_files or [], twin.eval_files or [])
    if layout == "bert":
        evaluation_file = [(f"{folder.path}/{BertLayout.EVALUATION_NAME}",)]
        return [(f"{folder.path}/{name}",) for name in folder.names(_BERT_SHARD)], evaluation_file
    given = [[(f"{folder.path}/{name}",) for name in names or []] for names in (twin.train_files, twin.eval_files)]
    if all(given):
        return given[0], given[1]
    # A part that the twin does not list has the files of the format.
    files, evaluation_files = _by_format(folder, dataset, format_name)
    return given[0] or files, given[1] or evaluation_files


def _recognised(folder: Folder, format_name: str) -> str | None:
    """Return the layout of the files if their format and a name reveal it, else None."""
    if format_name == "bin" and folder.names(re.compile(re.escape(DlrmLayout.TRAIN_NAME))):
        return "dlrm"
    if format_name == "tfrecord" and folder.names(_BERT_SHARD, first_only=True):
        return "bert"
    return None


def _one_big_file(folder: Folder, name: str, wanted: int) -> FoundFiles:
    """Return the file `name` of DLRM's layout with the samples that it holds, or with `wanted` samples if these are fewer."""
    path = f"{folder.path}/{name}"
    held = folder.size_bytes(path) // DlrmLayout.SAMPLE_BYTES
    return FoundFiles([(path,)], min(held, wanted) if wanted > 1 else held)


def _unet3d(folder: Folder, given_train: list[str], given_evaluation: list[str]) -> tuple[list[Paths], list[Paths]]:
    cases = Unet3dLayout.discover(Path(folder.path))
    pairs: dict[str, Paths] = {_stem(case): (str(case.image), str(case.mask)) for case in cases}
    train, evaluation = ([_stem(case) for case in part] for part in Unet3dLayout.split(cases))
    # If the YAML lists the cases of one part only, the other part has its usual cases without the listed ones.
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


def _by_format(folder: Folder, dataset: Dataset, format_name: str) -> tuple[Sequence[Paths], Sequence[Paths]]:
    """Return the files of the format in train/ and valid/. Without these folders, all files are for training."""
    inner = folder.below("train")
    parts: list[Sequence[Paths]] = []
    for part in (inner if inner.exists() else folder, folder.below("valid")):
        named = _by_number(folder, part, dataset, format_name) if part is not folder else None
        parts.append(named or _listed(part, format_name))
    return parts[0], parts[1]


def _by_number(folder: Folder, part: Folder, dataset: Dataset, format_name: str) -> NamedFiles | None:
    """Return the files of `part` (train/ or valid/) if they have DLIO's names, which need not be listed."""
    if format_name not in FormatLayout.FORMATS:
        return None
    evaluation = part.path.endswith("/valid")
    folders = dataset.num_subfolders_eval if evaluation else dataset.num_subfolders_train
    first = part.below("0".zfill(len(str(folders)))) if folders > 1 else part
    wanted = dataset.num_files_eval if evaluation else dataset.num_files_train
    count = _named_count(first, dataset.file_prefix, _suffix(format_name), wanted)
    if count is None:
        return None
    layout = FormatLayout(
        format=format_name,
        prefix=dataset.file_prefix,
        train_folders=dataset.num_subfolders_train,
        evaluation_folders=dataset.num_subfolders_eval,
        evaluation_files=count if evaluation else 0,
        compression=dataset.compression if format_name == "csv" else "none",
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


def _first(found: FoundFiles, count: int | None, folder: Folder, kind: str, key: str) -> FoundFiles:
    if count is not None and count > len(found.files):
        remedy = "; generate more or lower it" if len(found.files) else "; generate the data set, or correct dataset.format"
        raise IotwinError(f"{folder.path}: has {len(found.files)} {kind} samples, but {key} is {count}{remedy}")
    return found if count is None else found._replace(files=found.files[:count])


def _measured(found: FoundFiles, folder: Folder) -> FoundFiles:
    """Return `found` with the sum of the files' sizes. The sum is an estimate if there are very many files."""
    probed = _PROBED_REMOTE if isinstance(folder, RemoteFolder) else _PROBED
    count = len(found.files)
    numbers = sorted({index * (count - 1) // max(1, min(count, probed) - 1) for index in range(min(count, probed))})
    sizes = [_size(folder, path) for number in numbers for path in found.files[number]]
    return found._replace(size_bytes=round(math.fsum(sizes) / max(1, len(numbers)) * count))


def _size(folder: Folder, path: str) -> int:
    size_bytes = folder.size_bytes(path)
    if size_bytes == 0:
        raise IotwinError(f"{path}: is empty (zero bytes); generate the data set again")
    return size_bytes
