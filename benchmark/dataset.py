"""The samples of a workload: which files each one is, and reading one as the real job does."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmark.config import Config
from datagen.layouts import Unet3dLayout
from tracing_tools.trace.errors import IotwinError, nearest
from tracing_tools.trace.progress import note
from tracing_tools.trace.units import format_size

_NOTED_SIZE_DIFFERENCE = 0.1  # of the record length the twin was derived with


class Samples(NamedTuple):
    """Samples by index: the files of each in the order they are read, and their sizes."""

    files: list[tuple[str, ...]]
    size_bytes: list[int]

    def read(self, index: int) -> int:
        """Read the sample as the real job does, each file whole by numpy.load, and return its bytes.

        Raises IotwinError, naming the file, when one cannot be read or is not whole.
        """
        for path in self.files[index]:
            try:
                whole = isinstance(np.load(path, allow_pickle=False), np.ndarray)
            except OSError as error:
                raise IotwinError(f"{path}: cannot be read: {error.strerror or error}") from None
            except Exception as error:  # numpy has no common type for what a damaged header or a short file raises
                reason = " ".join(str(error).split())
                raise IotwinError(f"{path}: not a whole .npy file ({reason}); generate the data set again") from None
            if not whole:
                raise IotwinError(f"{path}: is an archive, not a .npy file; generate the data set again")
        return self.size_bytes[index]


class DataSet(NamedTuple):
    """The training and the evaluation samples; no evaluation samples when the workload does not evaluate."""

    train: Samples
    evaluation: Samples


def open_dataset(config: Config) -> DataSet:
    """Return the data set of the workload, each file seen to exist and to hold something.

    Raises IotwinError, naming file or folder, when a file is missing or empty or there are fewer samples than asked for.
    """
    folder = Path(config.dataset.data_folder)
    if not folder.is_dir():
        raise IotwinError(f"{folder}: no such data folder; generate the data set, or correct dataset.data_folder")
    find = _unet3d if config.twin.layout == "unet3d" else _npy
    train, evaluation = find(folder, config)
    chosen = _first(train, config.dataset.num_files_train, folder, "training", "dataset.num_files_train")
    chosen_evaluation: Sequence[tuple[Path, ...]] = ()
    if config.workflow.evaluation:
        chosen_evaluation = _first(evaluation, config.dataset.num_files_eval, folder, "evaluation", "dataset.num_files_eval")
    dataset = DataSet(_samples(chosen), _samples(chosen_evaluation))
    _check_enough(config, dataset, folder)
    _compare_sizes(config, dataset)
    return dataset


def _unet3d(folder: Path, config: Config) -> tuple[list[tuple[Path, ...]], list[tuple[Path, ...]]]:
    cases = Unet3dLayout.discover(folder)
    pairs: dict[str, tuple[Path, ...]] = {case.image.name.removesuffix("_x.npy"): (case.image, case.mask) for case in cases}
    train, evaluation = ([case.image.name.removesuffix("_x.npy") for case in part] for part in Unet3dLayout.split(cases))
    given_train, given_evaluation = config.twin.train_files or [], config.twin.eval_files or []
    # Where only one of the lists is given, no case serves both.
    train = given_train or [name for name in train if name not in set(given_evaluation)]
    evaluation = given_evaluation or [name for name in evaluation if name not in set(given_train)]
    return _named(train, pairs, folder), _named(evaluation, pairs, folder)


def _npy(folder: Path, config: Config) -> tuple[list[tuple[Path, ...]], list[tuple[Path, ...]]]:
    """One file per sample: the names given, else DLIO's folders train/ and valid/, else training on all there are."""
    twin = config.twin
    train = folder / "train" if (folder / "train").is_dir() else folder
    return (
        [(folder / name,) for name in twin.train_files or ()] or [(path,) for path in sorted(train.glob("*.npy"))],
        [(folder / name,) for name in twin.eval_files or ()] or [(path,) for path in sorted((folder / "valid").glob("*.npy"))],
    )


def _named(names: list[str], pairs: dict[str, tuple[Path, ...]], folder: Path) -> list[tuple[Path, ...]]:
    for name in names:
        if name not in pairs:
            raise IotwinError(f"{folder / name}_x.npy: no such case{nearest(name, list(pairs))}; generate the data set again")
    return [pairs[name] for name in names]


def _first(found: list[tuple[Path, ...]], count: int | None, folder: Path, kind: str, key: str) -> list[tuple[Path, ...]]:
    if count is not None and count > len(found):
        raise IotwinError(f"{folder}: has {len(found)} {kind} samples, but {key} is {count}; generate more or lower it")
    return found[:count]


def _samples(files: Sequence[tuple[Path, ...]]) -> Samples:
    return Samples([tuple(map(str, paths)) for paths in files], [sum(map(_size, paths)) for paths in files])


def _size(path: Path) -> int:
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise IotwinError(f"{path}: {error.strerror}; generate the data set again") from None
    if size_bytes == 0:
        raise IotwinError(f"{path}: is empty (zero bytes); generate the data set again")
    return size_bytes


def _check_enough(config: Config, dataset: DataSet, folder: Path) -> None:
    samples, batch = len(dataset.train.files), config.reader.batch_size
    if samples < batch:
        raise IotwinError(
            f"{folder}: has {samples} training samples, fewer than a batch of {batch}; generate more or lower reader.batch_size"
        )
    if config.workflow.evaluation and not dataset.evaluation.files:
        raise IotwinError(f"{folder}: has no evaluation samples; generate more or set workflow.evaluation to false")


def _compare_sizes(config: Config, dataset: DataSet) -> None:
    """Say so when the data set is unlike the one that the twin was derived from: the run is then a what-if."""
    expected = config.dataset.record_length_bytes
    found = sum(dataset.train.size_bytes) / len(dataset.train.size_bytes)
    if expected and abs(found - expected) > _NOTED_SIZE_DIFFERENCE * expected:
        note(f"the training samples are {format_size(found)} on average, the workload says {format_size(expected)}")
