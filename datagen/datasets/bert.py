"""Write bert data sets: tf.Example records of masked token sequences, computed column by column in numpy.

Low token ids are frequent, as frequent words are in text. A share of 0.175 of the sequences fills all 512 positions, as long
articles do; the rest are mostly short. 15 % of the tokens are masked. These shares yield the published mean of 2497 bytes.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.data_set_files import Piece, PieceWriter
from iotwin.datagen.formats.tfrecord import HEAD_BYTES, TAIL_BYTES, fill_frames
from iotwin.datagen.layouts import BertLayout
from iotwin.datagen.random_numbers import NOISE, bulk_stream

_BATCH_RECORDS = 1 << 9  # so few that the arrays fit in a processor's cache
_CLS, _SEP, _MASK = 101, 102, 103  # token ids of the published vocabulary
_FIRST_WORD = 1000
_FULL_SHARE = 0.175
_SHORTEST = 8
_MASKED_SHARE = 0.15

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class RecordColumns(NamedTuple):
    """One part of each record of a batch, as a matrix of bytes in which records are padded to a common width."""

    values: Bytes  # (records, width)
    present: Flags  # (records, width): False for padding
    lengths: NDArray[np.int64]  # (records,): number of bytes that are not padding


def _uniform(stream: np.random.SFC64, records: int, width: int) -> NDArray[np.float32]:
    draws = stream.random_raw(records * width // 2 + 1).view(np.uint32)[: records * width]
    return ((draws >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)).reshape(records, width)


def features(stream: np.random.SFC64, records: int) -> list[NDArray[np.generic]]:
    """Return one array per feature of BertLayout.FEATURES, shape (records, values), for the next `records` records."""
    layout = BertLayout
    shape = _uniform(stream, records, 4)
    longest = layout.SEQUENCE
    lengths = np.where(
        shape[:, 0] < _FULL_SHARE, longest, _SHORTEST + (shape[:, 1] ** 2 * (longest - _SHORTEST)).astype(np.int64)
    )
    second = 2 + (shape[:, 2] * (lengths - 4)).astype(np.int64)  # position at which the second sentence starts
    position = np.arange(longest, dtype=np.int16)
    inside = position < lengths[:, None].astype(np.int16)
    segments = inside & (position >= second[:, None].astype(np.int16))
    tokens = _tokens(stream, inside, second, lengths)
    positions, chosen = _positions(stream, lengths)
    masked_tokens = np.take_along_axis(tokens, positions, axis=1) * chosen
    row, column = np.nonzero(chosen)
    tokens[row, positions[row, column]] = _MASK
    return [tokens, inside, segments, positions, masked_tokens, chosen.astype(np.float32), shape[:, 3:] < 0.5]


def _tokens(stream: np.random.SFC64, inside: Flags, second: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return token ids, shape (records, 512), 0 where the mask `inside` is False. The second sentence starts at `second`."""
    draws = _uniform(stream, *inside.shape)
    tokens = _FIRST_WORD + (draws * draws * draws * np.float32(BertLayout.VOCABULARY - _FIRST_WORD)).astype(np.int64)
    tokens[:, 0] = _CLS
    for separator in (second - 1, lengths - 1):
        tokens[np.arange(len(tokens)), separator] = _SEP
    tokens *= inside
    return tokens


def _positions(stream: np.random.SFC64, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], Flags]:
    """Return (positions of the masked tokens, mask of the positions in use), both of shape (records, 76). Unused ones are 0."""
    count = np.clip(np.rint(lengths * _MASKED_SHARE), 1, BertLayout.PREDICTIONS)
    rank = np.arange(BertLayout.PREDICTIONS)
    chosen = rank < count[:, None]
    # The range between the first and the last token has `count` equal parts; each part gets one position.
    spread = (rank + _uniform(stream, len(lengths), BertLayout.PREDICTIONS)) * ((lengths - 2) / count)[:, None]
    return np.minimum(1 + spread.astype(np.int64), (lengths - 2)[:, None]) * chosen, chosen


@cache
def _varint_table() -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8]]:
    """Return (varints padded to four bytes, masks of the bytes in use, numbers of bytes in use) of all values below 2**16."""
    values = np.arange(1 << 16, dtype=np.uint32)
    digits = values[:, None] >> np.array([0, 7, 14, 21], np.uint32)
    present = np.concatenate([np.ones((len(values), 1), bool), digits[:, 1:] > 0], axis=1)
    content = (digits & 127 | (digits >= 128) * np.uint32(128)).astype(np.uint8)
    return content.view(np.uint32).reshape(-1), present.view(np.uint32).reshape(-1), present.sum(axis=1).astype(np.uint8)


def _varints(values: NDArray[np.int64]) -> RecordColumns:
    content, present, sizes = _varint_table()
    return RecordColumns(
        content.take(values, mode="clip").view(np.uint8),
        present.take(values, mode="clip").view(bool),
        sizes.take(values, mode="clip").sum(axis=1, dtype=np.int64),
    )


def _constant(content: bytes, records: int) -> RecordColumns:
    return _whole(np.tile(np.frombuffer(content, np.uint8), (records, 1)))


def _whole(values: Bytes) -> RecordColumns:
    return RecordColumns(values, np.ones(values.shape, bool), np.full(len(values), values.shape[1]))


def _payload(kind: str, values: NDArray[np.generic]) -> RecordColumns:
    if kind == "float":
        return _whole(values.astype("<f4").view(np.uint8))
    return _whole(values.view(np.uint8)) if values.dtype == bool else _varints(values.astype(np.int64))


def _message(tag: int, body: list[RecordColumns]) -> list[RecordColumns]:
    """Return a length-delimited protobuf field: the byte `tag`, a length, and `body`, which has less than 2**16 bytes."""
    lengths = np.sum([part.lengths for part in body], axis=0)
    return [_constant(bytes([tag]), len(lengths)), _varints(lengths[:, None]), *body]


def records_stream(stream: np.random.SFC64, records: int) -> Bytes:
    """Return the next `records` records of `stream` as TFRecord bytes.

    The message is tensorflow/core/example/{example,feature}.proto: a map from feature name to a list of values.
    """
    parts: list[RecordColumns] = []
    for (name, kind, _), values in zip(BertLayout.FEATURES, features(stream, records), strict=True):
        packed = _message(0x0A, [_payload(kind, values)])  # Int64List.value or FloatList.value
        feature = _message(0x12 if kind == "float" else 0x1A, packed)  # Feature.float_list or Feature.int64_list
        key = _constant(b"\x0a" + bytes([len(name)]) + name.encode(), records)
        parts += _message(0x0A, [key, *_message(0x12, feature)])  # Features.feature, a map entry
    example = _message(0x0A, parts)  # Example.features
    gaps = _constant(bytes(HEAD_BYTES), records), _constant(bytes(TAIL_BYTES), records)
    values = np.concatenate([part.values for part in (gaps[0], *example, gaps[1])], axis=1)
    present = np.concatenate([part.present for part in (gaps[0], *example, gaps[1])], axis=1)
    # compress() is several times faster than a boolean index whose values change often.
    content = values.reshape(-1).compress(present.reshape(-1))
    fill_frames(content, np.sum([part.lengths for part in example], axis=0))
    return content


def write_shard(
    layout: BertLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the file of unit `unit` under a temporary name, and return its piece. The last unit is the evaluation file."""
    stream = bulk_stream(seed, unit, NOISE)
    left = int(layout.shard_samples(samples)[unit])
    with PieceWriter(directory, layout.unit_name(samples, unit), written) as file:
        while left:
            count = min(_BATCH_RECORDS, left)
            file.write(records_stream(stream, count).data)
            left -= count
        return [file.piece()]
