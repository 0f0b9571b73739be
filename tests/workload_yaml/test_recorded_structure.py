"""The values of a recorded job that an edit starts from."""

import pytest

from iotwin.workload_yaml.recorded_structure import is_requested_at_once, structure_of
from iotwin.workload_yaml.recording import RecordedBatches, RecordedPass


def batches(lengths: list[int], depths: list[int]) -> RecordedBatches:
    """Epochs of so many batches of four samples, read by two loaders, with steps that compute 3 ms and then wait."""
    count = sum(lengths)
    passes = [RecordedPass(0, True, length, depth) for length, depth in zip(lengths, depths, strict=True)]
    taken = [10_000_000 * index for index in range(count)]
    computed = [each + 3_000_000 for each in taken]
    return RecordedBatches(passes, [1 + index % 2 for index in range(count)], [4] * count, taken, taken, taken, taken, computed)


def test_the_short_first_epoch_of_a_resumed_job_hides_neither_samples_nor_prefetching():
    of = structure_of(batches([1, 6], [1, 3]))
    assert (of.epochs, of.samples, of.prefetch, of.loaders) == (2, 24, 3, 2)
    assert structure_of(batches([6, 6, 1], [4, 4, 1])).prefetch is None  # two for each loader


def test_a_step_computes_without_its_wait_for_data():
    assert structure_of(batches([6], [4])).computation_s == 0.003


@pytest.mark.parametrize(
    ("depth", "batches", "loaders", "expected"),
    [(60, 60, 2, True), (58, 60, 2, True), (55, 60, 2, True), (40, 60, 2, False), (17, 20, 1, False), (16, 16, 2, False)],
)
def test_all_batches_are_requested_at_once_if_nearly_all_were_before_the_first_was_taken(depth, batches, loaders, expected):
    assert is_requested_at_once(depth, batches, loaders) == expected
