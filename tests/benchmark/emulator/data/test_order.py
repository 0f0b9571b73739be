"""The order of samples: a permutation each epoch, none repeated or lost."""

import itertools
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.data.order import evaluation_batches, training_batches
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.common.numbers.permutation import Permutation
from iotwin.workload_yaml import Config, Dataset, Reader, Train
from iotwin.workloads.policies.cadence import Cadence


def workload(batch_size: int = 1, shuffle: str = "seed", seed: int = 1, fresh: bool = True, steps: int = -1) -> Config:
    return Config(
        dataset=Dataset(data_folder="d"),
        reader=Reader(batch_size=batch_size, batch_size_eval=batch_size, sample_shuffle=shuffle),  # type: ignore[arg-type]
        train=Train(seed=seed, seed_change_epoch=fresh, total_training_steps=steps),
    )


def flat(batches: Sequence[np.ndarray]) -> list[int]:
    return np.concatenate([*batches, np.empty(0, np.int64)]).astype(int).tolist()


@given(samples=st.integers(1, 300), batch_size=st.integers(1, 40), seed=st.integers(0, 2**63 - 1), epoch=st.integers(1, 10**6))
def test_no_sample_is_repeated_and_only_a_short_batch_is_lost(samples: int, batch_size: int, seed: int, epoch: int) -> None:
    batches = training_batches(workload(batch_size, seed=seed), samples, epoch)
    order = flat(batches)
    assert [len(batch) for batch in batches] == [batch_size] * (samples // batch_size)
    assert len(set(order)) == len(order) and set(order) <= set(range(samples))


@given(samples=st.integers(1, 300), batch_size=st.integers(1, 40))
def test_an_evaluation_reads_every_sample_once_in_order(samples: int, batch_size: int) -> None:
    assert flat(evaluation_batches(workload(batch_size), samples)) == list(range(samples))


def test_each_epoch_has_a_fresh_order_that_a_rerun_repeats() -> None:
    orders = [flat(training_batches(workload(), 50, epoch)) for epoch in range(1, 21)]
    assert len({tuple(order) for order in orders}) == 20
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert [flat(training_batches(workload(), 50, epoch)) for epoch in range(1, 21)] == orders
    assert flat(training_batches(workload(seed=2), 50, 1)) != orders[0]


def test_every_place_gets_every_sample_equally_often() -> None:
    epochs, samples = 2000, 5
    places = np.array([flat(training_batches(workload(), samples, epoch)) for epoch in range(epochs)])
    counts = np.array([[(places[:, place] == sample).sum() for sample in range(samples)] for place in range(samples)])
    assert np.abs(counts - epochs / samples).max() < 6 * np.sqrt(epochs / samples)


def test_the_same_order_or_none_where_asked_for() -> None:
    fixed = [flat(training_batches(workload(fresh=False), 50, epoch)) for epoch in (1, 2)]
    assert fixed[0] == fixed[1] != list(range(50))
    assert flat(training_batches(workload(shuffle="off"), 50, 3)) == list(range(50))


def test_steps_are_limited_per_epoch() -> None:
    assert len(training_batches(workload(4, steps=3), 50, 1)) == 3
    assert len(training_batches(workload(4, steps=100), 50, 1)) == 12


def test_a_cadence_starts_and_repeats() -> None:
    assert [epoch for epoch in range(1, 12) if Cadence(3, 4).due(epoch)] == [3, 7, 11]
    assert [epoch for epoch in range(1, 5) if Cadence(1, 1).due(epoch)] == [1, 2, 3, 4]


def permuted_one_by_one(length: int, seed: int, epoch: int) -> list[int]:
    """The documented formula in whole numbers of Python, place by place."""
    keys = [int(key) for key in generator(seed, Purpose.ORDER, epoch=epoch).integers(0, 2**64, 16, dtype=np.uint64)]
    a = math.isqrt(length - 1) + 1
    b = -(-length // a)

    def mix(value: int) -> int:
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return value ^ (value >> 31)

    def walk(item: int) -> int:
        right, left = divmod(item, a)
        for number, key in enumerate(keys):
            if number % 2 == 0:
                left = (left + mix(right ^ key)) % a
            else:
                right = (right + mix(left ^ key)) % b
        item = right * a + left
        return item if item < length else walk(item)

    return [walk(place) for place in range(length)]


@given(length=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6))
def test_a_permutation_is_a_bijection(length: int, seed: int, epoch: int) -> None:
    assert sorted(Permutation(length, seed, epoch)(np.arange(length)).tolist()) == list(range(length))


@given(length=st.integers(1, 200), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6))
def test_a_permutation_is_the_documented_formula(length: int, seed: int, epoch: int) -> None:
    assert Permutation(length, seed, epoch)(np.arange(length)).tolist() == permuted_one_by_one(length, seed, epoch)


@pytest.mark.parametrize("length", [3, 4, 5, 6])
def test_every_permutation_is_equally_likely(length: int) -> None:
    count = 20 * math.factorial(length)
    seen = Counter(tuple(Permutation(length, 1, epoch)(np.arange(length)).tolist()) for epoch in range(count))
    expected = count / math.factorial(length)
    chi_squared = sum((seen[order] - expected) ** 2 / expected for order in itertools.permutations(range(length)))
    freedom = math.factorial(length) - 1
    assert chi_squared < freedom + 5 * math.sqrt(2 * freedom)


def test_a_large_permutation_has_no_pattern() -> None:
    length = 4_195_197_692
    items = Permutation(length, 1, 1)(np.arange(100_000))
    assert len(np.unique(items)) == len(items)
    counts = np.histogram(items, 100, (0, length))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 99 + 5 * math.sqrt(2 * 99)
    steps = np.histogram(np.diff(items) % length, 100, (0, length))[0]
    assert ((steps - 999.99) ** 2 / 1000).sum() < 99 + 5 * math.sqrt(2 * 99)


@given(
    samples=st.integers(1, 200), batch_size=st.integers(1, 9), ranks=st.integers(1, 5), shuffle=st.sampled_from(["off", "seed"])
)
def test_ranks_share_the_samples_and_the_order_of_one(samples: int, batch_size: int, ranks: int, shuffle: str) -> None:
    config = workload(batch_size, shuffle)
    shares = [training_batches(config, samples, 3, rank, ranks) for rank in range(ranks)]
    steps = samples // (batch_size * ranks)
    assert [[len(batch) for batch in share] for share in shares] == [[batch_size] * steps] * ranks
    together = [[share[step][place] for share in shares] for step in range(steps) for place in range(batch_size)]
    alone = flat(training_batches(workload(1, shuffle), samples, 3))
    assert np.array(together, int).ravel().tolist() == alone[: steps * batch_size * ranks]


@given(samples=st.integers(1, 200), batch_size=st.integers(1, 9), ranks=st.integers(1, 5))
def test_an_evaluation_over_ranks_reads_every_sample_once(samples: int, batch_size: int, ranks: int) -> None:
    shares = [evaluation_batches(workload(batch_size), samples, rank, ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(sample for share in shares for sample in flat(share)) == list(range(samples))


def test_shuffled_files_are_read_one_after_the_other() -> None:
    config = workload(4, "off")
    config.reader.file_shuffle, config.dataset.num_samples_per_file = "seed", 10
    order = np.array(flat(training_batches(config, 200, 1)))
    files = order.reshape(-1, 10) // 10
    assert (files == files[:, :1]).all() and sorted(files[:, 0]) == list(range(20)) != files[:, 0].tolist()
    assert (order.reshape(-1, 10) % 10 == np.arange(10)).all()


def test_batches_at_any_place_are_those_met_on_the_way() -> None:
    batches = training_batches(workload(7), 100_000, 1)
    one_by_one = [batch.tolist() for batch in batches]
    for number in (len(batches) - 1, 5, 1170, 1171, 0):
        assert batches[number].tolist() == one_by_one[number]
    assert [batch.tolist() for batch in batches[3:5]] == one_by_one[3:5]


def test_billions_of_samples_take_no_memory() -> None:
    code = """
import resource
from iotwin.workload_yaml import Config, Dataset, Reader
from iotwin.benchmark.emulator.data.order import training_batches
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
config = Config(dataset=Dataset(data_folder="d"), reader=Reader(batch_size=2048, sample_shuffle="seed"))
batches = training_batches(config, 4_195_197_692, 1)
assert len(batches) == 2_048_436 and len(batches[2_000_000]) == 2048
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10_000  # KiB


@given(
    samples=st.integers(1, 200),
    size=st.integers(1, 9),
    ranks=st.integers(1, 4),
    steps=st.integers(-1, 5),
    epoch=st.integers(1, 9),
)
def test_random_batches_are_runs_that_ranks_take_in_turn(samples: int, size: int, ranks: int, steps: int, epoch: int) -> None:
    config = workload(size, steps=steps)
    config.reader.sample_shuffle = "batches"
    shares = [training_batches(config, samples, epoch, rank, ranks) for rank in range(ranks)]
    count = samples // (size * ranks)
    assert [len(share) for share in shares] == [min(count, steps) if steps > 0 else count] * ranks
    order = Permutation(max(1, samples // size), config.train.seed, epoch)(np.arange(max(1, samples // size)))
    for step in range(len(shares[0])):
        for rank, share in enumerate(shares):
            first = int(order[step * ranks + rank]) * size
            assert share[step].tolist() == list(range(first, first + size))
