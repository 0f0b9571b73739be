"""The ring reader on a ring made by hand in a memory file: wrap, records still being written, discarded records."""

import mmap
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.trace_store.raw.records import EVENT, NAME_FORK, NAME_OPENED, NameRecord, pack_name, read_names
from iotwin.tracing_tools.backends.ring_buffer import RingBuffer

SIZE = 1 << 12
BUSY, DISCARD = 1 << 31, 1 << 30


class FakeRing:
    """A memory file laid out as the kernel maps a BPF ring buffer; the second mapping of the data is a copy kept in step."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * mmap.PAGESIZE + 2 * SIZE)
        self.produced = 0

    def put(self, content: bytes) -> None:
        place = self.produced % SIZE
        first = content[: SIZE - place]  # what does not fit before the end lies at the beginning
        for copy in (0, SIZE):
            os.pwrite(self.fd, first, 2 * mmap.PAGESIZE + place + copy)
            os.pwrite(self.fd, content[len(first) :], 2 * mmap.PAGESIZE + copy)
        self.produced += len(content)
        os.pwrite(self.fd, self.produced.to_bytes(8, "little"), mmap.PAGESIZE)

    def patch_header(self, position: int, header: int) -> None:
        for copy in (0, SIZE):
            os.pwrite(self.fd, header.to_bytes(4, "little"), 2 * mmap.PAGESIZE + position % SIZE + copy)


@pytest.fixture
def ring():
    fake = FakeRing()
    yield fake
    os.close(fake.fd)


def event(number: int, header: int = EVENT.itemsize - 8) -> bytes:
    record = np.zeros(1, EVENT)
    record["header"], record["start_ns"] = header, number
    return record.tobytes()


def test_records_in_order_through_many_wraps(ring):
    reader, got = RingBuffer(ring.fd, SIZE), []
    for number in range(0, 300, 3):  # 300 records of 80 bytes: six times around a ring that 80 does not divide
        for i in range(3):
            ring.put(event(number + i))
        records = reader.fixed_records(EVENT)
        got += records["start_ns"].tolist()
        reader.consume(records.nbytes)
    assert got == list(range(300))
    assert reader.pending_bytes() == 0


def test_a_record_still_being_written_holds_back_what_follows(ring):
    reader = RingBuffer(ring.fd, SIZE)
    ring.put(event(1))
    ring.put(event(2, header=(EVENT.itemsize - 8) | BUSY))
    ring.put(event(3))
    first = reader.fixed_records(EVENT)
    assert first["start_ns"].tolist() == [1]
    reader.consume(first.nbytes)
    assert len(reader.fixed_records(EVENT)) == 0
    ring.patch_header(EVENT.itemsize, EVENT.itemsize - 8)
    assert reader.fixed_records(EVENT)["start_ns"].tolist() == [2, 3]


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from(["sent", "given up"]), max_size=40), max_size=8))
def test_records_that_were_given_up_are_passed_over(bursts):
    """As bpf_ringbuf_discard leaves them: the rest arrives once and in order, and nothing stays behind."""
    fake = FakeRing()
    reader, number, sent, got = RingBuffer(fake.fd, SIZE), 0, [], []
    for burst in bursts:
        for what in burst:
            number += 1
            fake.put(event(number, header=(EVENT.itemsize - 8) | (DISCARD if what == "given up" else 0)))
            sent += [number] if what == "sent" else []
        while len(records := reader.fixed_records(EVENT)):
            got += records["start_ns"].tolist()
            reader.consume(records.nbytes)
        assert reader.pending_bytes() == 0
    assert got == sent
    os.close(fake.fd)


def test_a_name_that_was_given_up_is_passed_over(ring):
    reader = RingBuffer(ring.fd, SIZE)
    for path, header in ((b"/a", 0), (b"/given/up", DISCARD), (b"/b", 0)):
        record = pack_name(NameRecord(5, NAME_OPENED, 1, 2, 0, 0, 3, 4, 5, 0o100644, 6, path))
        ring.put((int.from_bytes(record[:4], "little") | header).to_bytes(4, "little") + record[4:])
    assert [record.text for record in read_names(bytes(reader.variable_records()))] == [b"/a", b"/b"]


def test_variable_records_of_every_length_survive_wrapping(ring):
    reader, got = RingBuffer(ring.fd, SIZE), b""
    sent = [b"/" + b"d" * length for length in range(1, 200, 7)]
    for path in sent:
        ring.put(pack_name(NameRecord(5, NAME_OPENED, 1, 2, 0, 0, 3, 4, 5, 0o100644, 6, path)))
        view = reader.variable_records()
        got += bytes(view)
        reader.consume(len(view))
    assert [record.text for record in read_names(got)] == sent


def test_busy_and_torn_name_records_are_not_taken(ring):
    reader = RingBuffer(ring.fd, SIZE)
    whole = pack_name(NameRecord(5, NAME_FORK, 1, 2, 0, 0, 0, 0, 0, 0, 0, b"python"))
    ring.put(whole)
    ring.put((int.from_bytes(whole[:4], "little") | BUSY).to_bytes(4, "little") + whole[4:])
    view = bytes(reader.variable_records())
    assert view == whole
    assert [record.text for record in read_names(view + whole[:-9])] == [b"python"]


def test_an_empty_ring(ring):
    reader = RingBuffer(ring.fd, SIZE)
    assert len(reader.fixed_records(EVENT)) == len(reader.variable_records()) == 0
