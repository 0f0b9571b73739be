"""The order of samples: a permutation each epoch, none repeated or lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cadence import EpochCadence
from benchmark.config import Config, Dataset, Reader, Train
from benchmark.order import evaluation_batches, training_batches


def workload(batch_size: int = 1, shuffle: str = "seed", seed: int = 1, fresh: bool = True, steps: int = -1) -> Config:
    return Config(
        dataset=Dataset(data_folder="d"),
        reader=Reader(batch_size=batch_size, batch_size_eval=batch_size, sample_shuffle=shuffle),  # type: ignore[arg-type]
        train=Train(seed=seed, seed_change_epoch=fresh, total_training_steps=steps),
    )


def flat(batches: list[np.ndarray]) -> list[int]:
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
    assert [epoch for epoch in range(1, 12) if EpochCadence(3, 4).due(epoch)] == [3, 7, 11]
    assert [epoch for epoch in range(1, 5) if EpochCadence(1, 1).due(epoch)] == [1, 2, 3, 4]
