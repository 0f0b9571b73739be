"""Numbers up to their limits are taken, those beyond refused; what is planned from them is what was asked for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen import generate
from iotwin.datagen.datasets import recorded
from iotwin.datagen.datasets.recorded import read_recipe
from iotwin.datagen.datasets.unet3d import ellipsoids
from iotwin.datagen.layouts import FormatLayout
from iotwin.datagen.layouts.base import LARGEST_FILE_BYTES
from iotwin.datagen.object_stores import _staged_bytes

LIMITS = [
    ({"format": "jpeg", "record_dims": (65500, 8)}, {"format": "jpeg", "record_dims": (65501, 8)}),
    ({"format": "jpeg", "record_bytes": 65500**2}, {"format": "jpeg", "record_bytes": 65501**2}),
    ({"format": "hdf5", "max_shape": (256, 256)}, {"format": "hdf5", "max_shape": (255, 256)}),
    ({"format": "hdf5", "max_shape": (256, 256)}, {"format": "hdf5", "max_shape": (256, 255)}),
    (
        {"format": "hdf5", "record_dims": (8, 6), "datasets": 2, "max_shape": (4, 6)},
        {"format": "hdf5", "record_dims": (8, 6), "datasets": 2, "max_shape": (3, 6)},
    ),
    ({"record_dims": (6, 4), "datasets": 3, "format": "hdf5"}, {"record_dims": (7, 4), "datasets": 3, "format": "hdf5"}),
    ({"compression_level": 0}, {"compression_level": -1}),
    ({"compression_level": 9}, {"compression_level": 10}),
    ({"entropy": 0.0}, {"entropy": -0.1}),
    ({"entropy": 1.0}, {"entropy": 1.1}),
    ({"dedup": 0.0}, {"dedup": -0.1}),
    ({"dedup": 1.0}, {"dedup": 1.1}),
    ({"samples_per_file": 1}, {"samples_per_file": 0}),
    ({"record_bytes": 1}, {"record_bytes": 0}),
    ({"evaluation_files": 0}, {"evaluation_files": -1}),
    ({"train_folders": 0}, {"train_folders": -1}),
    ({"evaluation_folders": 0}, {"evaluation_folders": -1}),
    ({"record_dims": (1, 1)}, {"record_dims": (1, 0)}),
    ({"chunk_dims": (1, 1)}, {"chunk_dims": (1, 0)}),
    ({"row_group_rows": 0}, {"row_group_rows": -1}),
    ({"histogram": ((1, 1.0),)}, {"histogram": ((0, 1.0),)}),
    ({"record_bytes": 100, "record_stdev_bytes": 200}, {"record_bytes": 100, "record_stdev_bytes": 201}),
    ({"format": "png", "record_dims": (4, 4)}, {"format": "png", "record_dims": (4, 4, 4)}),
    ({"record_dims": (4, 4), "chunk_dims": (2, 2)}, {"record_dims": (4, 4), "chunk_dims": (2, 2, 2)}),
    (
        {"record_bytes": LARGEST_FILE_BYTES // 4, "samples_per_file": 4},
        {"record_bytes": LARGEST_FILE_BYTES // 4, "samples_per_file": 5},
    ),
]


@pytest.mark.parametrize(("taken", "refused"), LIMITS, ids=lambda parameters: str(parameters)[:60])
def test_a_layout_is_taken_up_to_its_limits(taken, refused):
    FormatLayout(**taken)
    with pytest.raises(UsageError):
        FormatLayout(**refused)


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        ({}, (256, 256)),
        ({"dtype": "float32"}, (128, 128)),
        ({"record_bytes": 10}, (3, 3)),
        ({"record_bytes": 12}, (3, 4)),
        ({"record_bytes": 1}, (1, 1)),
        ({"format": "jpeg", "record_bytes": 64 * 12}, (24, 32)),
        ({"format": "hdf5", "record_bytes": 100, "datasets": 3}, (9, 11)),
        ({"record_dims": (2, 3, 4)}, (2, 3, 4)),
    ],
)
def test_a_record_is_the_squarest_that_splits_evenly(parameters, shape):
    layout = FormatLayout(**parameters)
    assert layout.record_shape(layout.record_bytes) == shape


@pytest.mark.parametrize("evaluation_files", [0, 3])
@pytest.mark.parametrize("samples_per_file", [1, 4])
def test_as_many_samples_as_fit_beside_the_evaluation_files(samples_per_file, evaluation_files):
    """Files of constant size: 1000 bytes a record and 128 of frame."""
    layout = FormatLayout(record_bytes=1000, samples_per_file=samples_per_file, evaluation_files=evaluation_files)
    each = 1000 * samples_per_file + 128
    for size_bytes, files in ((each * 10, 10), (each * 10 - 1, 9), (each, 1), (0, 0)):
        assert layout.samples_within(size_bytes, 0) == max(files - evaluation_files, 0) * samples_per_file


def test_a_recipe_is_read_up_to_the_size_and_the_number_of_files_allowed(tmp_path, monkeypatch):
    path = tmp_path / "dataset.csv"
    path.write_text("name,size_bytes\na.bin,1\nb.bin,2\n")
    monkeypatch.setattr(recorded, "_LARGEST_BYTES", path.stat().st_size)
    monkeypatch.setattr(recorded, "_MOST_FILES", 2)
    assert read_recipe(path).files == (("a.bin", 1), ("b.bin", 2))
    monkeypatch.setattr(recorded, "_MOST_FILES", 1)
    with pytest.raises(UsageError, match="lists 2 files; a data set may have 1"):
        read_recipe(path)
    monkeypatch.setattr(recorded, "_LARGEST_BYTES", path.stat().st_size - 1)
    with pytest.raises(UsageError, match="is larger than"):
        read_recipe(path)


@pytest.mark.parametrize(
    ("unit_bytes", "file_bytes", "workers", "staged"),
    [
        ([10, 40, 20, 30, 10, 10], None, 2, 3 * 40),  # a unit of each worker, and the next
        ([10, 40, 20], None, 2, 70),  # no more than there is
        ([10, 40, 20, 30, 10, 10], 500, 2, 500),  # a file that several units write
    ],
)
def test_what_is_staged_for_an_upload(unit_bytes, file_bytes, workers, staged):
    sizes = np.array(unit_bytes)
    planned: Any = SimpleNamespace(
        unit_bytes=sizes, size_bytes=int(sizes.sum()), pieces=lambda unit: [SimpleNamespace(file_bytes=file_bytes)]
    )
    assert _staged_bytes(planned, workers) == staged


@pytest.mark.parametrize("index", range(8))
def test_organs_lie_within_the_body(index):
    """A kidney in each half of the width, whole within the volume; the tumour on one of them, half as large."""
    extents = np.array([128, 200, 300])
    *kidneys, tumour = ellipsoids(7, index, extents)
    for side, kidney in enumerate(kidneys):
        assert (kidney.radii >= 0.12 * extents).all() and (kidney.radii <= 0.2 * extents).all()
        assert (kidney.centre >= kidney.radii).all() and (kidney.centre <= extents - kidney.radii).all()
        assert 0.5 * side * extents[2] < kidney.centre[2] < (0.5 + 0.5 * side) * extents[2]
    bearer = [np.allclose(tumour.radii, 0.5 * kidney.radii) for kidney in kidneys].index(True)
    offset = (tumour.centre - kidneys[bearer].centre) / kidneys[bearer].radii
    assert offset == pytest.approx([0.35, 0, 0])


def test_a_data_set_may_have_as_many_bytes_as_a_disk_could_hold_and_no_more(monkeypatch):
    layout = FormatLayout(record_bytes=1000)
    whole = float(layout.unit_bytes(8, 0).sum())
    monkeypatch.setattr(generate, "_LARGEST_BYTES", whole)
    assert generate.plan(layout, samples=8).size_bytes == whole
    monkeypatch.setattr(generate, "_LARGEST_BYTES", whole - 1)
    with pytest.raises(UsageError, match="no request that a disk could hold"):
        generate.plan(layout, samples=8)


def test_a_row_group_of_two_gibibytes_is_refused_before_anything_is_written(tmp_path):
    layout = FormatLayout(format="parquet", record_bytes=1 << 20, samples_per_file=4096, row_group_rows=2048)
    with pytest.raises(IotwinError, match="cannot hold a record or a row group of 2 GiB or more"):
        generate.generate(layout, tmp_path / "data", samples=4096, seed=1)
