"""Read a DLIO workload YAML's `dataset` section as a layout, so that configurations made for DLIO generate as they are."""

from pathlib import Path

import msgspec
import numpy as np

from datagen.layouts import FormatLayout
from tracing_tools.trace.errors import UsageError, nearest


class Hdf5Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `dataset.hdf5`."""

    chunk_dims: list[int] = []
    num_dset_per_record: int = 1
    max_shape: list[int] = []


class ColumnSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a column of `dataset.parquet.columns`."""

    name: str
    dtype: str = "float32"
    size: int = 1
    read: bool = True  # by the emulator


class ParquetSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `dataset.parquet`; those of reading and of memory change nothing here."""

    columns: list[ColumnSection] = []
    row_group_size: int | None = None
    read_mode: str = "default"
    generation_batch_size: int | None = None


class DatasetSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `dataset`, with DLIO's names and defaults, and below them our own."""

    format: str = "tfrecord"
    num_files_train: int = 8
    num_files_eval: int = 0
    num_samples_per_file: int = 1
    record_length_bytes: int | float = 65536
    record_length_bytes_stdev: int | float = 0
    record_length_bytes_resize: int | float = 0  # of what the loader returns, not of what is stored
    record_dims: list[int] = []
    record_element_type: str = "uint8"
    num_subfolders_train: int = 0
    num_subfolders_eval: int = 0
    file_prefix: str = "img"
    compression: str = "none"
    compression_level: int = 4
    enable_chunking: bool = False
    chunk_size: int = 0
    hdf5: Hdf5Section = Hdf5Section()
    parquet: ParquetSection = ParquetSection()
    data_folder: str = ""  # the command line says where to write
    keep_files: bool = True
    generation_buffer_size: int | float = 0
    # ours
    record_length_distribution: str = "normal"
    record_length_histogram: list[tuple[int, float]] = []
    entropy: float = 1.0
    dedup: float = 0.0


def read_config(path: Path) -> tuple[FormatLayout, int]:
    """Return the layout and the number of training samples that the YAML at `path` asks for.

    Raises UsageError for a file that cannot be read, an unknown key (naming the nearest known one) or a wrong value.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    section = document.get("dataset") if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise UsageError(f"{path} has no section 'dataset'; write for example dataset: {{format: npz, num_files_train: 8}}")
    known = list(DatasetSection.__struct_fields__)
    for key in section:
        if key not in known:
            raise UsageError(f"{path}: unknown key dataset.{key}{nearest(str(key), known)}")
    try:
        dataset = msgspec.convert(section, DatasetSection)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: dataset: {error}") from None
    return layout_of(dataset), dataset.num_files_train * dataset.num_samples_per_file


def layout_of(dataset: DatasetSection) -> FormatLayout:
    """Return the layout that the section describes; UsageError for one that no writer can write."""
    chunk_dims = tuple(dataset.hdf5.chunk_dims)
    columns = tuple((column.name, column.dtype, column.size) for column in dataset.parquet.columns)
    has_columns = dataset.format == "parquet" and bool(columns)  # which then say how long a record is
    row_bytes = sum(size * _element_bytes(name, dtype) for name, dtype, size in columns) if has_columns else 0
    if dataset.enable_chunking and dataset.chunk_size and not chunk_dims:
        side = max(1, round(dataset.chunk_size**0.5))
        chunk_dims = (side, side)
    return FormatLayout(
        format=dataset.format,
        samples_per_file=dataset.num_samples_per_file,
        record_bytes=row_bytes or round(dataset.record_length_bytes),
        record_stdev_bytes=0 if has_columns else round(dataset.record_length_bytes_stdev),
        distribution=dataset.record_length_distribution,
        histogram=tuple(dataset.record_length_histogram),
        record_dims=(row_bytes,) if has_columns else tuple(dataset.record_dims),
        dtype="uint8" if has_columns else dataset.record_element_type,
        train_folders=dataset.num_subfolders_train,
        evaluation_folders=dataset.num_subfolders_eval,
        evaluation_files=dataset.num_files_eval,
        prefix=dataset.file_prefix,
        compression=dataset.compression,
        compression_level=dataset.compression_level,
        chunk_dims=chunk_dims,
        max_shape=tuple(dataset.hdf5.max_shape),
        datasets=dataset.hdf5.num_dset_per_record,
        columns=columns if has_columns else (),
        row_group_rows=(dataset.parquet.row_group_size or 0) if dataset.format == "parquet" else 0,
        entropy=dataset.entropy,
        dedup=dataset.dedup,
    )


def _element_bytes(name: str, dtype: str) -> int:
    try:
        element = np.dtype(dtype)
    except TypeError:
        element = np.dtype(object)
    if element.kind not in "biufc":
        raise UsageError(f"dataset.parquet.columns: '{name}' has the type '{dtype}'; give a numpy type such as float32 or int64")
    return element.itemsize
