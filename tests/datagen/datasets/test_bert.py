"""bert data sets: every record passes an independent TFRecord and protobuf reader, and means what the layout says."""

import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.datagen.formats.tfrecord import FRAME_BYTES, HEAD_BYTES, TAIL_BYTES, fill_frames, framed
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout

LAYOUT = BertLayout()


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, from the definition in RFC 3720."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def unmask(value: int) -> int:
    value = (value - 0xA282EAD8) & 0xFFFFFFFF
    return (value << 15 | value >> 17) & 0xFFFFFFFF


def tfrecords(content: bytes, check=slow_crc32c):
    at = 0
    while at < len(content):
        (length,), (length_crc,) = struct.unpack_from("<Q", content, at), struct.unpack_from("<I", content, at + 8)
        record = content[at + 12 : at + 12 + length]
        (record_crc,) = struct.unpack_from("<I", content, at + 12 + length)
        assert unmask(length_crc) == slow_crc32c(content[at : at + 8])
        assert unmask(record_crc) == check(record)
        yield record
        at += length + 16


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(message: bytes):
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        assert tag & 7 == 2, "every field of an Example is length-delimited"
        length, at = varint(message, at)
        yield tag >> 3, message[at : at + length]
        at += length


def example(record: bytes) -> dict[str, np.ndarray]:
    ((number, body),) = fields(record)
    assert number == 1
    values = {}
    for _, entry in fields(body):
        parts = dict(fields(entry))
        ((kind, packed),) = fields(parts[2])
        ((_, content),) = fields(packed)
        if kind == 2:
            found = np.frombuffer(content, "<f4")
        else:
            numbers, at = [], 0
            while at < len(content):
                number, at = varint(content, at)
                numbers.append(number)
            found = np.array(numbers)
        values[parts[1].decode()] = found
    return values


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert") / "data"
    generate(LAYOUT, directory, samples=1203, seed=5, workers=1)
    return directory


def test_check_values_of_rfc_3720():
    for data, expected in ((b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        assert slow_crc32c(data) == expected


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5))
def test_frames_of_any_lengths(records):
    lengths = np.array([len(record) for record in records])
    stream = np.frombuffer(b"".join(bytes(HEAD_BYTES) + record + bytes(TAIL_BYTES) for record in records), np.uint8).copy()
    fill_frames(stream, lengths)
    assert list(tfrecords(stream.tobytes())) == records
    assert b"".join(b"".join(framed(len(record), [record[:7], record[7:]])) for record in records) == stream.tobytes()
    assert len(stream) == lengths.sum() + FRAME_BYTES * len(records)


def test_files_have_the_published_names(shards):
    names = sorted(path.name for path in shards.glob("part-*"))
    assert names == [f"part-{index:05d}-of-00500" for index in range(500)]
    assert (shards / "eval_10k").exists()


def test_every_sample_is_there_once(shards):
    counts = [len(list(tfrecords(path.read_bytes()))) for path in sorted(shards.glob("part-*"))[::50]]
    assert set(counts) <= {2, 3}
    assert LAYOUT.shard_samples(1203)[:-1].sum() == 1203
    assert len(list(tfrecords((shards / "eval_10k").read_bytes(), google_crc32c.value))) == 121


def test_records_are_masked_sequences(shards):
    for record in tfrecords((shards / "part-00007-of-00500").read_bytes()):
        values = example(record)
        assert [(name, len(values[name])) for name, _, _ in LAYOUT.FEATURES] == [(n, count) for n, _, count in LAYOUT.FEATURES]
        ids, mask, segments = values["input_ids"], values["input_mask"], values["segment_ids"]
        length, count = int(mask.sum()), int(values["masked_lm_weights"].sum())
        assert (mask[:length] == 1).all() and not ids[length:].any() and not segments[length:].any()
        assert ids[0] == 101 and ids[length - 1] == 102 and ids.max() < LAYOUT.VOCABULARY
        assert count == np.clip(np.rint(0.15 * length), 1, 76)
        positions = values["masked_lm_positions"]
        assert (np.diff(positions[:count]) > 0).all() and not positions[count:].any()
        assert (ids[positions[:count]] == 103).all() and positions[:count].max() < length - 1
        assert (values["masked_lm_ids"][:count] >= 102).all() and not values["masked_lm_ids"][count:].any()
        assert np.diff(segments[:length]).sum() == 1
        assert values["next_sentence_labels"][0] in (0, 1)


def test_mean_record_is_the_published_2497_bytes():
    from iotwin.datagen.datasets.bert import records_stream
    from iotwin.datagen.random_numbers import bulk_stream

    records = 512 * 40
    size_bytes = sum(len(records_stream(bulk_stream(1, index, 1), 512)) for index in range(40))
    assert size_bytes / records == pytest.approx(LAYOUT.RECORD_BYTES, rel=0.005)


def test_tensorflow_reads_every_record(shards, tmp_path):
    """As the real job does: tf.data over the shards, which checks both checksums of every record, and the seven features."""
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    features = {
        name: tf.io.FixedLenFeature([count], tf.float32 if kind == "float" else tf.int64) for name, kind, count in LAYOUT.FEATURES
    }

    def read(*paths):
        records = tf.data.TFRecordDataset([str(path) for path in paths])
        return records.map(lambda record: tf.io.parse_single_example(record, features)).batch(128)

    assert sum(len(batch["input_ids"]) for batch in read(*sorted(shards.glob("part-*")))) == 1203
    (found,) = read(shards / LAYOUT.EVALUATION_NAME)
    expected = [example(record) for record in tfrecords((shards / LAYOUT.EVALUATION_NAME).read_bytes(), google_crc32c.value)]
    for name in features:
        assert (found[name].numpy() == np.array([values[name] for values in expected])).all()
    content = bytearray((shards / "part-00007-of-00500").read_bytes())
    content[1000] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(tf.errors.DataLossError):
        list(read(tmp_path / "damaged"))
