"""Grown data sets: what is copied is the same, what is changed is still what the workload reads, a kill costs nothing."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen import augment, copying
from iotwin.datagen import generate as module
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout, Unet3dLayout
from iotwin.datagen.random_numbers import AUGMENT, bulk_stream
from iotwin.datagen.scale import scaled_layout
from iotwin.datagen.verify import verify


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kits")
    generate(Unet3dLayout(scale=0.1), directory, samples=3, workers=1)
    return directory


@pytest.fixture(scope="module")
def criteo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("criteo")
    generate(DlrmLayout(), directory, samples=20_000, workers=1)
    return directory


def stream(index=1):
    return bulk_stream(0, index, AUGMENT)


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def bytes_of(directory):
    return sum(path.stat().st_size for path in directory.glob("case_*"))


def test_cases_are_copied_in_turn_up_to_the_size(kits, tmp_path):
    wanted = 5 * bytes_of(kits) // 2
    manifest = generate(scaled_layout("unet3d", kits), tmp_path / "big", size_bytes=wanted, workers=2)
    cases = Unet3dLayout.discover(tmp_path / "big")
    for case in cases:
        for path, half in ((case.image, "x"), (case.mask, "y")):
            assert path.read_bytes() == (kits / f"case_{case.index % 3:05d}_{half}.npy").read_bytes()
    following = 3 * [sum((kits / f"case_{index:05d}_{half}.npy").stat().st_size for half in "xy") for index in range(3)]
    assert manifest.size_bytes <= wanted < sum(following[: len(cases) + 1])
    verify(tmp_path / "big", workers=1)


def test_augmented_cases_differ_and_are_volumes_with_their_masks(kits, tmp_path):
    layout = scaled_layout("unet3d", kits, augment=True)
    generate(layout, tmp_path / "big", size_bytes=4 * bytes_of(kits), workers=1)
    generate(layout, tmp_path / "again", size_bytes=4 * bytes_of(kits), workers=2)
    assert content(tmp_path / "big") == content(tmp_path / "again")
    cases = Unet3dLayout.discover(tmp_path / "big")
    assert len({case.image.read_bytes() for case in cases}) == len(cases) == 12
    for case in cases:
        image, mask = np.load(case.image), np.load(case.mask)
        source = np.load(kits / f"case_{case.index % 3:05d}_x.npy")
        assert image.shape == mask.shape == source.shape and image.dtype == source.dtype
        assert source.min() <= image.min() and image.max() <= source.max()
        # What is labelled is still where the values are raised.
        assert image[mask > 0].mean() > image[mask == 0].mean() + 0.5
        assert (
            np.bincount(mask.ravel()).tolist() == np.bincount(np.load(kits / f"case_{case.index % 3:05d}_y.npy").ravel()).tolist()
        )


def test_blur_smooths_and_sharpening_roughens():
    plane = np.random.default_rng(0).normal(size=(1, 40, 40)).astype(np.float32)
    rough = {
        sharpness: np.abs(np.diff(next(augment.changed_planes(plane, augment.Change((False,) * 3, sharpness), True)))).mean()
        for sharpness in (-1.0, 0.0, 1.0)
    }
    assert rough[-1.0] < 0.7 * rough[0.0] and rough[1.0] > 1.1 * rough[0.0]


@pytest.mark.parametrize("augmented", [False, True])
def test_binary_rows_are_repeated_or_shuffled(criteo, tmp_path, augmented, monkeypatch):
    monkeypatch.setattr(DlrmLayout, "UNIT_SAMPLES", 7000)
    size_bytes = 55_000 * DlrmLayout.SAMPLE_BYTES
    generate(scaled_layout("dlrm", criteo, augmented), tmp_path / "big", size_bytes=size_bytes, workers=1)
    source = np.fromfile(criteo / DlrmLayout.TRAIN_NAME, "<i4").reshape(-1, 40)
    grown = np.fromfile(tmp_path / "big" / DlrmLayout.TRAIN_NAME, "<i4").reshape(-1, 40)
    assert 54_000 < len(grown) <= 55_000
    assert (tmp_path / "big" / DlrmLayout.TEST_NAME).read_bytes() == (criteo / DlrmLayout.TEST_NAME).read_bytes()
    assert np.array_equal(grown[:20_000], source)
    second = grown[20_000:40_000]
    assert np.array_equal(second[:, :14], source[:, :14])
    assert np.array_equal(second, source) != augmented
    assert np.array_equal(np.sort(second, axis=0), np.sort(source, axis=0))


def criteo_lines(count):
    rng = np.random.default_rng(1)
    return b"".join(
        b"\t".join([b"1", *(b"%d" % value for value in row[:13]), *(b"%x" % value if value % 5 else b"" for value in row[13:])])
        + b"\n"
        for row in rng.integers(0, 1 << 30, (count, 39))
    )


def test_criteo_lines_keep_their_columns(tmp_path):
    source = tmp_path / "criteo"
    source.mkdir()
    for day in (0, 1, 10):
        (source / f"day_{day}").write_bytes(criteo_lines(200 + day))
    size_bytes = 2 * sum(path.stat().st_size for path in source.iterdir())
    generate(scaled_layout("dlrm", source, augment=True), tmp_path / "big", size_bytes=size_bytes, workers=1)
    assert sorted(path.name for path in (tmp_path / "big").glob("day_*")) == [f"day_{day}" for day in range(6)]
    assert (tmp_path / "big" / "day_2").read_bytes() == (source / "day_10").read_bytes()
    before, after = (
        [line.split(b"\t") for line in path.read_bytes().splitlines()] for path in (source / "day_0", tmp_path / "big" / "day_3")
    )
    assert before != after and len(before) == len(after)
    for column, (old, new) in enumerate(zip(zip(*before, strict=True), zip(*after, strict=True), strict=True)):
        assert old == new if column < 14 else sorted(old) == sorted(new)


def test_lines_that_are_not_criteos_are_refused(tmp_path):
    for text in (b"1\t2\n", criteo_lines(2).replace(b"\t", b"\n", 1), criteo_lines(2)[:-20]):
        with pytest.raises(IotwinError, match="without Criteo's 40 tab-separated columns"):
            augment.shuffled_lines(text.replace(b"\t", b" ", 1), stream(), tmp_path)


@given(st.lists(st.lists(st.sampled_from([b"a", b"bc", b"def", b"", b"\xff"]), max_size=30), max_size=20), st.integers(0, 9))
def test_moved_words_keep_lines_and_invent_no_word(lines, key):
    block = b"\n".join(b" ".join(line) for line in lines) + b"\n"
    moved = augment.moved_words(block, stream(key)).tobytes()
    assert moved.count(b"\n") == block.count(b"\n")
    assert set(moved.replace(b"\n", b" ").split(b" ")) <= set(block.replace(b"\n", b" ").split(b" "))
    for old, new in zip(block.split(b"\n"), moved.split(b"\n"), strict=True):
        assert old.split(b" ")[-1] == new.split(b" ")[-1] or new.endswith(old.split(b" ")[-1])


def test_a_tenth_of_the_words_of_a_text_moves(tmp_path):
    words = [b"w%d" % index for index in range(20_000)]
    moved = augment.moved_words(b" ".join(words), stream()).tobytes().strip().split(b" ")
    assert 0.87 < len(set(moved)) / len(words) < 0.93
    assert 0.07 < (len(moved) - len(set(moved))) / len(words) < 0.13
    order = [int(word[1:]) for word in dict.fromkeys(moved)]
    assert sum(after == before - 1 for before, after in pairwise(order)) > 0.05 * len(words)


def test_text_shards_grow_under_new_names_and_records_refuse_augmentation(tmp_path):
    source = tmp_path / "text"
    source.mkdir()
    for shard in range(2):
        (source / f"part-{shard:05d}-of-00002").write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 50)
    (source / "eval_10k").write_bytes(b"eval")
    generate(scaled_layout("bert", source, augment=True), tmp_path / "big", size_bytes=11_004, workers=1)
    names = sorted(path.name for path in (tmp_path / "big").iterdir())
    assert names == ["eval_10k", "manifest.json", *(f"part-{shard:05d}-of-00005" for shard in range(5))]
    assert len({path.read_bytes() for path in (tmp_path / "big").glob("part-*")}) == 4
    (source / "part-00000-of-00002").write_bytes(bytes(100))
    with pytest.raises(UsageError, match="is no text"):
        scaled_layout("bert", source, augment=True)


def test_interrupted_growth_goes_on(kits, tmp_path, monkeypatch):
    layout = scaled_layout("unet3d", kits, augment=True)
    size_bytes = 3 * bytes_of(kits)
    generate(layout, tmp_path / "whole", size_bytes=size_bytes, workers=1)
    real = module.run_units

    def interrupted(*arguments):
        for count, answer in enumerate(real(*arguments)):
            if count == 4:
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(module, "run_units", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate(layout, tmp_path / "broken", size_bytes=size_bytes, workers=1)
    monkeypatch.undo()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "broken").glob("*.npy")}
    assert before
    generate(layout, tmp_path / "broken", size_bytes=size_bytes, workers=1)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")
    assert all((tmp_path / "broken" / name).stat().st_mtime_ns == time_ns for name, time_ns in before.items())


def test_every_way_to_copy_gives_the_same_bytes(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(300_001))
    monkeypatch.setattr(copying, "_CHUNK_BYTES", 100_000)

    def refused(*_):
        raise OSError("refused")

    for ways in ([], ["_clone"], ["_clone", "_within_file_systems"]):
        for way in ways:
            monkeypatch.setattr(copying, way, (lambda *_: False) if way == "_clone" else refused)
        told = []
        piece = copying.copy_file(source, 300_001, tmp_path, "copy", told.append)
        assert (tmp_path / "copy.iotwin-partial").read_bytes() == source.read_bytes()
        assert piece.size_bytes == sum(told) == 300_001
    with pytest.raises(IotwinError, match="changed its size"):
        copying.copy_file(source, 300_000 + 5, tmp_path, "copy", told.append)


def test_requests_that_grow_nothing(kits, tmp_path):
    with pytest.raises(UsageError, match="larger than that already"):
        generate(scaled_layout("unet3d", kits), tmp_path / "big", size_bytes=1000)
    assert not (tmp_path / "big").exists()
    with pytest.raises(UsageError, match="no such directory"):
        scaled_layout("bert", tmp_path / "none")
    for workload in ("unet3d", "bert", "dlrm"):
        with pytest.raises(IotwinError, match="holds no"):
            scaled_layout(workload, tmp_path)
    (tmp_path / DlrmLayout.TRAIN_NAME).write_bytes(bytes(161))
    with pytest.raises(IotwinError, match="not rows of 160"):
        scaled_layout("dlrm", tmp_path)


def test_both_commands_grow(kits, tmp_path):
    script = Path(copying.__file__).with_name("scaling.sh")
    size = str(2 * bytes_of(kits))
    call = [script, "imseg", kits, tmp_path / "big", size]
    subprocess.run(call, check=True, env=os.environ | {"PYTHON": sys.executable}, capture_output=True)
    assert len(Unet3dLayout.discover(tmp_path / "big")) == 6
    refused = subprocess.run(
        [sys.executable, "-m", "iotwin", "scale", "unet3d", kits, "-o", kits, "--size", size], capture_output=True, text=True
    )
    assert refused.returncode == 2 and "choose another directory" in refused.stderr and refused.stderr.count("\n") == 1
