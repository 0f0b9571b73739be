"""Streams dealt anew by file: which loader reads which file, and how far ahead of the samples that it delivers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.recorded.edits.dealing import RecordedPassSamples, deal
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.emulator.recorded.edits.streams import DealtSample, RecordedStream, StreamPart, deal_streams
from iotwin.benchmark.emulator.recorded.edits.think_clock import Stretch
from iotwin.common.errors import UsageError


def naive_reads(files: list[int], each: int, ahead: int) -> list[tuple[int, tuple[int, int]]]:
    """The reads (file, index) of a loader that keeps `ahead` samples in a buffer, with the sample that it delivers then."""
    order = [(file, index) for file in files for index in range(each)]
    return [(max(at - ahead, 0), read) for at, read in enumerate(order)]


def recorded_stream(files: list[int], each: int, ahead: int) -> RecordedStream:
    samples = [DealtSample(files[0], index) for index in range(len(files) * each)]
    reads = naive_reads(files, each, ahead)
    return RecordedStream(samples, [StreamPart(at, files.index(read[0]), 100, DealtSample(*read)) for at, read in reads])


@given(
    turns=st.integers(1, 6), each=st.integers(2, 40), ahead=st.integers(0, 30), loaders=st.integers(1, 2), count=st.integers(1, 6)
)
def test_more_loaders_read_their_files_as_far_ahead(turns: int, each: int, ahead: int, loaders: int, count: int):
    ahead, count = min(ahead, each - 1), max(count, loaders)
    recorded = [recorded_stream([turn * loaders + slot for turn in range(turns)], each, ahead) for slot in range(loaders)]
    for number, stream in enumerate(deal_streams(recorded, count, 1.0)):
        files = list(range(number, turns * loaders, count))
        assert [(at, (read.batch, read.part)) for at, read in stream.reads] == naive_reads(files, each, ahead)
        assert len(stream.samples) == len(files) * each


def test_one_loader_reads_the_files_of_two_in_turn():
    [stream] = deal_streams([recorded_stream([0, 2], 10, 0), recorded_stream([1, 3], 10, 0)], 1, 1.0)
    assert [(at, (read.batch, read.part)) for at, read in stream.reads] == naive_reads([0, 1, 2, 3], 10, 0)


def test_more_samples_are_read_from_copies():
    [stream] = deal_streams([recorded_stream([0, 1], 4, 0)], 1, 1.5)
    assert [sample.copy for sample in stream.samples] == [0] * 8 + [1] * 4
    reads = [read for _, own in stream.batches(4) for read in own]
    assert [(read.batch, read.copy) for read in reads] == [(0, 0)] * 4 + [(1, 0)] * 4 + [(0, 1)] * 4


def test_ranks_without_a_file_are_refused():
    streams = [recorded_stream([0], 4, 0)]
    recorded = RecordedPassSamples(np.zeros(1, np.int64), np.array([4]), streams, shuffled=False, known=True)
    with pytest.raises(UsageError, match="too few for 2 ranks"):
        deal(recorded, Edits(ranks=2), training=True, size=4, loaders=1, rank=0, again=0)


def test_calls_of_a_stretch_are_parted_by_their_file():
    """A loader opens a file, then closes the one before. Its other thread reads the new one."""
    files = np.array([7, -1, 4, -1, 7])
    rows = np.arange(4)
    other = (1, np.array([4]), np.array([60]))
    stretch = Stretch(rows, np.array([15, 20, 30, 40]), 10, 55, 0, 100, [other])
    (first, opened), (second, closed) = stretch.by_file(files.__getitem__)
    assert (first, second) == (7, 4)
    assert (opened.rows.tolist(), closed.rows.tolist()) == ([0, 1], [2, 3])
    assert (opened.begin, opened.end, closed.begin, closed.end) == (10, 20, 20, 55)
    assert [part[1].tolist() for part in opened.others] == [[4]] and not closed.others
    assert stretch.by_file(np.full(5, -1).__getitem__) == [(-1, stretch)]
