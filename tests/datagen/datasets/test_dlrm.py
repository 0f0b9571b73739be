"""dlrm data sets: Criteo's binary form, one big file that several workers write, clicks that can be learnt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.datagen.datasets.dlrm import lines
from iotwin.datagen.generate import generate, plan
from iotwin.datagen.layouts import DlrmDaysLayout, DlrmLayout
from iotwin.datagen.verify import verify

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


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 2**31 - 1)), min_size=1, max_size=20))
def test_lines_say_the_numbers(values):
    block = np.zeros((len(values), 40), np.int32)
    block[:, 3], block[:, 20] = np.array(values).T
    expected = "".join("\t".join([*(str(n) for n in row[:14]), *(f"{n:08x}" for n in row[14:])]) + "\n" for row in block.tolist())
    assert lines(block).tobytes().decode() == expected


@pytest.mark.parametrize("form", DlrmDaysLayout.FORMS)
def test_days_hold_the_samples(form, tmp_path):
    layout = DlrmDaysLayout(form=form)
    manifest = generate(layout, tmp_path / "one", samples=100_000, seed=3, workers=1)
    assert generate(layout, tmp_path / "two", samples=100_000, seed=3, workers=2) == manifest == verify(tmp_path / "one", 1)
    assert manifest.size_bytes == pytest.approx(plan(layout, samples=100_000).size_bytes, rel=0.001)
    counts = layout.day_samples(100_000)
    assert counts.sum() == 100_000 and len(counts) == 24
    for day in (0, 23):
        if form == "text":
            text = (tmp_path / "one" / f"day_{day}").read_text().splitlines()
            table = [[int(value, 16 if column > 13 else 10) for column, value in enumerate(line.split("\t"))] for line in text]
            y, dense, categories = np.split(np.array(table), [1, 14], axis=1)
        else:
            with np.load(tmp_path / "one" / f"day_{day}_reordered.npz") as arrays:
                y, dense, categories = arrays["y"][:, None], arrays["X_int"], arrays["X_cat"]
            assert y.dtype == dense.dtype == categories.dtype == np.int32
        assert y.shape == (counts[day], 1) and dense.shape == (counts[day], 13) and categories.shape == (counts[day], 26)
        assert set(np.unique(y)) == {0, 1} and dense.min() == 0
        assert (categories.max(axis=0) < LAYOUT.CATEGORIES).all() and categories[:, 0].max() > 10**8
    if form == "npz":
        with np.load(tmp_path / "one" / layout.DAY_COUNTS_NAME) as arrays:
            assert arrays["total_per_file"].tolist() == counts.tolist()


def test_both_forms_hold_the_same_samples(tmp_path):
    for form in DlrmDaysLayout.FORMS:
        generate(DlrmDaysLayout(form=form), tmp_path / form, samples=5000, workers=1)
    with np.load(tmp_path / "npz" / "day_7_reordered.npz") as arrays:
        block = np.concatenate([arrays["y"][:, None], arrays["X_int"], arrays["X_cat"]], axis=1)
    assert lines(block).tobytes() == (tmp_path / "text" / "day_7").read_bytes()


def test_each_telling_feature_adds_a_tenth_to_the_share_of_clicks(criteo):
    """0.01 of the rows in which neither speaks for a click, 0.11 where one does, whichever, and 0.21 where both do."""
    train = rows(criteo / LAYOUT.TRAIN_NAME)
    small, first = train[:, 1] < 16, train[:, 14 + 5] == 0
    for both, share in ((~small & ~first, 0.01), (small & ~first, 0.11), (~small & first, 0.11), (small & first, 0.21)):
        clicks = train[both, 0]
        assert abs(clicks.mean() - share) < 4 * (share * (1 - share) / len(clicks)) ** 0.5
