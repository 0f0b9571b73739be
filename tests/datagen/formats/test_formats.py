"""Format data sets: each read by the library that users read it with, holding the bytes that were drawn."""

import bz2
import gzip
import io
import lzma
import zlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.commands.generate import GenerateCommand
from iotwin.common.errors import UsageError
from iotwin.datagen.content import Content, as_numbers
from iotwin.datagen.generate import generate, plan
from iotwin.datagen.layout_from_yaml import read_config
from iotwin.datagen.layouts import FormatLayout
from iotwin.datagen.verify import verify
from iotwin.main import _Parser
from tests.datagen.datasets.test_bert import fields, tfrecords, varint

FORMATS = list(FormatLayout.FORMATS)
IMAGES = ("jpeg", "png")


def made(directory, samples=4, seed=0, **parameters):
    layout = FormatLayout(**parameters)
    generate(layout, directory, samples=samples, seed=seed, workers=1)
    return layout, sorted(path for path in directory.rglob("*_of_*") if path.suffix != ".idx")


def drawn(layout, index, seed=0):
    """The records' bytes as the content stream gives them for small files."""
    shape = layout.record_shape(layout.record_bytes)
    size_bytes = layout.samples_per_file * int(np.prod(shape)) * np.dtype(layout.dtype).itemsize
    return as_numbers(Content(seed, index, 1, 0).take(size_bytes), np.dtype(layout.dtype))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int16", "complex64", "bool", "float16", ">f4", ">c16", "uint64"])
def test_npy_npz_hdf5_hold_the_array(tmp_path, dtype):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for name, read, last in (
        ("npy", np.load, True),
        ("npz", lambda path: np.load(path)["x"], True),
        ("hdf5", lambda path: h5py.File(path)["records_0"][:], False),
    ):
        layout, (path, _) = made(tmp_path / name, format=name, samples_per_file=2, record_dims=(3, 4, 5), dtype=dtype)
        found = read(path)
        assert found.shape == ((3, 4, 5, 2) if last else (2, 3, 4, 5)) and found.dtype == np.dtype(dtype)
        assert found.tobytes() == drawn(layout, 0).tobytes()
        assert np.isfinite(found).all()


def test_npz_and_hdf5_compression_and_labels(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for compression in ("none", "zip"):
        _, (path, *_) = made(tmp_path / compression, format="npz", compression=compression, entropy=0.25)
        assert np.load(path)["y"].tolist() == [0]
        assert (path.stat().st_size < 0.4 * 65536) == (compression == "zip")
    for compression in ("gzip", "lzf"):  # chunks no larger than a record
        _, (path, *_) = made(tmp_path / compression, format="hdf5", compression=compression, entropy=0.25, chunk_dims=(64, 300))
        with h5py.File(path) as content:
            assert content["records_0"].chunks == (1, 64, 256) and content["records_0"].compression == compression
            assert content["labels"][:].tolist() == [0]
        assert path.stat().st_size < 0.6 * 65536


@pytest.mark.parametrize("record_bytes", [100, 5000, 40_000])
def test_tfrecord_holds_image_and_size_and_has_an_index(tmp_path, record_bytes):
    layout, (path, _) = made(tmp_path, format="tfrecord", samples_per_file=2, record_bytes=record_bytes)
    content = path.read_bytes()
    records = []
    for record in tfrecords(content):
        ((_, features),) = fields(record)
        entries = {parts[1].decode(): parts[2] for parts in (dict(fields(entry)) for _, entry in fields(features))}
        ((kind, image),), ((size_kind, size),) = fields(entries["image"]), fields(entries["size"])
        assert (kind, size_kind) == (1, 3)
        records.append(dict(fields(image))[1])
        assert varint(dict(fields(size))[1], 0)[0] == layout.record_shape(record_bytes)[0]
    assert b"".join(records) == drawn(layout, 0).tobytes()
    index = (tmp_path / "index" / "train" / f"{path.name}.idx").read_text().split()
    offsets = [int(word) for word in index[::2]]
    assert offsets == [0, len(content) // 2] and {int(word) for word in index[1::2]} == {len(content) // 2}


@pytest.mark.parametrize(("compression", "opener"), [("none", open), ("gzip", gzip.open), ("bz2", bz2.open), ("xz", lzma.open)])
def test_csv_is_what_pandas_reads(tmp_path, compression, opener):
    layout, (path, _) = made(tmp_path, format="csv", samples_per_file=2, record_bytes=4000, compression=compression)
    assert path.name.endswith({"none": ".csv", "gzip": ".csv.gz", "bz2": ".csv.bz2", "xz": ".csv.xz"}[compression])
    with opener(path, "rb") as file:
        table = pd.read_csv(io.BytesIO(file.read()))
    assert (table.to_numpy().astype(np.uint8).reshape(-1) == drawn(layout, 0)).all()


def test_csv_of_floats_keeps_every_bit(tmp_path):
    layout, (path, *_) = made(tmp_path, format="csv", record_bytes=4000, dtype="float32")
    assert (pd.read_csv(path).to_numpy().astype(np.float32).reshape(-1) == drawn(layout, 0)).all()


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("record_bytes", "samples_per_file"), [(5000, 500), ((1 << 20) + 8, 2), (1, 3)])
def test_parquet_is_what_pyarrow_and_duckdb_read(tmp_path, compression, record_bytes, samples_per_file):
    """Several row groups of short records, and records longer than a block."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    sizes = {"record_dims": (record_bytes,), "samples_per_file": samples_per_file}
    layout, (path,) = made(tmp_path, samples=samples_per_file, format="parquet", compression=compression, **sizes)
    table = pq.read_table(path)
    assert b"".join(table["record"].to_pylist()) == drawn(layout, 0).tobytes()
    assert table["label"].to_pylist() == [0] * samples_per_file
    assert [table.schema.field(name).type for name in ("record", "label")] == [pa.binary(), pa.int64()]
    rows = duckdb.read_parquet(str(path)).fetchall()
    assert b"".join(row[0] for row in rows) == drawn(layout, 0).tobytes() and {row[1] for row in rows} == {0}


def test_an_hdf5_record_may_have_several_datasets_that_can_grow(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    sizes = {"record_dims": (6, 50), "datasets": 3, "samples_per_file": 2, "max_shape": (9, 50)}
    _, (path, *_) = made(tmp_path, format="hdf5", **sizes)
    with h5py.File(path) as file:
        assert set(file) == {"labels", "records_0", "records_1", "records_2"}
        assert all(file[name].shape == (2, 2, 50) and file[name].maxshape == (2, 9, 50) for name in set(file) - {"labels"})
        assert len(np.unique(file["records_2"][:])) > 50


@pytest.mark.parametrize(
    ("option", "names", "facts"),
    [
        ({}, {"records_0"}, ((6, 50), None, None, (6, 50))),
        ({"datasets": 3}, {"records_0", "records_1", "records_2"}, ((2, 50), None, None, (2, 50))),
        ({"chunk_dims": (3, 10)}, {"records_0"}, ((6, 50), (3, 10), None, (6, 50))),
        ({"max_shape": (9, 60)}, {"records_0"}, ((6, 50), ..., None, (9, 60))),
        ({"compression": "gzip"}, {"records_0"}, ((6, 50), ..., "gzip", (6, 50))),
        ({"compression": "lzf"}, {"records_0"}, ((6, 50), ..., "lzf", (6, 50))),
    ],
)
def test_each_option_of_hdf5_holds_by_itself(tmp_path, option, names, facts):
    """Shape of a record, chunks, compression and the shape up to which it may grow; and the bytes are the same."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    layout, (path, *_) = made(tmp_path, format="hdf5", record_dims=(6, 50), samples_per_file=2, **option)
    shape, chunks, compression, most = facts
    with h5py.File(path) as file:
        assert set(file) == {"labels", *names}
        for name in names:
            found = file[name]
            assert (found.shape[1:], found.compression, found.maxshape[1:]) == (shape, compression, most)
            assert chunks is ... or (found.chunks and found.chunks[1:]) == chunks
        if names == {"records_0"}:
            assert file["records_0"][:].tobytes() == drawn(layout, 0).tobytes()


def test_parquet_has_the_columns_asked_for(tmp_path):
    config = tmp_path / "dlio.yaml"
    columns = "[{name: id, dtype: int64}, {name: dense, size: 13}, {name: share, dtype: float64, read: false}]"
    config.write_text(
        "dataset: {format: parquet, num_files_train: 1, num_samples_per_file: 10, "
        f"parquet: {{row_group_size: 4, read_mode: row_group, columns: {columns}}}}}"
    )
    layout, samples = read_config(config)
    generate(layout, tmp_path / "data", samples=samples, seed=0, workers=1)
    file = pq.ParquetFile(tmp_path / "data" / "train" / "img_0_of_1.parquet")
    assert [(field.name, field.type) for field in file.schema_arrow] == [
        ("id", pa.int64()),
        ("dense", pa.binary(52)),
        ("share", pa.float64()),
    ]
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [4, 4, 2]
    table = file.read()
    assert np.isfinite(table["share"].to_numpy()).all() and len(set(table["id"].to_pylist())) == 10
    assert np.isfinite(np.frombuffer(b"".join(table["dense"].to_pylist()), np.float32)).all()


def read_picture(path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    with image.open(path) as picture:
        picture.load()
        assert picture.mode == "L"
        return np.asarray(picture, np.uint8)


def test_png_is_what_pillow_reads(tmp_path):
    layout, (path, *_) = made(tmp_path, format="png", record_dims=(90, 121))
    assert (read_picture(path) == drawn(layout, 0).reshape(90, 121)).all()


def coefficient(byte):
    """By ITU-T T.81, F.1.2: a code of n bits, here n - 1 ones and a zero, and 8 - n more; a first bit of 0 says negative."""
    size = 7 - f"{byte:08b}".index("0")
    bits = byte & (1 << size) - 1
    return bits if bits >> size - 1 else bits - (1 << size) + 1


ZIGZAG = sorted(((u, v) for u in range(8) for v in range(8)), key=lambda at: (sum(at), at[0] if sum(at) % 2 else at[1]))


@pytest.mark.parametrize("dims", [(90, 121), (8, 8), (1, 1000)])
def test_jpeg_shows_the_content_as_coefficients(tmp_path, dims):
    """Pillow decodes what the inverse transform, from its definition, makes of the content."""
    _, (path, *_) = made(tmp_path, format="jpeg", record_dims=dims, seed=3)
    down, across = -(-dims[0] // 8), -(-dims[1] // 8)
    content = Content(3, 0, 1, 0).take(64 * down * across).reshape(-1, 64)
    content = np.where(content >= 0xFE, content - 2, content)
    values = np.array([[coefficient(byte) for byte in block] for block in content.tolist()])
    values[1::2, 0] = -values[: len(values) // 2 * 2 : 2, 0]
    values[:, 0] = np.cumsum(values[:, 0])
    blocks = np.zeros((len(values), 8, 8))
    blocks[:, [u for u, _ in ZIGZAG], [v for _, v in ZIGZAG]] = values
    places = np.arange(8)
    basis = np.cos((2 * places + 1) * places[:, None] * np.pi / 16) / 2
    basis[0] /= 2**0.5
    pixels = np.clip(np.einsum("buv,ux,vy->bxy", blocks, basis, basis) + 128, 0, 255)
    expected = pixels.reshape(down, across, 8, 8).swapaxes(1, 2).reshape(8 * down, 8 * across)[: dims[0], : dims[1]]
    assert np.abs(read_picture(path) - expected).max() <= 2
    assert path.stat().st_size == pytest.approx(content.size, abs=256)


def test_jpeg_takes_the_wanted_bytes_and_does_not_compress(tmp_path):
    for asked in (64, 5000, 3 << 20):
        _, paths = made(tmp_path / str(asked), samples=2, format="jpeg", record_bytes=asked)
        content = paths[0].read_bytes()
        assert len(content) == pytest.approx(asked, rel=0.03, abs=300)
        decoded = read_picture(paths[0])
    assert len(zlib.compress(content, 9)) > 0.99 * len(content)
    assert 65 < decoded.std() < 80 and 110 < decoded.mean() < 146
    with pytest.raises(UsageError, match="at most 65500 pixels along a side"):
        FormatLayout(format="jpeg", record_dims=(70_000,))


@pytest.mark.parametrize("name", ["indexed_binary", "mmap_indexed_binary"])
def test_indices_find_every_record(tmp_path, name):
    layout, (path, _) = made(tmp_path, format=name, samples_per_file=2, record_bytes=1000)
    offsets, sizes = (np.fromfile(f"{path}.{kind}.idx", "<u8") for kind in ("off", "sz"))
    content = path.read_bytes()
    records = [content[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
    assert b"".join(records) == content == drawn(layout, 0).tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_names_counts_sizes_and_bytes_of_every_format(tmp_path, name):
    layout = FormatLayout(
        format=name,
        samples_per_file=1 if name in IMAGES else 3,
        record_bytes=20_000,
        record_stdev_bytes=4000,
        train_folders=3,
        evaluation_files=2,
        prefix="pic",
    )
    samples = 12 * layout.samples_per_file
    first = generate(layout, tmp_path / "a", samples=samples, workers=1)
    assert generate(layout, tmp_path / "b", samples=samples, workers=2).pieces == first.pieces
    names = {piece.name for piece in first.pieces}
    assert len(names) == layout.file_count(samples)
    for expected in (f"train/1/pic_10_of_12.{name}", f"valid/pic_1_of_2.{name}"):
        assert expected in names
    assert first.size_bytes == pytest.approx(plan(layout, samples=samples).size_bytes, rel=0.05)
    verify(tmp_path / "b", workers=1)


def test_files_do_not_repeat(tmp_path):
    manifest = generate(FormatLayout(format="bin", record_bytes=4096), tmp_path, samples=300, workers=1)
    assert len({piece.xxh3_128 for piece in manifest.pieces}) == 300


@pytest.mark.parametrize("distribution", ["normal", "lognormal"])
@pytest.mark.parametrize(("mean", "deviation"), [(65536, 6000), (146_600_628, 68_341_808), (10**5, 10**5), (10**5, 190_000)])
def test_mean_and_deviation_are_met_over_ten_thousand_files(distribution, mean, deviation):
    layout = FormatLayout(format="npy", record_bytes=mean, record_stdev_bytes=deviation, distribution=distribution)
    sizes = np.array([np.prod(layout.record_shape(int(size))) for size in layout.record_sizes(10_000, 7)], float)
    assert sizes.min() >= 1
    assert sizes.mean() == pytest.approx(mean, rel=0.01)
    assert sizes.std() == pytest.approx(deviation, rel=0.01)
    assert abs(np.corrcoef(sizes[1:], sizes[:-1])[0, 1]) < 0.05


def test_histogram_is_followed():
    layout = FormatLayout(format="npy", histogram=((1000, 1), (4000, 2), (9000, 1)))
    sizes, counts = np.unique(layout.record_sizes(10_000, 1), return_counts=True)
    assert sizes.tolist() == [1000, 4000, 9000]
    assert counts == pytest.approx([2500, 5000, 2500], abs=1)


@settings(max_examples=15)
@given(st.floats(0, 1))
def test_entropy_is_what_a_compressor_finds(entropy):
    content = Content(1, 2, entropy, 0).take(1 << 20).tobytes()
    assert len(zlib.compress(content, 6)) / len(content) == pytest.approx(entropy, abs=0.04)


@pytest.mark.parametrize("dedup", [0.0, 0.3, 0.8])
def test_dedup_is_what_a_block_hash_finds_in_files(tmp_path, dedup):
    _, paths = made(tmp_path, samples=8, format="npy", record_bytes=8 << 20, dedup=dedup)
    contents = [path.read_bytes() for path in paths]
    blocks = [content[at : at + 4096] for content in contents for at in range(0, 8 << 20, 4096)]
    assert 1 - len(set(blocks)) / len(blocks) == pytest.approx(dedup, abs=0.06)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"format": "hdf"}, "did you mean 'hdf5'"),
        ({"format": "npy", "compression": "gzip"}, "npy cannot have the compression"),
        ({"dtype": "uint9"}, "unknown element type 'uint9'"),
        ({"dtype": "U8"}, "is no number"),
        ({"dtype": "longdouble"}, "give float64 or complex128"),
        ({"format": "png", "dtype": "float32"}, "one uint8 image"),
        ({"samples_per_file": 0}, "number of samples per file is 0"),
        ({"record_bytes": 0}, "record length is 0"),
        ({"entropy": 1.5}, "entropy 1.5"),
        ({"record_stdev_bytes": 10**9}, "over twice its mean"),
        ({"distribution": "gamma"}, "unknown distribution 'gamma'"),
        ({"format": "npz", "compression": "zip", "compression_level": 10}, "compression level is 10"),
        ({"format": "hdf5", "chunk_dims": (8,)}, "do not fit records of 2 dimensions"),
        ({"format": "hdf5", "chunk_dims": (8, 0)}, "chunk dimension is 0"),
        ({"format": "hdf5", "max_shape": (8, 8)}, "less than a record's dimensions"),
    ],
)
def test_layouts_no_writer_can_write(parameters, message):
    with pytest.raises(UsageError, match=message):
        FormatLayout(**parameters)


CONFIG = """
model: {name: unet3d}
dataset:
  format: npz
  data_folder: data/unet3d
  num_files_train: 6
  num_files_eval: 1
  num_samples_per_file: 2
  record_length_bytes: 20000
  record_length_bytes_stdev: 2000
"""


def run(*arguments):
    parser = _Parser()
    GenerateCommand().prepare_parser(parser)
    return GenerateCommand().run(parser.parse_args([str(argument) for argument in arguments])).document


def test_dlio_configuration_generates_as_it_is(tmp_path):
    config = tmp_path / "dlio.yaml"
    config.write_text(CONFIG)
    document = run("--config", config, "-o", tmp_path / "data", "--entropy", 0.5)
    assert (document["samples"], document["files"]) == (12, 7)
    assert document["layout"]["entropy"] == 0.5
    assert len(list((tmp_path / "data" / "train").glob("img_*_of_6.npz"))) == 6
    assert (tmp_path / "data" / "valid" / "img_0_of_1.npz").exists()
    sized = run("--config", config, "-o", tmp_path / "none", "--size", "10MB", "--dry-run")
    assert 0.95e7 < sized["size_bytes"] <= 1.0e7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIG.replace("format", "fromat"), r"dataset.fromat: unknown key \(did you mean 'format'\?\)"),
        (CONFIG.replace("6", "six"), "num_files_train"),
        (CONFIG + "  hdf5: {chunk_dim: [8, 8]}", "chunk_dim"),
        (CONFIG + "  record_dims: [6, 4]\n  hdf5: {num_dset_per_record: 4}", "6 lines cannot be split evenly into 4 datasets"),
        (CONFIG.replace("npz", "parquet") + "  parquet: {columns: [{name: a, dtype: date}]}", "'a' has the type 'date'"),
        ("model: {name: x}", "no section 'dataset'"),
        ("dataset: [", "is not YAML"),
    ],
)
def test_bad_configurations_end_in_one_line(tmp_path, text, message):
    config = tmp_path / "dlio.yaml"
    config.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_config(config)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path / "none.yaml")


def test_samples_must_fill_files(tmp_path):
    layout = FormatLayout(samples_per_file=4)
    with pytest.raises(UsageError, match="5 samples cannot fill files of 4"):
        generate(layout, tmp_path, samples=5)
    with pytest.raises(UsageError, match="too small for one format sample"):
        generate(layout, tmp_path, size_bytes=1000)
    with pytest.raises(UsageError, match="3 samples cannot fill"):
        plan(layout, samples=3)


@pytest.mark.parametrize("name", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16"])
def test_bytes_are_finite_numbers_of_either_byte_order(name):
    """All ones would be NaN; with the top exponent bit cleared they are finite, and no other bit has changed."""
    dtype = np.dtype(name)
    content = np.full(8 * dtype.itemsize, 0xFF, np.uint8)
    numbers = as_numbers(content, dtype)
    assert numbers.dtype == dtype and np.isfinite(numbers).all()
    parts = len(numbers) * (2 if dtype.kind == "c" else 1)
    assert np.unpackbits(content).sum() == 8 * content.size - parts
