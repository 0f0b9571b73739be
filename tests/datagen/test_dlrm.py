"""dlrm data sets: Criteo's binary form, one big file that several workers write, clicks that can be learnt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.generate import generate
from datagen.layouts import DlrmLayout

LAYOUT = DlrmLayout()
SAMPLES = 3 * LAYOUT.UNIT_SAMPLES // 2  # two units of training samples


@pytest.fixture(scope="module")
def criteo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dlrm") / "data"
    generate(LAYOUT, directory, samples=SAMPLES, seed=2, workers=1)
    return directory


def rows(path):
    return np.fromfile(path, "<i4").reshape(-1, 40)


def test_rows_are_criteos(criteo):
    train, test = rows(criteo / LAYOUT.TRAIN_NAME), rows(criteo / LAYOUT.TEST_NAME)
    assert len(train) == SAMPLES and len(test) == LAYOUT.test_samples(SAMPLES)
    for part in (train, test):
        assert set(np.unique(part[:, 0])) == {0, 1}
        assert part[:, 1:14].min() == 0
        assert part[:, 14:].min() >= 0 and (part[:, 14:].max(axis=0) < LAYOUT.CATEGORIES).all()
    # Small ranges are used whole, big ones up to their ends.
    assert [len(np.unique(train[:, 14 + column])) for column in (5, 8, 16)] == [3, 63, 4]
    assert (train[:, 14:].max(axis=0) > 0.99 * np.array(LAYOUT.CATEGORIES) - 1).all()


def test_counts_are_an_npz_of_the_published_size(criteo):
    with np.load(criteo / LAYOUT.COUNTS_NAME) as content:
        assert content["counts"].tolist() == list(LAYOUT.CATEGORIES)
    assert (criteo / LAYOUT.COUNTS_NAME).stat().st_size == LAYOUT.COUNTS_BYTES


def test_units_do_not_repeat_each_other(criteo):
    train = rows(criteo / LAYOUT.TRAIN_NAME)
    assert not np.array_equal(train[:1000], train[LAYOUT.UNIT_SAMPLES : LAYOUT.UNIT_SAMPLES + 1000])
    assert len(np.unique(train[:, 14:], axis=0)) == len(train)


def test_clicks_depend_on_features(criteo):
    train = rows(criteo / LAYOUT.TRAIN_NAME)
    small = train[:, 1] < 16
    assert train[small, 0].mean() > 2 * train[~small, 0].mean() > 0
    assert 0.03 < train[:, 0].mean() < 0.15


def test_workers_share_one_file(criteo, tmp_path):
    generate(LAYOUT, tmp_path / "data", samples=SAMPLES, seed=2, workers=2)
    for name in (LAYOUT.TRAIN_NAME, LAYOUT.TEST_NAME, LAYOUT.COUNTS_NAME, "manifest.json"):
        assert (tmp_path / "data" / name).read_bytes() == (criteo / name).read_bytes()


@given(st.integers(1, 10**13), st.integers(0, 2**62))
def test_size_is_met_from_below(size_bytes, seed):
    samples = LAYOUT.samples_within(size_bytes, seed)
    if samples:
        assert LAYOUT.unit_bytes(samples, seed).sum() <= size_bytes
    assert size_bytes < LAYOUT.unit_bytes(samples + 2, seed).sum()
