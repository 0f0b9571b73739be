"""The layout of the Wikipedia data set for pre-training BERT: TFRecord shards."""

from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.layouts.base import PlannedPiece


class BertLayout(msgspec.Struct, frozen=True):
    """Wikipedia for BERT pre-training as TFRecord shards `part-NNNNN-of-NNNNN` of tf.Example records, and `eval_10k`.

    Each record has the seven features FEATURES (name, type, number of values). Token ids are below VOCABULARY. Samples are
    divided evenly among 500 shards, or among as many shards as samples if those are fewer. Record sizes vary with the tokens,
    with a mean of 2497 bytes, as published. So planned sizes are estimates.
    """

    workload: ClassVar[str] = "bert"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = False
    SHARDS: ClassVar[int] = 500
    SEQUENCE: ClassVar[int] = 512
    PREDICTIONS: ClassVar[int] = 76
    VOCABULARY: ClassVar[int] = 30522
    FEATURES: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("input_ids", "int64", 512),
        ("input_mask", "int64", 512),
        ("segment_ids", "int64", 512),
        ("masked_lm_positions", "int64", 76),
        ("masked_lm_ids", "int64", 76),
        ("masked_lm_weights", "float", 76),
        ("next_sentence_labels", "int64", 1),
    )
    RECORD_BYTES: ClassVar[int] = 2497  # mean size
    EVALUATION_NAME: ClassVar[str] = "eval_10k"
    EVALUATION_SAMPLES: ClassVar[int] = 10_000

    def shards(self, samples: int) -> int:
        """Return the number of shards of a data set of `samples` training samples."""
        return min(self.SHARDS, samples)

    def evaluation_samples(self, samples: int) -> int:
        """Return the number of samples in the evaluation file: 10 000, but at most a tenth of the training samples."""
        return min(self.EVALUATION_SAMPLES, -(-samples // 10))

    def shard_samples(self, samples: int) -> NDArray[np.int64]:
        """Return the number of samples of each unit: the shards, then the evaluation file."""
        shards = self.shards(samples)
        share = samples // shards + (np.arange(shards) < samples % shards)
        return np.append(share, self.evaluation_samples(samples)).astype(np.int64)

    def unit_name(self, samples: int, unit: int) -> str:
        """Return the name of the file that unit `unit` writes."""
        shards = self.shards(samples)
        return f"part-{unit:05d}-of-{shards:05d}" if unit < shards else self.EVALUATION_NAME

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the file of unit `unit` with its expected size."""
        return [PlannedPiece(self.unit_name(samples, unit), int(self.shard_samples(samples)[unit]) * self.RECORD_BYTES)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the expected size of each unit in bytes."""
        return self.shard_samples(samples) * self.RECORD_BYTES

    def file_count(self, samples: int) -> int:
        """Return the number of files: the shards and the evaluation file."""
        return self.shards(samples) + 1

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many training samples are expected to fit into `size_bytes` together with the evaluation file."""
        records = size_bytes // self.RECORD_BYTES
        return max(records * 10 // 11, records - self.EVALUATION_SAMPLES)
