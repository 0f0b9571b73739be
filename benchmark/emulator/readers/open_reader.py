"""Readers of samples in all formats that datagen writes, by buffered, direct or mapped reads."""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from iotwin.benchmark.emulator.plugins import READERS, load_plugin
from iotwin.benchmark.emulator.readers.access import Buffered, Direct, Mapped, Opener
from iotwin.benchmark.emulator.readers.hdf5 import Hdf5Reader
from iotwin.benchmark.emulator.readers.numpy_files import Npy, Npz, NumpyLoad
from iotwin.benchmark.emulator.readers.records import Image, Indexed, Raw, TfRecord
from iotwin.benchmark.emulator.readers.sample import InMemory, SampleReader, Synthetic
from iotwin.benchmark.emulator.readers.tables import Csv, ParquetReader
from iotwin.benchmark.emulator.readers.whole_files import RecordedReads
from iotwin.workload_yaml import Config, Dataset

_FORMATS: dict[str, Callable[[Opener], SampleReader]] = {
    "npy": lambda opener: NumpyLoad() if opener is Buffered else Npy(opener),
    "npz": Npz,
    "tfrecord": TfRecord,
    "csv": Csv,
    "jpeg": partial(Image, kind="JPEG"),
    "png": partial(Image, kind="PNG"),
    "indexed_binary": Indexed,
    "mmap_indexed_binary": Indexed,
    "bin": Raw,
}
# Formats with options in the section `dataset`.
_CONFIGURED_FORMATS: dict[str, Callable[[Opener, Dataset], SampleReader]] = {
    "hdf5": lambda opener, dataset: Hdf5Reader(opener, dataset.hdf5.num_dset_per_record, dataset.record_dims),
    "parquet": lambda opener, dataset: ParquetReader(
        opener,
        [column.name for column in dataset.parquet.columns if column.read],
        whole_file=dataset.parquet.read_mode == "default",
    ),
}
DEFAULT_RECORD_BYTES = 65536  # DLIO's
# Format of the files of a layout.
_LAYOUT_FORMATS = {"unet3d": "npy", "npy": "npy", "bert": "tfrecord", "dlrm": "bin"}


def file_format(config: Config) -> str:
    """Return the name of the workload's file format."""
    if config.reader.data_loader == "synthetic":
        return "synthetic"
    return _LAYOUT_FORMATS.get(config.twin.layout or "", config.dataset.format)


def past_page_cache(config: Config) -> bool:
    """Return whether the workload reads with O_DIRECT."""
    return config.reader.odirect or config.storage.storage_type == "direct_fs"


def local_opener(config: Config) -> Opener:
    """Return the opener of the workload's files, which maps them, or reads them past or through the page cache."""
    mapped = config.reader.read_type == "mapped" or file_format(config) == "mmap_indexed_binary"
    way = Direct if past_page_cache(config) else Mapped if mapped else Buffered
    transfer_bytes = config.reader.transfer_size
    return way if transfer_bytes is None else cast(Opener, partial(way, transfer_bytes=transfer_bytes))


def open_reader(config: Config, remote: Opener | None) -> tuple[SampleReader, Opener]:
    """Return the reader of the workload's format, and the opener of its files: `remote`, or one of local files."""
    opener = remote or local_opener(config)
    return make_reader(config, opener), opener


def make_reader(config: Config, opener: Opener) -> SampleReader:
    """Return the reader of the workload's format. Raises UsageError, which names the key, if the format has no reader."""
    name = config.reader.reader_classname or file_format(config)
    key = "reader.reader_classname" if config.reader.reader_classname else "dataset.format"
    if name == "synthetic":
        return Synthetic(int(config.dataset.record_length_bytes or DEFAULT_RECORD_BYTES))
    if name == "bin" and config.dataset.record_dims:
        element_bytes = np.dtype(config.dataset.record_element_type).itemsize
        return Raw(opener, math.prod(config.dataset.record_dims) * element_bytes)
    if any(config.twin.reader.read_sizes):
        return RecordedReads(config.twin.reader.read_sizes)
    if name in _FORMATS:
        reader = _FORMATS[name](opener)
    elif name in _CONFIGURED_FORMATS:
        reader = _CONFIGURED_FORMATS[name](opener, config.dataset)
    else:
        reader = load_plugin(READERS, name, key, [*_FORMATS, *_CONFIGURED_FORMATS, "synthetic"])(config=config, opener=opener)
    return InMemory(reader) if config.reader.read_type == "memory" else reader
