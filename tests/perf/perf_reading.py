"""Reading and checkpoints compared with rivals: fio with the same sizes, order and queue depth, and upstream DLIO's loaders.

    python -m tests.perf.perf_reading [DIRECTORY]

Set IOTWIN_DLIO_PYTHON to an interpreter that has dlio_benchmark 2.0.0 (see perf_datagen; TensorFlow too for tfrecord); without it
the figures against upstream are left out.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.benchmark.emulator.data.dataset import open_dataset
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
from iotwin.benchmark.emulator.run import emulate
from iotwin.common.progress import set_quiet
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import FormatLayout
from iotwin.workload_yaml import Checkpoint, Config, Dataset, Model, Reader, Train, Workflow
from tests.perf.figures import Figure, interleaved, median_ratio
from tests.perf.records import record_figures

_ROUNDS = 5
_FILES, _RECORD_BYTES = 24, 32 << 20
_CHECKPOINT_BYTES = 1 << 30
_WRITE_BYTES = 8 << 20
_UPSTREAM_FILES, _UPSTREAM_RECORD_BYTES, _UPSTREAM_EPOCHS = 32, 4 << 20, 3


def measure() -> list[Figure]:
    """Return the figures."""
    return list(figures())


def figures(parent: Path | None = None) -> Iterator[Figure]:
    """Yield the figures as they are measured, in a temporary directory below `parent`."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="iotwin-perf-") as temporary:
        directory = Path(temporary)
        for name in ("npy", "bin"):
            data = directory / name
            generate(FormatLayout(format=name, record_bytes=_RECORD_BYTES), data, samples=_FILES)
            for cache in ("warm", "cold"):
                yield _against_fio(name, data, cache)
            shutil.rmtree(data)
        yield _checkpoint_against_fio(directory)
        if interpreter := os.environ.get("IOTWIN_DLIO_PYTHON"):
            for name in ("npz", "hdf5", "tfrecord"):
                yield _against_upstream(name, directory, interpreter)


def _workload(data: Path, name: str, epochs: int = 1, batch_size: int = 1) -> Config:
    return Config(
        workflow=Workflow(),
        dataset=Dataset(data_folder=str(data), format=name),
        reader=Reader(read_threads=0, batch_size=batch_size, sample_shuffle="seed"),
        train=Train(epochs=epochs),
    )


def _against_fio(name: str, data: Path, cache: str) -> Figure:
    """Return our bytes per second over fio's, which makes the same reads in the same order."""
    config = _workload(data, name)
    samples = open_dataset(config).train
    batches = training_batches(config, len(samples), 1)
    order = [samples.files[number][0] for (number,) in batches]
    size_bytes = sum(Path(path).stat().st_size for path in order)

    log = data / "iolog"
    log.write_text(_iolog(order, _numpy_reads if name == "npy" else _one_read))

    def ours() -> float:
        _prepare(order, cache)
        with open_loader(config, samples) as loader:
            begin = time.perf_counter()
            read_bytes = sum(batch.size_bytes for batch in loader.epoch(1, batches))
            seconds = time.perf_counter() - begin
        assert read_bytes == size_bytes
        return read_bytes / seconds

    def fio() -> float:
        _prepare(order, cache)
        return _fio([f"--read_iolog={log}", "--replay_no_stall=1", "--invalidate=0", "--readonly"], "read")

    theirs, own = interleaved(_ROUNDS, fio, ours)
    detail = f"{_FILES} files of 32 MiB; ours {_rate(own)}, fio {_rate(theirs)}"
    return Figure(f"read {name}, {cache} page cache: bytes/s over fio's", median_ratio(own, theirs), 0.9, False, detail)


def _one_read(size_bytes: int) -> list[tuple[int, int]]:
    return [(0, size_bytes)]


def _numpy_reads(size_bytes: int) -> list[tuple[int, int]]:
    """Return (offset, bytes) of the reads by which numpy.load takes in a file, as strace shows them."""
    whole = size_bytes // 4096 * 4096
    return [(0, 4096), (0, 128), (0, 4096), (4096, whole - 4096), *([(whole, size_bytes - whole)] if size_bytes > whole else [])]


def _iolog(paths: Sequence[str], reads: Callable[[int], list[tuple[int, int]]]) -> str:
    """Return fio's log (version 2) of reading the files one after the other."""
    lines = ["fio version 2 iolog", *(f"{path} add" for path in paths)]
    for path in paths:
        calls = [f"{path} read {offset} {size}" for offset, size in reads(Path(path).stat().st_size)]
        lines += [f"{path} open", *calls, f"{path} close"]
    return "\n".join(lines) + "\n"


def _rate(rates: Sequence[float]) -> str:
    return f"{sorted(rates)[len(rates) // 2] / 1e6:.0f} MB/s"


def _prepare(paths: Sequence[str], cache: str) -> None:
    """Bring all files into the page cache, or put them out of it."""
    os.sync()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        if cache == "cold":
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while os.read(descriptor, 1 << 20):
                pass
        os.close(descriptor)


def _fio(options: Sequence[str], direction: str) -> float:
    """Return the bytes per second that fio reports for one job of plain read(2) or write(2) calls."""
    command = ["fio", "--name=job", "--ioengine=psync", "--iodepth=1", "--output-format=json", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["jobs"][0][direction]["bw_bytes"])


def _checkpoint_against_fio(directory: Path) -> Figure:
    """Return the bytes per second of a checkpoint of a GiB over those of fio, both synced at the end."""
    config = Config(
        model=Model(model_size_bytes=_CHECKPOINT_BYTES),
        dataset=Dataset(data_folder="none"),
        checkpoint=Checkpoint(checkpoint_folder=str(directory / "checkpoints"), fsync=True),
    )
    writer = CheckpointWriter(config)

    def ours() -> float:
        os.sync()
        (file,) = writer.save(1)
        shutil.rmtree(directory / "checkpoints" / "global_epoch1_step0")
        return file.size_bytes / (file.duration_ns / 1e9)

    def fio() -> float:
        os.sync()
        target = directory / "fio"
        options = [f"--filename={target}", "--rw=write", f"--bs={_WRITE_BYTES}", f"--size={_CHECKPOINT_BYTES}", "--end_fsync=1"]
        rate = _fio([*options, "--fallocate=none", "--refill_buffers=0"], "write")
        target.unlink()
        return rate

    theirs, own = interleaved(_ROUNDS, fio, ours)
    detail = f"writes of 8 MiB; ours {_rate(own)}, fio {_rate(theirs)}"
    return Figure("checkpoint of 1 GiB with fsync: bytes/s over fio's", median_ratio(own, theirs), 0.9, False, detail)


def _against_upstream(name: str, directory: Path, interpreter: str) -> Figure:
    """Return our samples per CPU second over upstream's, both loops without computation."""
    data = directory / "data"
    # Upstream opens evaluation files too, though it does not evaluate.
    layout = FormatLayout(format=name, record_bytes=_UPSTREAM_RECORD_BYTES, evaluation_files=4)
    generate(layout, data, samples=_UPSTREAM_FILES)
    if name == "hdf5":
        _rename_records(data)
    count = _UPSTREAM_FILES * _UPSTREAM_EPOCHS
    config = _workload(data, name, _UPSTREAM_EPOCHS, 4)
    config.output.folder = str(directory / "output")

    def ours() -> float:
        begin = time.process_time()
        emulate(config, None)
        return count / (time.process_time() - begin)

    theirs, own = interleaved(_ROUNDS, partial(_upstream, interpreter, directory, name, count), ours)
    shutil.rmtree(data)
    per_second: Callable[[Sequence[float]], str] = lambda rates: f"{sorted(rates)[len(rates) // 2]:.0f}"  # noqa: E731
    detail = f"samples of 4 MiB per CPU second: ours {per_second(own)}, upstream {per_second(theirs)}"
    return Figure(f"load {name}: samples per CPU second over upstream's", median_ratio(own, theirs), 2, False, detail)


def _rename_records(data: Path) -> None:
    """Give the records the name that dlio_benchmark 2.0.0 looks for, too."""
    import h5py

    for path in data.glob("*/*.hdf5"):
        with h5py.File(path, "a") as file:
            file["records"] = file["records_0"]


def _upstream(interpreter: str, directory: Path, name: str, count: int) -> float:
    script = Path(__file__).with_name("upstream_reading.py")
    numbers = map(str, (_UPSTREAM_FILES, _UPSTREAM_RECORD_BYTES, _UPSTREAM_EPOCHS))
    done = subprocess.run([interpreter, str(script), str(directory), name, *numbers], check=True, capture_output=True, text=True)
    return count / float(next(line for line in done.stdout.splitlines() if line.startswith("CPU seconds: ")).split()[-1])


def main() -> None:
    """Print the figures alone."""
    set_quiet(True)
    record_figures("reading", figures(Path(sys.argv[1]) if len(sys.argv) > 1 else None))


if __name__ == "__main__":
    main()
