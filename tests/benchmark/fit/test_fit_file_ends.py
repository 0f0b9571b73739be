"""Records of a file and of the shuffle buffer, found again from the ends of files drawn record by record."""

import numpy as np
import pytest

from iotwin.benchmark.fit.streams.file_ends import records_of_file_and_buffer


def ends(rng, size, buffer, taken, cycle):
    """Places give a record each at random: (files that ended in the buffer, records of steps at each later end)."""
    given, before, later = np.zeros(cycle, int), 0, []
    for number, place in enumerate(rng.integers(0, cycle, buffer + taken)):
        given[place] += 1
        if given[place] % size == 0:
            if number < buffer:
                before += 1
            else:
                later.append(number - buffer)
    return before, np.array(later, float)


@pytest.mark.parametrize(
    ("size", "buffer", "taken", "cycle", "within"),
    [(48, 1000, 2400, 8, 0.05), (100, 800, 1200, 4, 0.1), (20, 300, 300, 8, 0.15), (48, 1000, 240, 8, 0.4)],
)
def test_both_numbers_are_found_again(size, buffer, taken, cycle, within):
    rng = np.random.default_rng(7)
    found = [records_of_file_and_buffer(*ends(rng, size, buffer, taken, cycle), taken, cycle) for _ in range(7)]
    of_file, of_buffer = np.median(found, axis=0)
    assert of_file == pytest.approx(size, rel=within)
    assert of_buffer == pytest.approx(buffer, rel=max(within, 0.1))


def test_too_few_and_too_many_ends_tell_nothing():
    assert records_of_file_and_buffer(16, np.zeros(0), 240, 8) is None
    assert records_of_file_and_buffer(16, np.arange(1000.0), 10_000, 8) is None
    size, buffer = records_of_file_and_buffer(0, np.array([50.0]), 100, 1) or (0, 0)
    assert size > 50 and buffer > 0
