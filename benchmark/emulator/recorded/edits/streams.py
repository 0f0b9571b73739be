"""Streams: loaders that read files continuously, ahead of their batches. Each file of a stream goes to a loader of the edited
pass.

The calls on a file keep their distance, in samples, to the other calls on the file and to the samples that the loader delivers.
So a loader that filled a buffer of 40 samples before its first batch does so again, whichever files it reads.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

_IN_TURN = 1.5  # files count as read in turn from this mean number of concurrently read files on; 1: one file after another
_ALIKE = 0.05  # files have equally many samples if their numbers differ from the average by less than this share


class DealtSample(NamedTuple):
    """A sample, or a part of a batch whose samples are unknown."""

    batch: int  # index of the recorded batch that it belongs to
    part: int  # index of the part within that batch
    copy: int = 0  # 0: the sample is read from the recorded files; else from the copies with this number
    piece: int | None = None  # index of the calls on one file, among those of the part; None: all calls of the part


class StreamPart(NamedTuple):
    """Consecutive calls of a loader on one file.

    `at`: index of the stream's sample for which the calls are. `file`: rank of the file in the order in which the stream reads
    its files. `size_bytes`: bytes read.
    """

    at: int
    file: int
    size_bytes: int
    dealt: DealtSample


class RecordedStream(NamedTuple):
    """The samples that a recorded loader delivered in a pass, and what it did for them, in order."""

    samples: list[DealtSample]
    parts: list[StreamPart]


class DealtStream(NamedTuple):
    """The samples that an edited loader delivers. `reads`: pairs of a sample's index and what is read for it."""

    samples: list[DealtSample]
    reads: list[tuple[int, DealtSample]]

    def batches(self, size: int) -> list[tuple[list[DealtSample], list[DealtSample]]]:
        """Return the samples and the reads of each batch of `size` samples."""
        reads: list[list[DealtSample]] = [[] for _ in range(-(-len(self.samples) // size))]
        for at, dealt in self.reads:
            if at < len(self.samples):
                reads[at // size].append(dealt)
        return [(self.samples[size * index : size * (index + 1)], own) for index, own in enumerate(reads)]


def deal_streams(recorded: Sequence[RecordedStream], count: int, factor: float) -> list[DealtStream]:
    """Return `count` streams with the files of the recorded streams, and `factor` times as many samples.

    File k goes to stream k modulo `count`, as loaders share a list of files. Samples beyond the recorded ones are read from
    copies of the files.
    """
    parted = [_Files(stream) for stream in recorded]
    every = sorted((turn * len(recorded) + slot, slot, turn) for slot, own in enumerate(parted) for turn in range(own.count))
    found = []
    for target in range(count):
        own = [(parted[slot], turn) for index, slot, turn in every if index % count == target]
        once = sum(files.length(turn) for files, turn in own)
        dealt = DealtStream([], [])
        for copy in range(-(-round(once * factor) // max(once, 1))):
            for files, turn in own:
                files.put(turn, copy, dealt)
        last = len(dealt.samples) - 1
        reads = sorted(((min(at, last), read) for at, read in dealt.reads), key=lambda each: each[0])
        found.append(DealtStream(dealt.samples[: round(once * factor)], reads))
    return found


class _Files:
    """The files of a recorded stream: the samples of each file, and the calls on it."""

    def __init__(self, stream: RecordedStream) -> None:
        self._stream = stream
        self.count = max((part.file for part in stream.parts), default=-1) + 1
        self._parts: list[list[StreamPart]] = [[] for _ in range(self.count)]
        for part in stream.parts:
            self._parts[part.file].append(part)
        self._ahead = self._samples_ahead()
        begins = [0] + [min(own[0].at + self._ahead, len(stream.samples)) for own in self._parts[1:]]
        lengths = np.diff([*begins, len(stream.samples)])
        average = len(stream.samples) / max(self.count, 1)
        if (np.abs(lengths - average) <= max(_ALIKE * average, 1)).all():
            begins = [round(average * turn) for turn in range(self.count)]
        self._bounds = [*begins, len(stream.samples)]

    def _samples_ahead(self) -> int:
        """Return how many samples the loader had read but not yet delivered when it reached another file."""
        sizes = [sum(part.size_bytes for part in own) for own in self._parts]
        read, total = list(accumulate(sizes, initial=0)), max(sum(sizes), 1)
        ahead = [len(self._stream.samples) * read[turn] / total - own[0].at for turn, own in enumerate(self._parts) if turn]
        return max(round(float(np.median(ahead))), 0) if ahead else 0

    def length(self, turn: int) -> int:
        """Return the number of samples that a file has."""
        return max(self._bounds[turn + 1] - self._bounds[turn], 0)

    def put(self, turn: int, copy: int, dealt: DealtStream) -> None:
        """Append the samples of a file, and the loader's calls on this file."""
        begin, end = self._bounds[turn], self._bounds[turn + 1]
        shift = len(dealt.samples) - begin
        for part in self._parts[turn]:
            filling = self._ahead if shift and not part.at else 0  # what was read before the first sample, to fill the buffer
            dealt.reads.append((max(part.at + shift - filling, 0), part.dealt._replace(copy=copy)))
        dealt.samples.extend(sample._replace(copy=copy) for sample in self._stream.samples[begin:end])


def are_in_turn(stream: RecordedStream) -> bool:
    """Return whether the stream reads several files at a time. `stream`: the parts of one recorded loader."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for part in stream.parts:
        if part.size_bytes:
            first.setdefault(part.file, part.at)
            last[part.file] = part.at
    return sum(last[file] - first[file] for file in first) > _IN_TURN * len(stream.samples)


def deal_in_turn(stream: RecordedStream, count: int, factor: float) -> list[DealtStream]:
    """Return `count` streams, each of which reads its files in turn, with `factor` times as many samples.

    File k goes to stream k modulo `count`. A stream gets samples of the recorded stream in proportion to the bytes of its files.
    It reads as many samples ahead of the delivered ones as the recorded stream did at the same call.
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
