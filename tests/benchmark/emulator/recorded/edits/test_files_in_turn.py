"""Streams that read several files in turn, shared among the streams of an edited pass."""

import pytest

from iotwin.benchmark.emulator.recorded.edits.streams import DealtSample, RecordedStream, StreamPart, are_in_turn, deal_in_turn

FILES, READS, EACH, AHEAD = 4, 10, 5, 30  # a read brings so many samples, and is made so many samples before they are delivered
SAMPLES = FILES * READS * EACH


def interleaved(cycle: int = FILES) -> RecordedStream:
    """A stream that reads `cycle` files in turn, then the next ones."""
    order = [file for first in range(0, FILES, cycle) for _ in range(READS) for file in range(first, first + cycle)]
    parts = [
        StreamPart(max(EACH * number - AHEAD, 0), file, 1000, DealtSample(number, 0, piece=0))
        for number, file in enumerate(order)
    ]
    return RecordedStream([DealtSample(index // 4, index % 4) for index in range(SAMPLES)], parts)


@pytest.mark.parametrize(("cycle", "in_turn"), [(1, False), (2, True), (4, True)])
def test_files_are_in_turn_if_several_are_being_read_at_a_time(cycle, in_turn):
    assert are_in_turn(interleaved(cycle)) is in_turn


def test_one_stream_is_the_recorded_one():
    recorded = interleaved()
    [dealt] = deal_in_turn(recorded, 1, 1.0)
    assert dealt.samples == recorded.samples and dealt.reads == [(part.at, part.dealt) for part in recorded.parts]


@pytest.mark.parametrize("count", [2, 4])
def test_each_stream_has_its_share_and_reads_as_far_ahead(count):
    recorded = interleaved()
    dealt = deal_in_turn(recorded, count, 1.0)
    every = [read for own in dealt for _, read in own.reads]
    assert sorted(every) == sorted(part.dealt for part in recorded.parts)
    for own in dealt:
        assert len(own.samples) == SAMPLES // count
        assert [at for at, _ in own.reads] == [max(EACH * number - AHEAD, 0) for number in range(FILES * READS // count)]
        files = {recorded.parts[read.batch].file for _, read in own.reads}
        assert len(files) == FILES // count


def test_further_samples_follow_on_copies():
    recorded = interleaved()
    [dealt] = deal_in_turn(recorded, 1, 1.5)
    assert len(dealt.samples) == SAMPLES * 3 // 2 and {sample.copy for sample in dealt.samples[SAMPLES:]} == {1}
    again = [at for at, read in dealt.reads if read.copy == 1]
    assert again[: READS * FILES // 2] == [SAMPLES + part.at for part in recorded.parts[: READS * FILES // 2]]


def test_a_stream_without_files_has_no_samples():
    assert [len(own.samples) for own in deal_in_turn(interleaved(), FILES + 1, 1.0)] == [SAMPLES // FILES] * FILES + [0]
