"""Loaders by name: PyTorch's and TensorFlow's own against the native one, threads, plug-ins, and the order that all keep."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.emulator.data.dataset import open_dataset
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.numbers.permutation import Permutation
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import FormatLayout
from iotwin.workload_yaml import Config, Dataset, Model, Reader, Train, Workflow, dump
from tests.benchmark.strace import needs_strace, strace
from tests.processes import children

READ_CALLS = "openat,read,pread64,preadv,preadv2,readv,mmap,lseek,dup,fcntl,close"
FILES = 12
RUN = """
import sys
from iotwin.workload_yaml import load
from iotwin.benchmark.emulator.data.dataset import open_dataset
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
config = load(sys.argv[1])
samples = open_dataset(config).train
with open_loader(config, samples) as loader:
    for epoch in range(1, config.train.epochs + 1):
        for fetched in loader.epoch(epoch, training_batches(config, len(samples), epoch)):
            pass
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of FILES files of each of two formats."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("npy", "npz"):
        generate(FormatLayout(format=name, record_bytes=50_000), folder / name, samples=FILES, workers=1, seed=4)
    return folder


def workload(folder: Path, name: str = "npy", **reader: object) -> Config:
    return Config(
        dataset=Dataset(data_folder=str(folder / name), format=name),
        reader=Reader(batch_size=2, **{"read_threads": 2, "sample_shuffle": "seed", **reader}),  # type: ignore[arg-type]
        train=Train(epochs=3, seed=9),
    )


def calls_of(config: Config, tmp_path: Path, names: str = READ_CALLS) -> list[list[tuple[str, str, int | None, int | None]]]:
    """The calls on files of the data set, of each process that makes any."""
    dump(config, tmp_path / "twin.yaml")
    folder = Path(config.dataset.data_folder) / "train"
    processes = (
        [
            (call.name, Path(call.paths[-1]).name, call.requested, None if call.name in ("fcntl", "dup") else call.result)
            for call in process
            if call.paths and Path(call.paths[-1]).parent == folder and Path(call.paths[-1]).suffix
        ]
        for process in strace([sys.executable, "-c", RUN, str(tmp_path / "twin.yaml")], names, tmp_path)
    )
    return [calls for calls in processes if calls]


@needs_strace
@pytest.mark.torch
@pytest.mark.parametrize(("name", "workers", "persistent"), [("npy", 2, False), ("npz", 3, True), ("npz", 0, False)])
def test_processes_make_the_calls_of_pytorchs_own(files: Path, tmp_path: Path, name: str, workers: int, persistent: bool) -> None:
    config = workload(files, name, read_threads=workers)
    config.twin.persistent_workers = persistent
    native = calls_of(config, tmp_path)
    config.reader.data_loader = "pytorch"
    assert len(native) == (1 if workers == 0 else workers * (1 if persistent else 3))
    assert sorted(calls_of(config, tmp_path)) == sorted(native)


@needs_strace
def test_tf_data_reads_other_formats_by_the_same_calls(files: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="needs TensorFlow")
    config = workload(files, "npz")
    native = Counter(call for process in calls_of(config, tmp_path) for call in process)
    config.reader.data_loader = "tensorflow"
    assert Counter(call for process in calls_of(config, tmp_path) for call in process) == native


@needs_strace
def test_three_epochs_read_the_files_in_three_orders_of_the_formula(files: Path, tmp_path: Path) -> None:
    (opened,) = calls_of(workload(files, read_threads=0), tmp_path, "openat")
    order = [name for _, name, _, _ in opened]
    layout = FormatLayout(format="npy")
    expected = [
        [layout.file_name(FILES, number).rpartition("/")[2] for number in Permutation(FILES, 9, epoch)(np.arange(FILES))]
        for epoch in (1, 2, 3)
    ]
    assert order == [name for names in expected for name in names]
    assert expected[0] != expected[1] != expected[2] and sorted(expected[0]) == sorted(expected[2])


@pytest.mark.parametrize(("name", "package"), [("pytorch", "torch"), ("tensorflow", "tensorflow")])
def test_without_its_framework_a_workload_reads_natively(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]  # as if it were not installed
    assert len(epoch(workload(files, data_loader=name, read_threads=0))) == len(epoch(workload(files, read_threads=0)))
    assert f"{package} is not installed: the native loader reads" in capsys.readouterr().err


def epoch(config: Config) -> list[Fetched]:
    samples = open_dataset(config).train
    with open_loader(config, samples) as loader:
        return list(loader.epoch(1, training_batches(config, len(samples), 1)))


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_read_what_processes_read(files: Path, workers: int) -> None:
    config = workload(files, "npz", read_threads=workers)
    processes = epoch(config)
    config.reader.multiprocessing_context = "threads"
    threads = epoch(config)
    assert [(batch.samples, batch.size_bytes) for batch in threads] == [(batch.samples, batch.size_bytes) for batch in processes]


@pytest.mark.parametrize("loader", ["threads", "processes", "pytorch", "tensorflow"])
def test_a_damaged_file_ends_every_loader_in_one_line(tmp_path: Path, loader: str) -> None:
    if loader in ("pytorch", "tensorflow"):
        pytest.importorskip({"pytorch": "torch"}.get(loader, loader), reason=f"needs {loader}")
    generate(FormatLayout(format="npz", record_bytes=5000), tmp_path / "npz", samples=FILES, workers=1)
    config = workload(tmp_path, "npz", data_loader=loader if loader in ("pytorch", "tensorflow") else "native")
    config.reader.multiprocessing_context = "threads" if loader == "threads" else "fork"
    path = tmp_path / "npz" / "train" / "img_05_of_12.npz"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(IotwinError) as error:
        epoch(config)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.torch
def test_a_killed_worker_of_pytorchs_ends_in_one_line(files: Path) -> None:
    config = workload(files, data_loader="pytorch", read_threads=1, preprocess_time=30.0)
    samples = open_dataset(config).train
    before = children()

    def kill_the_first() -> None:
        while not (started := children() - before):
            time.sleep(0.01)
        os.kill(min(started), signal.SIGKILL)

    with open_loader(config, samples) as loader, pytest.raises(IotwinError) as error:
        threading.Thread(target=kill_the_first, daemon=True).start()
        next(loader.epoch(1, training_batches(config, len(samples), 1)))
    assert "DataLoader worker" in str(error.value) and "\n" not in str(error.value)


def test_batches_are_copied_where_asked_for(files: Path) -> None:
    config = workload(files, "npz")
    plain = epoch(config)
    config.reader.pin_memory = True
    assert [batch[:2] for batch in epoch(config)] == [batch[:2] for batch in plain]


PLUGIN = '''
import numpy as np
from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.loaders.base import MainLoader
from iotwin.benchmark.emulator.readers.sample import Sample


class FirstBytes:
    """Reads four bytes of every file."""

    def __init__(self, config, opener):
        self._open = opener

    def read(self, path, sample, samples):
        with self._open(path) as file:
            return Sample(file.read(0, 4), 4)


def main_loader(config, fetcher):
    return MainLoader(fetcher)


def backwards(config, samples, epoch, rank, ranks):
    return [np.array([number]) for number in range(samples - 1 - rank, -1, -ranks)]


class Nothing:
    """Writes no checkpoint, but tells of one."""

    def __init__(self, config, rank, ranks):
        self._rank = rank

    def save(self, epoch, step=0):
        return [Written(epoch, "nothing", 17, 0, 1)]

    def finish(self):
        return []

    def load(self):
        return []
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package `tiny` with a plug-in of every kind: a module and its metadata on sys.path."""
    (tmp_path / "tiny.py").write_text(PLUGIN)
    metadata = tmp_path / "tiny-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[iotwin.readers]\nfirst_bytes = tiny:FirstBytes\n[iotwin.loaders]\nin_main = tiny:main_loader\n"
        "[iotwin.samplers]\nbackwards = tiny:backwards\n[iotwin.checkpoints]\nnothing = tiny:Nothing\nbroken = tiny:Missing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("tiny", None)


@pytest.mark.usefixtures("plugin")
def test_plug_ins_of_every_kind_do_the_work(files: Path, tmp_path: Path) -> None:
    from iotwin.benchmark.emulator.run import emulate

    config = workload(
        files, data_loader="in_main", reader_classname="first_bytes", data_loader_sampler="backwards", read_threads=5
    )
    config.workflow = Workflow(checkpoint=True)
    config.checkpoint.checkpoint_mechanism_classname = "nothing"
    assert [(batch.samples, batch.size_bytes) for batch in epoch(config)] == [(1, 4)] * FILES
    measured = emulate(config, None)
    assert [file.size_bytes for file in measured.saved[:1]] == [17]
    config.reader.reader_classname = "tiny.FirstBytes"  # by module and class, without an entry point
    assert epoch(config)[0].size_bytes == 4


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("key", "name", "expected"),
    [
        ("reader.data_loader", "in_mian", r"reader.data_loader: 'in_mian' is unknown \(did you mean 'in_main'\?\)"),
        (
            "reader.data_loader_sampler",
            "no.such",
            "reader.data_loader_sampler: the plug-in 'no.such' cannot be loaded: No module",
        ),
        ("reader.reader_classname", "tiny.Missing", "reader.reader_classname: the plug-in 'tiny.Missing' cannot be loaded"),
        ("checkpoint.checkpoint_mechanism_classname", "broken", "the plug-in 'broken' cannot be loaded"),
    ],
)
def test_a_plug_in_that_is_not_there_is_a_usage_error(files: Path, tmp_path: Path, key: str, name: str, expected: str) -> None:
    from iotwin.benchmark.emulator.checkpoints.writer import open_checkpoints

    config = workload(files)
    section, _, field = key.partition(".")
    setattr(getattr(config, section), field, name)
    with pytest.raises(UsageError, match=expected):
        epoch(config)
        open_checkpoints(config)


def test_a_run_over_a_million_files_and_billions_of_samples_stays_small(tmp_path: Path) -> None:
    """The parts that hold names, order and batches, as a rank holds them; a sparse file stands in for Criteo's 671 GB."""
    from iotwin.datagen.layouts import DlrmLayout

    for name, samples in ((DlrmLayout.TRAIN_NAME, 4_195_197_692), (DlrmLayout.TEST_NAME, 1000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(samples * DlrmLayout.SAMPLE_BYTES)
    config = Config(
        model=Model(name="dlrm"),
        dataset=Dataset(data_folder=str(tmp_path), format="bin"),
        reader=Reader(batch_size=32768, read_threads=0, sample_shuffle="batches"),
        train=Train(total_training_steps=4),
    )
    dump(config, tmp_path / "twin.yaml")
    # VmHWM is the process's own peak, unlike ru_maxrss, which a child inherits from whoever forked it.
    code = RUN + "print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1], len(samples))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "twin.yaml")], capture_output=True, text=True, check=True)
    peak_kib, samples = map(int, done.stdout.split())
    assert samples == 4_195_197_692 and peak_kib < 150 * 1024
