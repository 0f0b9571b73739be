"""unet3d data sets: read back by numpy, shaped as published, learnable, and the same bytes however they are made."""

import zlib

import numpy as np
import pytest

from iotwin.common.errors import IotwinError
from iotwin.datagen.datasets.unet3d import blocks
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import Unet3dLayout, npy_header

SMALL = Unet3dLayout(scale=0.1)


@pytest.fixture(scope="module")
def small_set(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kits") / "data"
    generate(SMALL, directory, samples=6, seed=3, workers=1)
    return directory


def test_numpy_reads_what_the_layout_promises(small_set):
    cases = SMALL.discover(small_set)
    assert [case.index for case in cases] == list(range(6))
    for case in cases:
        image, mask = np.load(case.image), np.load(case.mask)
        assert image.shape == mask.shape == SMALL.shape(3, case.index)
        assert image.dtype == np.float32 and mask.dtype == np.uint8
        planned = SMALL.unit_pieces(6, 3, case.index)
        assert [case.image.stat().st_size, case.mask.stat().st_size] == [file.size_bytes for file in planned]
        assert image.min() >= SMALL.IMAGE_LOW and image.max() <= SMALL.IMAGE_HIGH
        assert set(np.unique(mask)) == {0, 1, 2}


def test_header_is_numpys_own(tmp_path):
    for array in (np.zeros((1, 130, 200, 200), np.float32), np.zeros(7, np.uint8), np.zeros((3, 0), np.int32)):
        np.save(tmp_path / "a.npy", array)
        assert (tmp_path / "a.npy").read_bytes().startswith(npy_header(array.dtype.str, array.shape))


def test_shapes_follow_the_published_distribution():
    shapes = np.array([Unet3dLayout().shape(1, index) for index in range(4000)])
    assert (shapes[:, 0] == 1).all() and (shapes[:, 2] == shapes[:, 3]).all()
    for column, low, high in ((1, 128, 471), (2, 186, 444)):
        values = shapes[:, column]
        assert values.min() >= low and values.max() < high
        assert values.mean() == pytest.approx((low + high - 1) / 2, rel=0.02)
        assert values.std() == pytest.approx((high - low) / 12**0.5, rel=0.03)


def test_organs_are_smooth_brighter_and_of_a_useful_size(small_set):
    for case in SMALL.discover(small_set):
        image, mask = np.load(case.image)[0], np.load(case.mask)[0]
        means = [image[mask == label].mean() for label in (0, 1, 2)]
        assert means[0] + 1 < means[1] < means[2] - 0.3
        assert 0.01 < (mask > 0).mean() < 0.2
        # A blob's surface is small beside its volume: few neighbours along an axis differ.
        assert (mask[1:] != mask[:-1]).mean() < 0.05


def test_blocks_join_into_whole_organs():
    """A volume big enough to span several blocks has the organs a single block would have."""
    layout = Unet3dLayout(scale=0.5)
    parts = [mask.copy() for _, mask in blocks(layout, 9, 0)]
    assert len(parts) > 3
    mask = np.concatenate(parts)
    along_depth = np.diff((mask > 0).any(axis=(1, 2)).astype(int))
    assert (along_depth == 1).sum() == (along_depth == -1).sum() <= 2


def test_image_does_not_compress(small_set):
    content = SMALL.discover(small_set)[0].image.read_bytes()
    assert len(zlib.compress(content, 9)) / len(content) > 0.9


@pytest.mark.parametrize("entropy", [0.0, 0.3, 0.75])
def test_image_compresses_as_far_as_asked(tmp_path, entropy):
    layout = Unet3dLayout(scale=0.2, entropy=entropy)
    generate(layout, tmp_path, samples=1, workers=1)
    (case,) = layout.discover(tmp_path)
    content = case.image.read_bytes()
    assert len(zlib.compress(content, 6)) / len(content) == pytest.approx(entropy, abs=0.06)


def test_bytes_depend_on_seed_and_index_only(small_set, tmp_path):
    parallel = generate(SMALL, tmp_path / "parallel", samples=6, seed=3, workers=3)
    for piece in parallel.pieces:
        assert (tmp_path / "parallel" / piece.name).read_bytes() == (small_set / piece.name).read_bytes()
    assert (tmp_path / "parallel" / "manifest.json").read_bytes() == (small_set / "manifest.json").read_bytes()
    other = generate(SMALL, tmp_path / "other", samples=6, seed=4, workers=1)
    assert not {piece.xxh3_128 for piece in other.pieces} & {piece.xxh3_128 for piece in parallel.pieces}


def test_split_is_the_published_share():
    cases = [(index,) for index in range(210)]
    training, evaluation = Unet3dLayout.split(cases)
    assert (len(training), len(evaluation)) == (168, 42)
    assert sorted(training + evaluation) == cases
    assert [len(part) for part in Unet3dLayout.split(cases[:1])] == [1, 0]
    assert [len(part) for part in Unet3dLayout.split(cases[:2])] == [1, 1]


def test_discover_names_what_is_missing(small_set, tmp_path):
    with pytest.raises(IotwinError, match="no such directory"):
        SMALL.discover(tmp_path / "none")
    with pytest.raises(IotwinError, match="holds no case_"):
        SMALL.discover(tmp_path)
    (tmp_path / "case_00007_x.npy").write_bytes(b"")
    with pytest.raises(IotwinError, match=r"case_00007_x\.npy has no mask"):
        SMALL.discover(tmp_path)
