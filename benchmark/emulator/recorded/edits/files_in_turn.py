"""A stream that reads several files in turn, as tf.data interleaves shards, shared among the streams of an edited pass."""

from itertools import accumulate

from iotwin.benchmark.emulator.recorded.edits.streams import DealtStream, RecordedStream

_IN_TURN = 1.5  # files that on average are being read at a time; one after another, it is one


def are_in_turn(stream: RecordedStream) -> bool:
    """Return whether the stream reads several files at a time. `stream`: of one recorded loader."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for part in stream.parts:
        if part.size_bytes:
            first.setdefault(part.file, part.at)
            last[part.file] = part.at
    return sum(last[file] - first[file] for file in first) > _IN_TURN * len(stream.samples)


def deal_in_turn(stream: RecordedStream, count: int, factor: float) -> list[DealtStream]:
    """Return `count` streams, of which each reads its files in turn, and `factor` times as many samples.

    File k goes to stream k modulo `count`. A stream's samples are those of the recorded one in proportion to the bytes of its
    files. It reads as many samples ahead of the delivered ones as the recorded stream did at the same call.
    """
    length, whole = len(stream.samples), sum(part.size_bytes for part in stream.parts)
    before = list(accumulate((part.size_bytes * length / whole for part in stream.parts), initial=0.0))
    found = []
    for target in range(count):
        own = [(part, read) for part, read in zip(stream.parts, before, strict=False) if part.file % count == target]
        share = sum(part.size_bytes for part, _ in own) / whole
        once = round(share * length)
        samples = [stream.samples[min(int((index + 0.5) / share), length - 1)] for index in range(once)]
        dealt = DealtStream([], [])
        wanted, read_own = round(once * factor), 0.0
        for copy in range(-(-wanted // max(once, 1))):
            for part, read in own:
                ahead = read - part.at
                at = min(max(round(read_own - ahead), 0), wanted - 1)
                dealt.reads.append((at, part.dealt._replace(copy=copy)))
                read_own += part.size_bytes * length / whole
            dealt.samples.extend(sample._replace(copy=copy) for sample in samples)
        found.append(DealtStream(dealt.samples[:wanted], sorted(dealt.reads, key=lambda each: each[0])))
    return found
