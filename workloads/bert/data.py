"""Reads TFRecord shards through a tf.data pipeline with the same stages as MLPerf's BERT job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from iotwin.common.files import scratch_folder, write_whole
from iotwin.datagen.layouts import BertLayout
from iotwin.workloads.bert.model import Features

_FILES_AT_ONCE = 8
_SHUFFLED_RECORDS = 1000
_PARSERS = 8
_FEATURES = {
    name: tf.io.FixedLenFeature([length], tf.float32 if kind == "float" else tf.int64)
    for name, kind, length in BertLayout.FEATURES
}
INDEX = "index"
_MOST_RECORDS = 1 << 32  # most records of a shard
_STATE = "pipeline"


def training_batches(
    shards: list[Path],
    batch_size: int,
    rank: int,
    world_size: int,
    seed: int,
    deterministic: bool = False,
    indexed: bool = False,
) -> tf.data.Dataset:
    """Return the endless batches of `rank`, which reads every `world_size`-th shard, eight at once, and shuffles their records.

    A batch maps the names of BertLayout.FEATURES to tensors of shape (batch_size, values). `indexed` adds INDEX, of shape
    (batch_size,): the shard's index times 2**32, plus the record's index in the shard. Unless `deterministic`, the timing of
    threads decides which of the eight shards is read next, as in MLPerf's job.
    """
    files = tf.data.Dataset.from_tensor_slices([str(path) for path in shards]).enumerate().shard(world_size, rank).repeat()
    files = files.shuffle(-(-len(shards) // world_size), seed=seed)
    records = files.interleave(
        _indexed_records if indexed else _records,
        cycle_length=_FILES_AT_ONCE,
        num_parallel_calls=_FILES_AT_ONCE,
        deterministic=deterministic,
    )
    records = records.shuffle(_SHUFFLED_RECORDS, seed=seed)
    return _batches(records.map(_parse_indexed if indexed else _parse, num_parallel_calls=_PARSERS), batch_size)


def evaluation_batches(path: Path, batch_size: int) -> tf.data.Dataset:
    """Return the batches of the evaluation file `path` in the file's order, repeated without end."""
    return parsed_batches(tf.data.TFRecordDataset(str(path)).repeat(), batch_size)


def parsed_batches(records: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Return batches of `records`, parsed as `training_batches` describes."""
    return _batches(records.map(_parse, num_parallel_calls=_PARSERS), batch_size)


def _batches(parsed: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    return parsed.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _records(shard: tf.Tensor, name: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(name)


def _indexed_records(shard: tf.Tensor, name: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(name).enumerate(shard * _MOST_RECORDS)


def _parse(record: tf.Tensor) -> Features:
    parsed: Features = tf.io.parse_single_example(record, _FEATURES)
    return parsed


def _parse_indexed(index: tf.Tensor, record: tf.Tensor) -> Features:
    return _parse(record) | {INDEX: index}


def state_of(batches: Iterator[Features], directory: Path) -> dict[str, Any]:
    """Return the state of a deterministic pipeline, its position and the records read ahead, as file contents by file name.

    TensorFlow can write this state only to files, so a temporary folder is made in `directory`.
    """
    with scratch_folder(directory) as name:
        tf.train.Checkpoint(batches=batches).write(f"{name}/{_STATE}")
        return {path.name: np.fromfile(path, np.uint8) for path in sorted(name.iterdir())}


def restore(batches: Iterator[Features], state: dict[str, Any], directory: Path) -> None:
    """Set a new pipeline to a `state` that `state_of` returned. Both pipelines must be built with the same arguments."""
    with scratch_folder(directory) as name:
        for file, content in state.items():
            write_whole(name / file, content.tobytes(), below=name)
        tf.train.Checkpoint(batches=batches).read(f"{name}/{_STATE}").assert_consumed()
