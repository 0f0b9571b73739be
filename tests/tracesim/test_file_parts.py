"""The order of the parts of large files, which tells a shuffled job with a few files from one that reads them through."""

import numpy as np
import pytest

from iotwin.tracesim.calls import READ, Calls
from iotwin.tracesim.order import PARTS, FileParts, order_of

MIB = 1 << 20


def reads(file, offsets):
    n = len(offsets)
    zeros = np.zeros(n, np.int64)
    offsets = np.asarray(offsets, np.int64)
    return Calls(np.arange(n), zeros + 1, zeros + READ, zeros, zeros, zeros + file, offsets, zeros + 1000)


def order(sizes, *batches):
    """The order of one occurrence that reads batches; the second half of them is a chunk of its own."""
    chunks = [FileParts(np.array(sizes)) for _ in range(2)]
    for number, batch in enumerate(batches):
        chunks[number * 2 // len(batches)].add(batch, np.zeros(len(batch.start_ns), np.int64))
    chunks[0].later(chunks[1])
    return order_of([np.arange(0)], np.array([1]), np.arange(len(sizes)), chunks[0].of_each(1), PARTS)


def test_a_file_read_through_has_no_jumps_and_one_in_random_order_all():
    generator = np.random.default_rng(4)
    size = 64 * MIB
    for offsets, expected in ((np.arange(PARTS), 0.0), (generator.permutation(PARTS), 1.0)):
        each = [reads(1, half * MIB + 5) for half in np.split(offsets, 2)]
        found = order([0, size], *each)
        distance = np.abs(np.diff(offsets)).mean()
        assert found.jumps[0] == pytest.approx(min((distance - 1) / ((PARTS + 1) / 3 - 1), 1.0))
        assert found.jumps[0] == pytest.approx(expected, abs=0.2)


def test_parts_of_two_files_are_told_apart_and_their_chance_is_that_of_a_mean():
    there, back = np.arange(PARTS) * MIB, np.arange(PARTS)[::-1] * MIB
    found = order(
        [64 * MIB, 64 * MIB], *(reads(file, [place]) for pair in zip(there, back, strict=True) for file, place in enumerate(pair))
    )
    alone = order([64 * MIB], reads(0, there))
    assert found.jumps[0] == 0 and found.jumps_variance[0] == pytest.approx(alone.jumps_variance[0] / 2)


@pytest.mark.parametrize("sizes", [[MIB], [64 * MIB] * 33])
def test_small_files_and_many_files_have_no_parts(sizes):
    assert np.isnan(order(sizes, reads(0, np.arange(PARTS) * (sizes[0] // PARTS))).jumps).all()


def test_what_is_read_beyond_the_first_size_is_of_the_last_part():
    assert np.isnan(order([64 * MIB], reads(0, (64 + np.arange(20)) * MIB)).jumps).all()
