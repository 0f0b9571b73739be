"""Deals (assigns) the samples of a recorded pass to batches of another size, other loaders or ranks, and in another order."""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.emulator.recorded.edits.streams import DealtSample, RecordedStream, are_in_turn, deal_in_turn, deal_streams
from iotwin.common.errors import UsageError
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.common.units import counted

_Ints = NDArray[np.int64]
_Part = tuple[list[DealtSample], list[DealtSample]]  # samples and reads of a batch


class DealtBatch(NamedTuple):
    """A batch of an edited pass. `slot`: index of the loader that reads it, -1 for the rank itself.

    `reads`: the samples that are read for the batch. They are its `samples`, unless the loader reads files ahead.
    """

    slot: int
    samples: list[DealtSample]
    reads: list[DealtSample]


class RecordedPassSamples(NamedTuple):
    """The batches of a recorded pass, in order.

    `parts`: number of samples of each batch. `streams`: by loader, its samples, if loaders read files from begin to end, so that
    samples must remain in order; else empty. `shuffled`: True if the order of samples differs between passes. `known`: True if
    parts are single samples, which may be read in any order. `place`: returns the file and offset at which a sample begins;
    required if reads become sequential.
    """

    batches: _Ints
    parts: _Ints
    streams: list[RecordedStream]
    shuffled: bool
    known: bool
    place: Callable[[DealtSample], tuple[str, int]] = lambda sample: ("", 0)


def deal(
    recorded: RecordedPassSamples, edits: Edits, training: bool, size: int, loaders: int, rank: int, again: int
) -> list[DealtBatch]:
    """Return the batches of the edited pass that rank `rank` requests, in the order of its requests.

    `size`: samples (or parts) of a recorded batch. `loaders`: number of loaders in the edited pass. `again`: how often the pass
    was played before; each repetition has another order.
    """
    wanted = max(1, round(size * (edits.batch if training else 1.0)))
    in_order = edits.sequential and training
    if in_order:
        _check_order(recorded)
    if not recorded.streams:
        samples = _more(_whole(recorded, edits, again), edits, recorded)
        samples = sorted(samples, key=lambda each: (each.copy, *recorded.place(each))) if in_order else samples
        samples += samples[: -len(samples) % edits.ranks]  # like PyTorch's DistributedSampler: all ranks do equally many steps
        own = _cut(samples[rank :: edits.ranks], wanted)
        return [DealtBatch(index % loaders if loaders else -1, batch, batch) for index, batch in enumerate(own)]
    in_turn = len(recorded.streams) == 1 and are_in_turn(recorded.streams[0])
    count = max(loaders, 1) * edits.ranks
    streams = (
        deal_in_turn(recorded.streams[0], count, edits.samples)
        if in_turn
        else deal_streams(recorded.streams, count, edits.samples)
    )
    ranks = [_in_turn([stream.batches(wanted) for stream in streams[first :: edits.ranks]]) for first in range(edits.ranks)]
    steps = min(map(len, ranks))  # ranks synchronise after each step, so the rank with the fewest batches decides
    if not steps:
        raise UsageError(
            f"twin.ranks: loaders read {counted(_files(recorded), 'file')} as streams, too few for {edits.ranks} ranks; "
            "ask for fewer"
        )
    return [DealtBatch(slot if loaders else -1, *batch) for slot, batch in ranks[rank][:steps]]


def _check_order(recorded: RecordedPassSamples) -> None:
    """Raise UsageError if samples cannot be read in the order of files, or if the recording already reads them so."""
    reason = (
        "loaders read on in files from batch to batch, in their order already"
        if recorded.streams
        else "the job reads the samples of all epochs in the same order already"
        if not recorded.shuffled
        else "the trace does not show which sample is read by which calls"
        if not recorded.known
        else None
    )
    if reason is not None:
        raise UsageError(f"reader.sample_shuffle: {reason}; leave it out")


def _files(recorded: RecordedPassSamples) -> int:
    return sum(len({part.file for part in stream.parts}) for stream in recorded.streams)


def _cut(samples: list[DealtSample], size: int) -> list[list[DealtSample]]:
    return [samples[at : at + size] for at in range(0, len(samples), size)]


def _in_turn(streams: list[list[_Part]]) -> list[tuple[int, _Part]]:
    """Return (index of stream, batch), taking one batch of each stream in turn and leaving out streams that have ended."""
    turns = range(max(map(len, streams)))
    return [(slot, own[turn]) for turn in turns for slot, own in enumerate(streams) if turn < len(own)]


def _whole(recorded: RecordedPassSamples, edits: Edits, again: int) -> list[DealtSample]:
    samples = _samples(recorded.batches, recorded.parts)
    return _shuffled(samples, recorded, generator(edits.seed, Purpose.ORDER, epoch=again)) if again else samples


def _shuffled(samples: list[DealtSample], recorded: RecordedPassSamples, drawn: np.random.Generator) -> list[DealtSample]:
    """Return the samples in random order; unchanged if the recorded order never varies.

    If samples are unknown, whole batches are shuffled.
    """
    if not recorded.shuffled:
        return samples
    if recorded.known:
        return [samples[index] for index in drawn.permutation(len(samples)).tolist()]
    whole = [list(own) for _, own in groupby(samples, lambda sample: (sample.batch, sample.copy))]
    return [sample for index in drawn.permutation(len(whole)).tolist() for sample in whole[index]]


def _samples(batches: _Ints, parts: _Ints) -> list[DealtSample]:
    return [
        DealtSample(batch, part) for batch, count in zip(batches.tolist(), parts.tolist(), strict=True) for part in range(count)
    ]


def _more(stream: list[DealtSample], edits: Edits, recorded: RecordedPassSamples) -> list[DealtSample]:
    """Return the stream with `edits.samples` times as many samples; additional ones are read from copies of files."""
    count = round(len(stream) * edits.samples)
    more = [sample._replace(copy=copy) for copy in range(-(-count // max(len(stream), 1))) for sample in stream][:count]
    if edits.samples <= 1:
        return more
    return _shuffled(more, recorded, generator(edits.seed, Purpose.ORDER, step=int(recorded.batches[0])))


def are_shuffled(orders: Sequence[_Ints]) -> bool:
    """Return True if passes read samples in different orders. A single pass counts as shuffled unless it reads in ascending
    order.

    `orders`: by pass, the position of each batch's first read as a number.
    """
    if all(bool((np.diff(order) > 0).all()) for order in orders):
        return False  # each pass reads in ascending order
    return len(orders) < 2 or any(len(a) != len(b) or bool((a != b).any()) for a, b in pairwise(orders))
