"""TFRecord streams: the calls of tf.data, every record once, and what happens to damaged files."""

import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.benchmark.emulator.data.dataset import open_dataset
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
from iotwin.common.errors import IotwinError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout, FormatLayout
from iotwin.workload_yaml import Config, Dataset, Reader, Train, dump
from tests.benchmark.strace import Call, needs_strace, strace
from tests.processes import wait_for

FILES, EACH = 5, 120
RUN = """
import sys
from iotwin.workload_yaml import load
from iotwin.benchmark.emulator.data.dataset import open_dataset
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
for twin in sys.argv[1:]:
    config = load(twin)
    samples = open_dataset(config).train
    with open_loader(config, samples) as loader:
        for epoch in (1, 2):
            print(sum(fetched.samples for fetched in loader.epoch(epoch, training_batches(config, len(samples), epoch))))
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of about 1.1 buffers of 256 KiB, so that records straddle them."""
    folder = tmp_path_factory.mktemp("records")
    layout = FormatLayout(format="tfrecord", samples_per_file=EACH, record_bytes=2400, record_stdev_bytes=500)
    generate(layout, folder, samples=FILES * EACH, workers=1, seed=4)
    return folder


def workload(folder: Path, **reader: object) -> Config:
    return Config(
        dataset=Dataset(data_folder=str(folder), format="tfrecord", num_samples_per_file=EACH, interleave=True),
        reader=Reader(batch_size=6, **{"read_threads": 0, **reader}),  # type: ignore[arg-type]
        train=Train(seed=3),
    )


def epoch(config: Config, number: int = 1, rank: int = 0, ranks: int = 1) -> list[Fetched]:
    samples = open_dataset(config, ranks).train
    with open_loader(config, samples, rank, ranks) as loader:
        return list(loader.epoch(number, training_batches(config, len(samples), number, rank, ranks)))


def data_calls(processes: list[list[Call]], folder: Path) -> Counter[tuple[str, str, int | None, int | None]]:
    return Counter(
        (call.name, Path(call.paths[-1]).name, call.requested, call.result)
        for calls in processes
        for call in calls
        if call.paths and call.paths[-1].startswith(str(folder)) and call.paths[-1].endswith(".tfrecord")
    )


@needs_strace
def test_files_are_read_by_the_calls_of_tf_data(records: Path, tmp_path: Path) -> None:
    """With and without threads and shuffling, each on a copy of its own, so that TensorFlow is imported once for both."""
    pytest.importorskip("tensorflow", reason="needs TensorFlow, for tf.data to compare with")
    copies = {shutil.copytree(records, tmp_path / how): (threads, how) for threads, how in ((0, "off"), (4, "seed"))}
    seen = {}
    for name in ("native", "tensorflow"):
        for copy, (threads, how) in copies.items():
            config = workload(copy, data_loader=name, read_threads=threads, sample_shuffle=how, file_shuffle=how)
            dump(config, copy.with_suffix(".yaml"))
        twins = [str(copy.with_suffix(".yaml")) for copy in copies]
        calls = strace([sys.executable, "-c", RUN, *twins], "openat,pread64,read,close", tmp_path)
        seen[name] = [data_calls(calls, copy) for copy in copies]
    for native, tensorflow in zip(seen["native"], seen["tensorflow"], strict=True):
        assert sum(count for (name, *_), count in native.items() if name == "pread64") >= 2 * 2 * FILES
        assert native == tensorflow


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("shuffle", ["off", "seed"])
def test_every_record_is_delivered_once(records: Path, threads: int, shuffle: str) -> None:
    fetched = epoch(workload(records, read_threads=threads, sample_shuffle=shuffle, shuffle_size=100))
    assert [batch.samples for batch in fetched] == [6] * (FILES * EACH // 6)
    assert sum(batch.size_bytes for batch in fetched) == sum(path.stat().st_size for path in records.glob("train/*.tfrecord"))


def test_the_order_is_repeated_by_a_rerun_and_fresh_each_epoch(records: Path) -> None:
    config = workload(records, sample_shuffle="seed", file_shuffle="seed", shuffle_size=50)
    sizes = [[batch.size_bytes for batch in epoch(config, number)] for number in (1, 1, 2)]
    assert sizes[0] == sizes[1] != sizes[2]


@pytest.mark.parametrize("ranks", [2, 7])
def test_ranks_share_the_records_by_files_or_else_one_by_one(records: Path, ranks: int) -> None:
    config = workload(records)
    config.reader.batch_size = 1
    config.train.total_training_steps = EACH * FILES // ranks
    share = [sum(batch.size_bytes for batch in epoch(config, 1, rank, ranks)) for rank in range(ranks)]
    total = sum(path.stat().st_size for path in records.glob("train/*.tfrecord"))
    assert all(abs(size - total / ranks) < 0.25 * total / ranks for size in share)


def test_steps_beyond_the_files_begin_them_again(records: Path) -> None:
    config = workload(records)
    samples = open_dataset(config).train
    with open_loader(config, samples) as loader:
        batches = [np.zeros(6, np.int64)] * (2 * len(samples) // 6)
        fetched = list(loader.epoch(1, batches))
    half = len(fetched) // 2
    assert [batch.size_bytes for batch in fetched[:half]] == [batch.size_bytes for batch in fetched[half:]]


@settings(max_examples=30)
@given(buffer_bytes=st.integers(1, 5000), interleave=st.booleans())
def test_any_buffer_and_any_cycle_find_every_record(tmp_path: Path, buffer_bytes: int, interleave: bool) -> None:
    layout = FormatLayout(format="tfrecord", samples_per_file=7, record_bytes=300, record_stdev_bytes=200)
    generate(layout, tmp_path / "data", samples=21, workers=1, seed=2)
    config = Config(
        dataset=Dataset(data_folder=str(tmp_path / "data"), format="tfrecord", num_samples_per_file=7, interleave=interleave),
        reader=Reader(transfer_size=buffer_bytes),
    )
    assert sum(batch.size_bytes for batch in epoch(config)) == sum(
        path.stat().st_size for path in tmp_path.glob("data/train/*.tfrecord")
    )


@pytest.mark.parametrize("how", ["short", "length", "missing"])
@pytest.mark.parametrize("threads", [0, 3])
def test_a_damaged_file_is_named(tmp_path: Path, how: str, threads: int) -> None:
    generate(FormatLayout(format="tfrecord", samples_per_file=20, record_bytes=300), tmp_path, samples=60, workers=1)
    path = tmp_path / "train" / "img_1_of_3.tfrecord"
    content = bytearray(path.read_bytes())
    config = workload(tmp_path, read_threads=threads)
    config.dataset.num_samples_per_file = 20
    samples = open_dataset(config).train
    match how:
        case "short":
            path.write_bytes(content[:-50])
        case "length":
            content[5] = 1
            path.write_bytes(content)
        case "missing":
            path.unlink()
    with open_loader(config, samples) as loader, pytest.raises(IotwinError) as error:
        list(loader.epoch(1, training_batches(config, len(samples), 1)))
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_bert_shards_are_found_and_streamed(tmp_path: Path) -> None:
    generate(BertLayout(), tmp_path, samples=600, workers=2)
    config = Config(
        dataset=Dataset(data_folder=str(tmp_path), format="tfrecord", num_files_train=500, interleave=True),
        reader=Reader(batch_size=48, data_loader="native"),
        train=Train(total_training_steps=4),
    )
    config.workflow.evaluation, config.dataset.num_files_eval = True, 1
    dataset = open_dataset(config)
    assert (len(dataset.train.files), dataset.evaluation.files[0][0]) == (500, f"{tmp_path}/eval_10k")
    assert [batch.samples for batch in epoch(config)] == [48] * 4


@pytest.mark.parametrize("threads", [0, 3])
def test_an_epoch_that_is_given_up_leaves_no_thread_and_no_file_open(records: Path, threads: int) -> None:
    config = workload(records, read_threads=threads, sample_shuffle="seed", shuffle_size=20)
    samples = open_dataset(config).train
    with open_loader(config, samples) as loader:
        for number in (1, 2):
            fetched = loader.epoch(number, training_batches(config, len(samples), number))
            next(iter(fetched))
            fetched.close()  # type: ignore[attr-defined]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("stream", "read-ahead"))]
    assert not [link for link in Path("/proc/self/fd").iterdir() if link.exists() and str(records) in str(link.readlink())]


def open_files(folder: Path) -> int:
    return sum(str(folder) in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


@pytest.mark.parametrize(("threads", "expected"), [(0, 1), (6, 3)])
def test_threads_open_twice_as_many_files_ahead(records: Path, threads: int, expected: int) -> None:
    """As tf.data's interleave, whose open files were counted: 24 with a cycle of 8."""
    config = workload(records, read_threads=threads)
    config.dataset.interleave, config.train.total_training_steps = False, 2
    samples = open_dataset(config).train
    with open_loader(config, samples) as loader:
        assert len(list(loader.epoch(1, training_batches(config, len(samples), 1)))) == 2
        wait_for(lambda: open_files(records) >= expected, "the files that threads open by themselves")
        assert open_files(records) == expected  # kept, as a job keeps its iterator
    assert open_files(records) == 0
