"""The arithmetic of the layouts: units cover files without gap or overlap, and sizes fit as they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.errors import UsageError
from iotwin.datagen.layouts import BertLayout, DlrmDaysLayout, DlrmLayout, FormatLayout

UNIT = DlrmLayout.UNIT_SAMPLES
samples_of_dlrm = st.one_of(st.integers(1, 200), st.integers(1, 4 * UNIT), st.sampled_from([UNIT - 1, UNIT, UNIT + 1, 47 * UNIT]))


def pieces_of(layout, samples):
    return [layout.unit_pieces(samples, 0, unit) for unit in range(len(layout.unit_bytes(samples, 0)))]


@settings(max_examples=60)
@given(samples_of_dlrm)
def test_units_of_dlrm_cover_its_files(samples):
    layout = DlrmLayout()
    units = pieces_of(layout, samples)
    assert [sum(piece.size_bytes for piece in unit) for unit in units] == layout.unit_bytes(samples, 0).tolist()
    sizes = {layout.TRAIN_NAME: 160 * samples, layout.TEST_NAME: 160 * -(-samples // 47), layout.COUNTS_NAME: 474}
    ends = dict.fromkeys(sizes, 0)
    for (piece,) in units:
        assert piece.offset == ends[piece.name] and piece.size_bytes <= 160 * UNIT
        ends[piece.name] += piece.size_bytes
        assert piece.file_bytes == (None if piece.name == layout.COUNTS_NAME else sizes[piece.name])
    assert ends == sizes and len(sizes) == layout.file_count(samples)
    assert [piece.name for (piece,) in units] == sorted((p.name for (p,) in units), key=list(sizes).index)


@settings(max_examples=100)
@given(st.one_of(st.integers(0, 3000), st.integers(0, 10**9)))
def test_as_many_samples_of_dlrm_as_fit(size_bytes):
    layout = DlrmLayout()
    samples = layout.samples_within(size_bytes, 0)

    def total(count):
        return 160 * (count + -(-count // 47)) + 474

    assert samples == 0 or total(samples) <= size_bytes
    assert samples * 48 >= (size_bytes - 474) // 160 * 47 - 48
    assert total(samples + 2) > size_bytes


@settings(max_examples=60)
@given(st.integers(1, 500), st.sampled_from(["text", "npz"]))
def test_days_of_dlrm_share_the_samples_evenly(samples, form):
    layout = DlrmDaysLayout(form)
    days = layout.day_samples(samples)
    assert days.sum() == samples and len(days) == min(24, samples) and days.max() - days.min() <= 1
    assert days.tolist() == sorted(days.tolist(), reverse=True)
    units = pieces_of(layout, samples)
    counts = [] if form == "text" else ["day_day_count.npz", "day_fea_count.npz"]
    suffix = "" if form == "text" else "_reordered.npz"
    assert [piece.name for (piece,) in units] == [f"day_{day}{suffix}" for day in range(len(days))] + counts
    each = [284 * int(day) if form == "text" else 160 * int(day) + 800 for day in days]
    assert [piece.size_bytes for (piece,) in units] == each + [474] * len(counts)
    assert layout.unit_bytes(samples, 0).tolist() == [piece.size_bytes for (piece,) in units]
    assert layout.file_count(samples) == len(units)


@pytest.mark.parametrize(("form", "fixed_bytes", "each"), [("text", 0, 284), ("npz", 24 * 800 + 2 * 474, 160)])
def test_as_many_samples_of_days_as_fit(form, fixed_bytes, each):
    layout = DlrmDaysLayout(form)
    for samples in (24, 25, 1000):
        size_bytes = int(layout.unit_bytes(samples, 0).sum())
        assert size_bytes == fixed_bytes + each * samples
        assert layout.samples_within(size_bytes, 0) == samples and layout.samples_within(size_bytes - 1, 0) == samples - 1
    assert layout.samples_within(0, 0) == 0


def test_a_form_nobody_knows_is_named_with_the_nearest():
    with pytest.raises(UsageError, match="unknown form 'tekst'"):
        DlrmDaysLayout("tekst")


@given(st.one_of(st.integers(1, 2000), st.integers(1, 10**7)))
def test_shards_of_bert_share_the_samples_evenly(samples):
    layout = BertLayout()
    units = layout.shard_samples(samples)
    shards, evaluation = units[:-1], int(units[-1])
    assert shards.sum() == samples and len(shards) == min(500, samples) and np.ptp(shards) <= 1
    assert evaluation == min(10_000, -(-samples // 10))
    assert layout.unit_bytes(samples, 0).tolist() == (2497 * units).tolist() and layout.file_count(samples) == len(units)
    size_bytes = int(layout.unit_bytes(samples, 0).sum())
    assert samples - 1 <= layout.samples_within(size_bytes, 0) <= samples + 1


@pytest.mark.parametrize(("dtype", "element_bytes"), [("uint8", 1), ("float64", 8)])
def test_records_of_a_shape_have_as_many_bytes_as_their_elements(dtype, element_bytes):
    layouts = [FormatLayout(format="npy", record_dims=(lines, 50), dtype=dtype, samples_per_file=2) for lines in (100, 300)]
    few, many = (int(layout.unit_bytes(6, 0).sum()) for layout in layouts)
    assert many - few == 6 * 200 * 50 * element_bytes
