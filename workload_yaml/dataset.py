"""The section `dataset` of a workload YAML: DLIO's keys with DLIO's defaults, and a few keys of iotwin."""

from typing import Annotated, Any, Literal

import msgspec

from iotwin.common.numbers.durations import Seconds

# The upper bound catches typing errors.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
OrNone = Annotated[int, msgspec.Meta(ge=-1, le=1 << 40)]  # -1: none, as in DLIO
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
# A number of bytes, possibly not whole: DLIO has means such as 114660.07.
Size = Annotated[int, msgspec.Meta(ge=0, le=10**18)] | Annotated[float, msgspec.Meta(ge=0, le=1e18)]

DEFAULT_FILES_TRAIN = 8  # DLIO's default
DEFAULT_RECORD_BYTES = 65536
# Keys that have another name in DLIO than in the schema.
OTHER_NAMES = {
    "record_length": "record_length_bytes",
    "record_length_stdev": "record_length_bytes_stdev",
    "record_length_resize": "record_length_bytes_resize",
}


class Section(msgspec.Struct, forbid_unknown_fields=True):
    """Base class of the YAML's sections, which reject unknown keys."""


class Hdf5(Section):
    """Settings that apply only to hdf5 files."""

    chunk_dims: list[Positive] = []
    num_dset_per_record: Positive = 1
    max_shape: list[Positive] = []


class ParquetColumn(Section):
    """A column of parquet files."""

    name: str
    dtype: str = "float32"
    size: Positive = 1  # number of elements in each row
    read: bool = True


class Parquet(Section):
    """Settings that apply only to parquet files."""

    columns: list[ParquetColumn] = []
    row_group_size: Positive | None = None  # in rows
    read_mode: Literal["default", "row_group"] = "default"
    generation_batch_size: Positive | None = None  # of no effect


class Dataset(Section):
    """The files of the data set, and how `iotwin generate` generates them."""

    data_folder: str = "./data/"
    format: str = "tfrecord"  # one of FormatLayout.FORMATS, `synthetic` for no files at all, or the name of a plug-in reader
    num_files_train: Count | None = None  # None: all existing files; for unet3d, a pair of files counts as one file
    num_files_eval: Count | None = None
    num_samples_per_file: Positive = 1
    eval_num_samples_per_file: Positive | None = None  # None: as many as in a training file
    record_length_bytes: Size | None = None  # mean size of a sample (of a file or of a pair); None: DLIO's 65536
    record_length_bytes_stdev: Size | None = None
    record_length_bytes_resize: Size | None = None  # size of a sample as the loader delivers it; None: its stored size
    record_dims: list[Positive] = []  # shape of each record; if given, it determines the record's length
    record_element_type: str = "uint8"
    num_subfolders_train: Count = 0
    num_subfolders_eval: Count = 0
    file_prefix: str = "img"
    compression: str = "none"
    compression_level: Count = 4
    interleave: bool = False  # read samples from several files in turn, as tf.data's interleave does
    hdf5: Hdf5 = msgspec.field(default_factory=Hdf5)
    parquet: Parquet = msgspec.field(default_factory=Parquet)
    enable_chunking: bool = False
    chunk_size: Count = 0
    keep_files: bool = True  # False: at its end, the run removes the files that it generated
    generation_buffer_size: Size = 2 << 30  # of no effect: generation needs no buffer of this size
    # Keys of MLCommons' fork of DLIO, of no effect: iotwin lists no files, and a generated file appears only when it is complete.
    data_gen_method: str | None = None
    write_threads: Positive | None = None
    skip_listing: bool = False
    listing_validation_interval: Count = 0
    post_generation_settle_seconds: Seconds = 0.0
    # Keys that DLIO does not have; they describe the generated files.
    record_length_distribution: Literal["normal", "lognormal"] = "normal"
    record_length_histogram: list[tuple[int, float]] = []
    entropy: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    dedup: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


def known_columns(columns: list[Any]) -> list[Any]:
    """Return parquet's `columns` as mappings, since DLIO also accepts the name of a column in place of its mapping."""
    return [{"name": column} if isinstance(column, str) else column for column in columns]
