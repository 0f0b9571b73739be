"""The shards as a tf.data pipeline, in the published order of its stages."""

from pathlib import Path

import tensorflow as tf

from datagen.layouts import BertLayout

_FILES_AT_ONCE = 8
_SHUFFLED_RECORDS = 1000
_PARSERS = 8
_FEATURES = {
    name: tf.io.FixedLenFeature([length], tf.float32 if kind == "float" else tf.int64)
    for name, kind, length in BertLayout.FEATURES
}


def training_batches(shards: list[Path], batch_size: int, rank: int, world_size: int, seed: int) -> tf.data.Dataset:
    """Return the endless batches of `rank`: its share of the shards, shuffled, eight read at once, records shuffled, parsed.

    Which of the eight files is read next is left to the threads, as published. A batch maps the names of BertLayout.FEATURES to
    tensors of (batch_size, values).
    """
    names = [str(path) for path in shards]
    files = tf.data.Dataset.from_tensor_slices(names).shard(world_size, rank).repeat()
    files = files.shuffle(-(-len(names) // world_size), seed=seed)
    records = files.interleave(
        tf.data.TFRecordDataset, cycle_length=_FILES_AT_ONCE, num_parallel_calls=_FILES_AT_ONCE, deterministic=False
    )
    records = records.shuffle(_SHUFFLED_RECORDS, seed=seed)
    return _parsed(records, batch_size)


def evaluation_batches(path: Path, batch_size: int) -> tf.data.Dataset:
    """Return the batches of the evaluation file in its order, over and over."""
    return _parsed(tf.data.TFRecordDataset(str(path)).repeat(), batch_size)


def _parsed(records: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    parsed = records.map(lambda record: tf.io.parse_single_example(record, _FEATURES), num_parallel_calls=_PARSERS)
    return parsed.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
