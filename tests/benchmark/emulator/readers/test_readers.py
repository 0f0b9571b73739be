"""Every reader against what datagen generated: the bytes delivered are the bytes asked for, by whatever access."""

import bz2
import io
import lzma
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from iotwin.benchmark.emulator.data.dataset import SampleSet, open_dataset
from iotwin.benchmark.emulator.readers.access import Buffered, Direct, Mapped, scratch
from iotwin.benchmark.emulator.readers.open_reader import local_opener, make_reader
from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.content import Content
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout, FormatLayout
from iotwin.loops.emulation import EmulationOptions, generated_layout, run_workload
from iotwin.workload_yaml import Config, Dataset, Parquet, Reader, Storage, Workflow
from tests.benchmark.strace import needs_strace, strace

SEED, FILES, EVALUATION_FILES, RECORD_BYTES = 5, 3, 2, 6000
FORMATS = ("npy", "npz", "hdf5", "tfrecord", "csv", "parquet", "jpeg", "png", "indexed_binary", "mmap_indexed_binary", "bin")
SINGLE = ("jpeg", "png")
WAYS = {"buffered": {}, "pieces": {"transfer_size": 1000}, "direct": {"odirect": True}, "mapped": {"read_type": "mapped"}}


def layout_of(name: str, compression: str = "none") -> FormatLayout:
    return FormatLayout(
        format=name, samples_per_file=1 if name in SINGLE else 4, record_bytes=RECORD_BYTES, record_stdev_bytes=900,
        evaluation_files=EVALUATION_FILES, compression=compression,
    )  # fmt: skip


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of each format, in a folder of its name."""
    folder = tmp_path_factory.mktemp("formats")
    for name in FORMATS:
        layout = layout_of(name)
        generate(layout, folder / name, samples=FILES * layout.samples_per_file, workers=1, seed=SEED)
    return folder


def workload(folder: Path, name: str, way: str = "buffered", **dataset: object) -> Config:
    given = {"num_samples_per_file": layout_of(name).samples_per_file, **dataset}
    return Config(
        workflow=Workflow(evaluation=True),
        dataset=Dataset(data_folder=str(folder), format=name, **given),  # type: ignore[arg-type]
        reader=Reader(**WAYS[way]),  # type: ignore[arg-type]
    )


def records(layout: FormatLayout, index: int) -> NDArray[np.uint8]:
    """The records of file `index`, training files first: what datagen's own source of content says, shape (records, h, w)."""
    total = FILES * layout.samples_per_file
    height, width = layout.record_shape(int(layout.record_sizes(total, SEED)[index]))
    content = Content(SEED, index, 1.0, 0.0)
    count = layout.samples_per_file
    taken = content.take(count * height * width)
    if layout.format in ("npy", "npz"):  # have the samples on the last axis
        return np.moveaxis(taken.reshape(height, width, count), -1, 0)
    return taken.reshape(count, height, width)


def delivered(name: str, content: NDArray[np.generic] | memoryview) -> bytes:
    """The sample's numbers, out of what its format puts around them."""
    match name:
        case "tfrecord":
            return example_image(bytes(content))
        case "csv":
            return bytes(np.array(bytes(content).split(b",")).astype(np.uint8))
        case "png":
            from PIL import Image

            return np.asarray(Image.open(io.BytesIO(content))).tobytes()
    return content.tobytes()


def example_image(example: bytes) -> bytes:
    """The bytes of the feature `image` of a tf.Example, taken apart field by field (protobuf's wire format)."""

    def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
        place = 0
        while place < len(data):
            key, place = varint(data, place)
            length, place = varint(data, place)
            yield key >> 3, data[place : place + length]
            place += length

    def varint(data: bytes, place: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[place] & 127) << shift
            place, shift = place + 1, shift + 7
            if data[place - 1] < 128:
                return value, place

    (features,) = [body for number, body in fields(example) if number == 1]
    for _, entry in fields(features):
        parts = dict(fields(entry))
        if parts[1] == b"image":
            ((_, values),) = fields(parts[2])
            ((_, image),) = fields(values)
            return image
    raise AssertionError("no image")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_delivered_are_the_bytes_generated(generated: Path, name: str, way: str) -> None:
    folder = generated / name
    dataset = open_dataset(workload(folder, name, way))
    layout = layout_of(name)
    each = layout.samples_per_file
    assert (len(dataset.train), len(dataset.evaluation)) == (FILES * each, EVALUATION_FILES * each)
    for part, first in ((dataset.train, 0), (dataset.evaluation, FILES)):
        for index in (len(part) - 1, 0, len(part) // 2):
            number, inner = divmod(index, each)
            read = part.reader.read(part.files[number][0], inner, each)
            if name == "jpeg":  # whose pixels are not datagen's records
                assert bytes(read.content) == Path(part.files[number][0]).read_bytes()
            else:
                assert delivered(name, read.content) == records(layout, first + number)[inner].tobytes()
            assert part.read(index) >= (0 if name == "parquet" else len(read.content.tobytes()))


@pytest.mark.parametrize(
    ("name", "compression"), [("npz", "zip"), ("hdf5", "gzip"), ("csv", "gzip"), ("csv", "bz2"), ("csv", "xz")]
)
def test_compressed_files_deliver_what_they_hold(tmp_path: Path, name: str, compression: str) -> None:
    layout = layout_of(name, compression)
    generate(layout, tmp_path, samples=FILES * 4, workers=1, seed=SEED)
    samples = open_dataset(workload(tmp_path, name, compression=compression)).train
    read = samples.reader.read(samples.files[1][0], 2, 4)
    assert delivered(name, read.content) == records(layout, 1)[2].tobytes()


def test_only_the_sample_is_read_where_the_format_allows(generated: Path) -> None:
    for name in ("bin", "indexed_binary", "tfrecord"):
        samples = open_dataset(workload(generated / name, name)).train
        samples.read(1)
        size_bytes = samples.reader.read(samples.files[0][0], 1, 4).content.nbytes
        assert size_bytes <= samples.read(1) <= size_bytes + 16


COLUMNS = [{"name": "key", "dtype": "int64"}, {"name": "dense", "size": 250}, {"name": "text", "dtype": "uint8", "size": 30_000}]


def test_parquet_reads_the_columns_and_the_rows_asked_for(tmp_path: Path) -> None:
    def samples(columns: object, mode: str) -> SampleSet:
        config = workload(tmp_path, "parquet", num_files_train=1, num_samples_per_file=64)
        config.workflow.evaluation = False
        config.dataset.parquet = msgspec.convert({"columns": columns, "row_group_size": 16, "read_mode": mode}, Parquet)
        if not (tmp_path / "train").exists():
            layout, count = generated_layout(config)
            generate(layout, tmp_path, samples=count, workers=1, seed=SEED)
        return open_dataset(config).train

    group_bytes = 16 * (8 + 1000 + 30_000)
    whole, group = samples(COLUMNS, "default"), samples(COLUMNS, "row_group")
    assert 4 * group_bytes <= whole.read(20) < 4.2 * group_bytes and whole.read(63) == whole.read(0) == 0
    assert group_bytes <= group.read(20) < 1.2 * group_bytes and group.read(31) == 0
    assert group_bytes <= group.read(32) < group_bytes + 4096  # the footer is known by now
    unread = [*COLUMNS[:2], {**COLUMNS[2], "read": False}]
    part = samples(unread, "row_group")
    assert 16 * 1008 <= part.read(20) < 16 * 1008 + (1 << 17)  # pyarrow looks for the footer in the last 64 KiB
    path = part.files[0][0]
    row = pq.read_table(path).slice(20, 1).to_pylist()[0]
    assert bytes(part.reader.read(path, 20, 64).content) == row["key"].to_bytes(8, "little", signed=True) + row["dense"]
    with pytest.raises(IotwinError, match=r"has no column 'denses' \(did you mean 'dense'\?\)"):
        samples([{"name": "denses"}], "row_group").read(0)


def test_parquet_of_others_is_read_with_whatever_columns_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"text": ["a", None], "list": [[1, 2], [3]], "truth": [True, False], "number": pa.array([1, 2], pa.int16())}
    pq.write_table(pa.table(columns), path)
    reader = make_reader(Config(dataset=Dataset(format="parquet")), Buffered)
    read = [bytes(reader.read(str(path), row, 2).content) for row in (0, 1)]
    assert read == [b"a" + struct.pack("<qq", 1, 2) + b"True" + b"\1\0", struct.pack("<q", 3) + b"False" + b"\2\0"]


def test_an_hdf5_record_of_several_datasets_is_read_from_all_of_them(tmp_path: Path) -> None:
    config = workload(tmp_path, "hdf5", record_dims=[6, 5000], num_files_train=1)
    config.workflow.evaluation = False
    config.dataset.hdf5.num_dset_per_record = 3
    layout, count = generated_layout(config)
    generate(layout, tmp_path, samples=count, workers=1, seed=SEED)
    samples = open_dataset(config).train
    assert samples.read(2) == 30_000
    import h5py

    path = samples.files[0][0]
    with h5py.File(path) as file:
        expected = np.concatenate([file[f"records_{number}"][2] for number in range(3)])
    assert np.array_equal(samples.reader.read(path, 2, 4).content, expected)
    config.dataset.hdf5.num_dset_per_record, config.dataset.record_dims = 1, []
    assert open_dataset(config).train.read(2) == 10_000  # only the first is asked for
    config.dataset.hdf5.num_dset_per_record = 4
    with pytest.raises(IotwinError, match=r"not a whole HDF5 file with records_0 and .* and records_3"):
        open_dataset(config).train.read(2)


def test_samples_kept_in_memory_are_read_once(generated: Path) -> None:
    config = workload(generated / "npz", "npz")
    config.reader.read_type = "memory"
    samples = open_dataset(config).train
    first = samples.reader.read(samples.files[0][0], 1, 4)
    again = samples.reader.read(samples.files[0][0], 1, 4)
    assert first.read_bytes > 0 == again.read_bytes
    assert again.content.tobytes() == first.content.tobytes() == records(layout_of("npz"), 0)[1].tobytes()


def test_direct_fs_reads_past_the_page_cache(generated: Path) -> None:
    config = workload(generated / "bin", "bin")
    config.storage.storage_type = "direct_fs"
    samples = open_dataset(config).train
    path = samples.files[0][0]
    with local_opener(config)(path) as file:
        assert isinstance(file, Direct)
    assert samples.reader.read(path, 1, 4).content.tobytes() == records(layout_of("bin"), 0)[1].tobytes()


def test_synthetic_samples_are_read_from_nowhere(tmp_path: Path) -> None:
    config = Config(
        dataset=Dataset(
            data_folder=str(tmp_path / "none"), format="synthetic", num_files_train=1_281_167, record_length_bytes=500
        )
    )
    samples = open_dataset(config).train
    assert len(samples) == 1_281_167 and samples.read(1_000_000) == 0


def test_a_batch_of_the_criteo_file_is_one_read(tmp_path: Path) -> None:
    generate(DlrmLayout(), tmp_path, samples=5000, workers=1)
    config = Config(
        workflow=Workflow(evaluation=True),
        dataset=Dataset(data_folder=str(tmp_path), format="bin"),
        reader=Reader(batch_size=512),
    )
    dataset = open_dataset(config)
    assert (len(dataset.train), len(dataset.evaluation)) == (5000, DlrmLayout.test_samples(5000))
    rows = np.fromfile(tmp_path / DlrmLayout.TRAIN_NAME, "<i4").reshape(-1, 40)
    reader, path = dataset.train.reader, dataset.train.files[0][0]
    run = reader.read_run(path, 1024, 512, 5000)  # type: ignore[attr-defined]
    assert run.content.tobytes() == rows[1024:1536].tobytes()
    assert dataset.train.read_runs(np.arange(512)) == 512 * 160
    assert dataset.train.read_runs(np.array([7, 8, 9, 100, 3])) == 5 * 160


RUNS = """
import sys
import numpy as np
from iotwin.workload_yaml import Config, Dataset, Reader
from iotwin.benchmark.emulator.data.dataset import open_dataset
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
config = Config(
    dataset=Dataset(data_folder=sys.argv[1], format="bin"),
    reader=Reader(batch_size=512, read_threads=0, sample_shuffle="batches"),
)
samples = open_dataset(config).train
with open_loader(config, samples) as loader:
    for fetched in loader.epoch(1, training_batches(config, len(samples), 1)):
        assert fetched.size_bytes == 512 * 160
"""


@needs_strace
def test_random_batches_are_one_read_each_at_every_place_once(tmp_path: Path) -> None:
    generate(DlrmLayout(), tmp_path, samples=5000, workers=1)
    processes = strace([sys.executable, "-c", RUNS, str(tmp_path)], "preadv,preadv2,pread64", tmp_path)
    calls = [call for process in processes for call in process]
    reads = [call.result for call in calls if call.paths and call.paths[-1].endswith(DlrmLayout.TRAIN_NAME)]
    assert reads == [512 * 160] * 9


@needs_strace
@pytest.mark.parametrize("way", ["direct", "pieces", "mapped"])
def test_the_kernel_is_asked_as_chosen(generated: Path, tmp_path: Path, way: str) -> None:
    code = f"""
from iotwin.workload_yaml import Config, Dataset, Reader
from iotwin.benchmark.emulator.data.dataset import open_dataset
dataset = Dataset(data_folder={str(generated / "bin")!r}, format="bin", num_samples_per_file=4)
reader = Reader(**{WAYS[way]!r})
samples = open_dataset(Config(dataset=dataset, reader=reader)).train
samples.read(0)
"""
    names = "openat,preadv,preadv2,pread64,read,mmap"
    calls = [call for process in strace([sys.executable, "-c", code], names, tmp_path) for call in process]
    calls = [call for call in calls if call.paths and call.paths[-1].endswith(".bin")]
    reads = [call for call in calls if call.name.startswith(("pread", "read"))]
    if way == "mapped":
        assert not reads and any(call.name == "mmap" for call in calls)
    elif way == "direct":
        assert len(reads) == 1 and (reads[0].result or 0) % 4096 == 0
    else:
        assert {call.result for call in reads[:-1]} == {1000}


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(content[: len(content) // 2 - 1])
        case "foreign":
            path.write_bytes((b"\xff something else entirely\n" * len(content))[: len(content)])


@pytest.mark.parametrize("how", ["missing", "short", "foreign"])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "npy"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, name: str, how: str) -> None:
    layout = layout_of(name)
    generate(layout, tmp_path, samples=FILES * layout.samples_per_file, workers=1, seed=SEED)
    samples = open_dataset(workload(tmp_path, name)).train
    path = Path(samples.files[1][0])
    damage(path, how)
    last = 2 * layout.samples_per_file - 1
    if how == "foreign" and name in ("bin", "csv", "indexed_binary", "mmap_indexed_binary"):
        assert samples.read(last) > 0  # bytes are bytes to them
        return
    with pytest.raises(IotwinError) as error:
        samples.read(last)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["npz", "hdf5", "tfrecord", "csv", "parquet", "indexed_binary"])
def test_fewer_samples_than_the_workload_says_are_noticed(generated: Path, name: str) -> None:
    samples = open_dataset(workload(generated / name, name, num_samples_per_file=9)).train
    with pytest.raises(IotwinError, match=r"holds 4 samples, not the 9 or more of dataset\.num_samples_per_file"):
        samples.read(8)


@pytest.mark.parametrize("name", ["npy", "npz", "hdf5"])
def test_samples_of_another_shape_are_noticed(generated: Path, name: str) -> None:
    samples = open_dataset(workload(generated / name, name, record_dims=[3, 4])).train
    with pytest.raises(IotwinError, match=r"holds samples of shape \(\d+, \d+\), but dataset\.record_dims is \[3, 4\]"):
        samples.read(0)


def test_a_wrong_checksum_in_an_archive_is_noticed(tmp_path: Path) -> None:
    generate(layout_of("npz"), tmp_path, samples=FILES * 4, workers=1)
    samples = open_dataset(workload(tmp_path, "npz")).train
    path = Path(samples.files[0][0])
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with pytest.raises(IotwinError, match=r"\.npz: the checksum of its content is wrong"):
        samples.read(0)


def test_an_unknown_format_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dataset\.format: 'npx' is unknown \(did you mean 'np[yz]'\?\)"):
        make_reader(Config(dataset=Dataset(format="npx")), Buffered)


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(10_000))
    for way in (Buffered, Direct):
        with way(str(path)) as file:
            path.write_bytes(bytes(4096))
            with pytest.raises(IotwinError, match="it has become shorter"):
                file.read(0, 10_000)
            path.write_bytes(bytes(10_000))


def test_any_part_of_a_file_is_read_right_by_every_access(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(20_000)
    path = tmp_path / "a"
    path.write_bytes(content)
    for offset, size in ((0, 20_000), (4095, 2), (1, 12_287), (19_999, 1), (8192, 4096), (5, 0)):
        for way in (Buffered, Direct, Mapped):
            for piece in (None, 700):
                with way(str(path), piece) as file:
                    assert bytes(file.read(offset, size)) == content[offset : offset + size]
    assert len(scratch(3)) == 3


def test_millions_of_files_are_named_by_number(tmp_path: Path) -> None:
    layout, total = FormatLayout(format="jpeg", train_folders=100), 1_281_167
    (tmp_path / "train").mkdir()
    for folder in range(100):
        (tmp_path / "train" / f"{folder:03d}").mkdir()
    for index in sorted({number * (total - 1) // 4095 for number in range(4096)}):
        (tmp_path / layout.file_name(total, index)).write_bytes(b"x")
    config = Config(dataset=Dataset(data_folder=str(tmp_path), format="jpeg", num_subfolders_train=100))
    samples = open_dataset(config).train
    assert len(samples) == total
    assert samples.files[1_000_001] == (f"{tmp_path}/train/001/img_1000001_of_1281167.jpeg",)
    assert isinstance(samples, SampleSet) and not isinstance(samples.files, list)


@pytest.mark.parametrize("name", ["npy", "npz", "hdf5", "parquet", "bin"])
def test_samples_come_out_of_an_object_store(generated: Path, s3_server: str, name: str) -> None:
    options: dict[str, str | int | float | bool | None] = {
        "access_key_id": "key", "secret_access_key": "secret", "endpoint_url": s3_server, "region": "us-east-1",
    }  # fmt: skip
    config = workload(Path(name), name)
    config.storage = Storage(storage_type="s3", storage_root="s3://data", storage_options=options)
    from iotwin.benchmark.emulator.data.train_eval_files import open_folder
    from iotwin.benchmark.emulator.readers.object_stores import RemoteFolder, RemoteOpener

    folder, _ = open_folder(config)
    assert isinstance(folder, RemoteFolder) and folder.path == f"s3://data/{name}"
    files = RemoteOpener("s3", {"key": "key", "secret": "secret", "endpoint_url": s3_server}).file_system()
    files.put(str(generated / name) + "/", f"data/{name}/", recursive=True)
    layout = layout_of(name)
    samples = open_dataset(config).train
    each = layout.samples_per_file
    for index in (0, len(samples) - 1):
        number, inner = divmod(index, each)
        read = samples.reader.read(samples.files[number][0], inner, each)
        assert delivered(name, read.content) == records(layout, number)[inner].tobytes()
    with pytest.raises(IotwinError, match=r"^s3://data/none: no such data folder"):
        config.dataset.data_folder = "none"
        open_dataset(config)


def test_a_workload_of_mlperf_storage_generates_into_its_bucket_and_reads_from_there(s3_server: str, tmp_path: Path) -> None:
    config = msgspec.convert({
        "workflow": {"generate_data": True},
        "dataset": {"data_folder": "set/unet3d", "format": "npz", "num_files_train": 4, "record_length_bytes": 5000,
                    "keep_files": False},
        "storage": {"storage_type": "s3", "storage_root": "data", "storage_options": {
            "access_key_id": "key", "secret_access_key": "secret", "endpoint_url": s3_server, "region": "us-east-1",
            "s3_force_path_style": "True", "s3_max_attempts": 3}},
        "reader": {"batch_size": 2}, "output": {"folder": str(tmp_path / "output")},
    }, Config)  # fmt: skip
    document = run_workload(config, EmulationOptions())
    assert document is not None and document["iotwin"]["bytes_read"] > 4 * 4900
    assert [path.name for path in tmp_path.iterdir()] == ["output"]  # nothing of it is here
    with pytest.raises(IotwinError, match=r"^s3://data/set/unet3d: no such data folder"):  # what it generated, it removed
        open_dataset(config)


def test_decompressors_name_what_is_no_archive(tmp_path: Path) -> None:
    for suffix, compress in ((".gz", zlib.compress), (".bz2", bz2.compress), (".xz", lzma.compress)):
        path = tmp_path / f"a.csv{suffix}"
        path.write_bytes(compress(b"0,1\n2,3\n")[:-3] + b"zzz")
        samples = SampleSet([(str(path),)], 0, make_reader(Config(dataset=Dataset(format="csv")), Buffered))
        with pytest.raises(IotwinError) as error:
            samples.read(0)
        assert str(error.value).startswith(f"{path}: ")


def test_forked_processes_do_not_share_the_memory_they_read_into() -> None:
    scratch(8)[:] = b"original"
    pid = os.fork()
    if pid == 0:
        scratch(8)[:] = b"changed!"
        os._exit(0)
    os.waitpid(pid, 0)
    assert bytes(scratch(8)) == b"original"


def test_one_header_of_numpy_is_parsed_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.11.8, Python may fail if several threads parse at once."""
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    parse, parsing, most = np.lib.format.read_array_header_1_0, [0], [0]

    def observed(file: Any) -> Any:
        parsing[0] += 1
        most[0] = max(most[0], parsing[0])
        time.sleep(0.01)
        parsing[0] -= 1
        return parse(file)

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", observed)
    reader = make_reader(Config(dataset=Dataset(format="npy")), Buffered)
    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(lambda _: reader.read(str(tmp_path / "a.npy"), 0, 1).content.nbytes, range(8)))
    assert sizes == [96] * 8
    assert most == [1]
