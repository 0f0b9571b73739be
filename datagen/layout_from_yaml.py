"""Convert the section `dataset` of a DLIO workload YAML to a layout, so that DLIO's configurations generate unchanged."""

from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.common.numbers.element_types import element_type
from iotwin.common.progress import note
from iotwin.datagen.layouts import FormatLayout
from iotwin.workload_yaml.dataset import DEFAULT_FILES_TRAIN, DEFAULT_RECORD_BYTES, OTHER_NAMES, Dataset, Section, known_columns
from iotwin.workload_yaml.keys_and_types import convert_section
from iotwin.workload_yaml.yaml12 import parse, read_text


class _Workload(Section):
    dataset: Dataset


def read_config(path: Path) -> tuple[FormatLayout, int]:
    """Return the layout and the number of training samples that the YAML at `path` specifies.

    Raises UsageError if the file cannot be read, a key is unknown or a value is wrong.
    """
    document = parse(read_text(path), str(path))
    given = document.get("dataset") if isinstance(document, dict) else None
    if not isinstance(given, dict):
        raise UsageError(f"{path} has no section 'dataset'; write for example dataset: {{format: npz, num_files_train: 8}}")
    section = {OTHER_NAMES.get(str(key), key): value for key, value in given.items()}
    if isinstance(parquet := section.get("parquet"), dict) and isinstance(columns := parquet.get("columns"), list):
        section["parquet"] = {**parquet, "columns": known_columns(columns)}
    dataset = convert_section({"dataset": section}, _Workload, lambda _: str(path)).dataset
    return layout_of(dataset), train_files(dataset) * dataset.num_samples_per_file


def train_files(dataset: Dataset) -> int:
    """Return the number of training files that `dataset` specifies, DLIO's default if it specifies none."""
    return DEFAULT_FILES_TRAIN if dataset.num_files_train is None else dataset.num_files_train


def layout_of(dataset: Dataset) -> FormatLayout:
    """Return the layout that the section `dataset` describes. Raises UsageError if no writer supports it."""
    if dataset.num_files_eval and dataset.eval_num_samples_per_file not in (None, dataset.num_samples_per_file):
        raise UsageError("dataset.eval_num_samples_per_file: generated files all have num_samples_per_file samples; leave it out")
    chunk_dims = tuple(dataset.hdf5.chunk_dims)
    columns = tuple((column.name, column.dtype, column.size) for column in dataset.parquet.columns)
    has_columns = dataset.format == "parquet" and bool(columns)  # columns determine the length of a record
    if dataset.format in FormatLayout.IMAGES and dataset.record_element_type != "uint8":
        note(f"{dataset.format} images are of uint8; dataset.record_element_type {dataset.record_element_type} has no effect")
    row_bytes = sum(size * _element_bytes(name, dtype) for name, dtype, size in columns) if has_columns else 0
    if dataset.enable_chunking and dataset.chunk_size and not chunk_dims:
        side = max(1, round(dataset.chunk_size**0.5))
        chunk_dims = (side, side)
    record_bytes = DEFAULT_RECORD_BYTES if dataset.record_length_bytes is None else dataset.record_length_bytes
    return FormatLayout(
        format=dataset.format,
        samples_per_file=dataset.num_samples_per_file,
        record_bytes=row_bytes or round(record_bytes),
        record_stdev_bytes=0 if has_columns else round(dataset.record_length_bytes_stdev or 0),
        distribution=dataset.record_length_distribution,
        histogram=tuple(dataset.record_length_histogram),
        record_dims=(row_bytes,) if has_columns else tuple(dataset.record_dims),
        dtype="uint8" if has_columns or dataset.format in FormatLayout.IMAGES else dataset.record_element_type,
        train_folders=dataset.num_subfolders_train,
        evaluation_folders=dataset.num_subfolders_eval,
        evaluation_files=dataset.num_files_eval or 0,
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
    element = element_type(dtype)
    if element is None or element.kind not in "biufc":
        raise UsageError(f"dataset.parquet.columns: '{name}' has the type '{dtype}'; give a numpy type such as float32 or int64")
    return element.itemsize
