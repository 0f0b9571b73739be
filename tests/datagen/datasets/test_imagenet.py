"""Images of classes: the files that are planned are those written, decoders read them, and their class can be told."""

import numpy as np
import pytest
from PIL import Image

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.datasets.imagenet import fields
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    directory = tmp_path_factory.mktemp("images")
    manifest = generate(ImagenetLayout(classes=3, scale=0.3), directory, samples=80, seed=4, workers=1)
    return directory, manifest


def test_the_files_are_those_planned(images):
    directory, manifest = images
    layout = ImagenetLayout(classes=3, scale=0.3)
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.JPEG"))
    assert len(names) == 84 == layout.file_count(80)  # four more for validation
    assert names == sorted(layout.name(80, image) for image in range(84))
    assert "train/n00000001/n00000001_1.JPEG" in names and "val/n00000002/ILSVRC2012_val_00000002.JPEG" in names
    assert manifest.size_bytes == layout.unit_bytes(80, 4).sum() == sum((directory / name).stat().st_size for name in names)
    assert [len(layout.unit_images(80, unit)) for unit in (0, 1)] == [64, 20]
    again = generate(layout, directory, samples=80, seed=4, workers=1)
    assert again == manifest


def test_decoders_read_them_and_their_class_can_be_told(images):
    directory, _ = images
    layout = ImagenetLayout(classes=3, scale=0.3)
    patterns = [fields(4, number).reshape(-1) for number in range(3)]
    assert len({tuple(pattern) for pattern in patterns}) == 3
    for image in range(84):
        with Image.open(directory / layout.name(80, image)) as opened:
            height, width = layout.shape(4, image)
            assert opened.size == (width, height) and not (height % 16 or width % 16)
            pixels = np.asarray(opened.resize((4, 4), Image.Resampling.BOX), float).reshape(-1)
        bright = pixels - pixels.mean()
        told = [
            float(bright @ (pattern - pattern.mean())) / float(np.linalg.norm(pattern - pattern.mean())) for pattern in patterns
        ]
        assert int(np.argmax(told)) == layout.class_of(80, image), image


def test_as_published_they_have_the_published_size():
    layout = ImagenetLayout()
    assert np.mean([layout.file_bytes(0, image) for image in range(500)]) == pytest.approx(110_000, rel=0.05)
    assert layout.images(1_281_167) == 1_281_167 + 49_276
    assert layout.shape(0, 1) != layout.shape(1, 1)


@pytest.mark.parametrize("size_bytes", [1_000, 100_000, 1_000_000])
def test_as_many_as_fit(size_bytes):
    layout = ImagenetLayout(scale=0.1)
    samples = layout.samples_within(size_bytes, 2)
    if samples:
        assert layout.unit_bytes(samples, 2).sum() <= size_bytes
    assert layout.unit_bytes(samples + 30, 2).sum() > size_bytes


def test_what_it_says_of_a_directory(images, tmp_path):
    classes, found = ImagenetLayout.discover(images[0], "train")
    assert classes == ["n00000001", "n00000002", "n00000003"]
    assert [label for _, label in found] == [0] * 27 + [1] * 27 + [2] * 26
    with pytest.raises(IotwinError, match="make a data set with: iotwin generate checkfreq"):
        ImagenetLayout.discover(tmp_path, "train")
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(IotwinError, match="holds no images in folders of their classes"):
        ImagenetLayout.discover(tmp_path, "train")


@pytest.mark.parametrize(
    ("changes", "message"), [({"classes": 0}, "0 classes are out of range"), ({"scale": 0}, "scale 0 is out of range")]
)
def test_impossible_layouts_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        ImagenetLayout(**changes)
