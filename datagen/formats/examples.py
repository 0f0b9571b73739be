"""Write TFRecord files of tf.Examples, with the index files that DALI reads."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.data_set_files import Piece
from iotwin.datagen.formats.file_to_write import File
from iotwin.datagen.formats.tfrecord import FRAME_BYTES, HEAD_BYTES, TAIL_BYTES, fill_frames, framed
from iotwin.datagen.formats.varint import varint

_SHORT_RECORD_BYTES = 1 << 16  # records up to this size are framed in batches


def _bytes_field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + varint(len(body)) + body


def _example_around(record_bytes: int, side: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after a record of `record_bytes` in the tf.Example {image: the record, size: `side`}."""
    sides = _bytes_field(0x1A, _bytes_field(0x0A, varint(side)))  # Feature.int64_list
    size = _bytes_field(0x0A, _bytes_field(0x0A, b"size") + _bytes_field(0x12, sides))
    # The nested messages, from the innermost: BytesList.value, Feature.bytes_list, the map entry, Features, Example.
    value = b"\x0a" + varint(record_bytes)
    feature = b"\x0a" + varint(len(value) + record_bytes) + value
    entry = _bytes_field(0x0A, b"image") + b"\x12" + varint(len(feature) + record_bytes) + feature
    image = b"\x0a" + varint(len(entry) + record_bytes) + entry
    return b"\x0a" + varint(len(image) + record_bytes + len(size)) + image, size


def write_tfrecord(file: File) -> list[Piece]:
    """Write a TFRecord file with a tf.Example per record, and an index file with a line "offset length" per example."""
    before, after = _example_around(file.record_bytes, file.shape[0])
    length = len(before) + file.record_bytes + len(after)
    with file.open(file.name) as sink, file.open(file.indices[0]) as index:
        if length <= _SHORT_RECORD_BYTES:
            for batch in file.batches(file.records):
                sink.write(_framed_examples(before, batch, after).data)
        else:
            for _ in range(file.records):
                for block in framed(length, chain([before], file.one_record(), [after])):
                    sink.write(block)
        stride = length + FRAME_BYTES
        index.write("".join(f"{record * stride} {stride}\n" for record in range(file.records)).encode())
        return [sink.piece(), index.piece()]


def _framed_examples(before: bytes, batch: NDArray[np.uint8], after: bytes) -> NDArray[np.uint8]:
    parts = [np.frombuffer(bytes(HEAD_BYTES) + before, np.uint8), batch, np.frombuffer(after + bytes(TAIL_BYTES), np.uint8)]
    shaped = [np.broadcast_to(part, (len(batch), part.shape[-1])) for part in parts]
    stream = np.concatenate(shaped, axis=1)
    content = stream.reshape(-1)
    fill_frames(content, np.full(len(batch), stream.shape[1] - FRAME_BYTES))
    return content
