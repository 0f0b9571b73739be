"""Generation compared with its rivals: dd on the same disk, a plain Python TFRecord writer, upstream DLIO; memory and planning.

    python -m tests.perf.perf_datagen [DIRECTORY]

Set IOTWIN_DLIO_PYTHON to an interpreter that has dlio_benchmark 2.0.0 (pip install --no-deps, with hydra-core, omegaconf, mpi4py,
pydftracer 1.0.2, psutil, torch, tensorflow-cpu, h5py, pandas, Pillow) to measure upstream side by side; without it its figures
measured earlier on a like machine stand in, and the detail says so. Where there are none, for jpeg, and for parquet, which it
does not write, the rival is a writer in upstream's manner: numpy's random bytes, handed to the library that writes the format.
"""

import math
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from iotwin.common.progress import set_quiet
from iotwin.datagen.generate import generate, plan
from iotwin.datagen.layouts import BertLayout, DlrmLayout, FormatLayout, Layout, Unet3dLayout
from tests.perf.figures import Figure, interleaved, median_ratio
from tests.perf.records import record_figures

_ROUNDS = 3
_DD_ROUNDS = 5
_SIZE_BYTES = 1 << 30
_AGAINST_DD: dict[str, Layout] = {
    "unet3d": Unet3dLayout(),
    "dlrm": DlrmLayout(),
    "npy": FormatLayout(format="npy", record_bytes=64 << 20),
    "raw binary": FormatLayout(format="bin", record_bytes=64 << 20),
}
_PYTHON_RECORDS = 300
# Files and bytes of a record. csv is small because upstream takes minutes for a few mebibytes.
_FORMATS = dict.fromkeys(("npz", "hdf5", "tfrecord", "jpeg", "png", "parquet"), (16, 4 << 20)) | {"csv": (2, 1 << 18)}
# Seconds of generation in process, one rank, and the mebibytes generated: DLIO at e1919d7 on a quiet 2-CPU machine.
_UPSTREAM_EARLIER = {"npz": (1.13, 128), "hdf5": (1.08, 128), "tfrecord": (1.41, 128), "png": (2.84, 64), "csv": (52, 4)}


def measure() -> list[Figure]:
    """Return the figures."""
    return list(figures())


def figures(parent: Path | None = None) -> Iterator[Figure]:
    """Yield the figures as they are measured, in a temporary directory below `parent`."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="iotwin-perf-") as temporary:
        directory = Path(temporary)
        yield from _against_dd(directory)
        yield _bert_against_python(directory)
        for name in _FORMATS:
            yield _against_upstream(name, directory)
        yield _memory(directory)
        yield _dry_run()


def _seconds(work: Callable[[], object]) -> float:
    os.sync()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _against_dd(directory: Path) -> Iterator[Figure]:
    """Yield the bytes per second of generation over those of dd writing as many with the same syncing."""
    source = directory / "source"
    with source.open("wb") as file:
        for _ in range(_SIZE_BYTES >> 26):
            file.write(np.random.default_rng().bytes(1 << 26))
    for name, layout in _AGAINST_DD.items():
        copy, data = directory / "copy", directory / "data"
        size_bytes = plan(layout, size_bytes=_SIZE_BYTES).size_bytes
        dd = ["dd", f"if={source}", f"of={copy}", "bs=1M", f"count={size_bytes >> 20}", "conv=fsync", "status=none"]
        theirs, ours = interleaved(_DD_ROUNDS, partial(_run_dd, dd, copy), partial(_run_generate, layout, data))
        speed = size_bytes / statistics.median(ours) / 1e6
        detail = f"{speed:.0f} MB/s, dd {size_bytes / statistics.median(theirs) / 1e6:.0f} MB/s"
        yield Figure(f"generate {name}: bytes/s over dd's", median_ratio(theirs, ours), 0.8, at_most=False, detail=detail)
    source.unlink()


def _run_dd(command: list[str], copy: Path) -> float:
    seconds = _seconds(partial(subprocess.run, command, check=True))
    copy.unlink()
    return seconds


def _run_generate(layout: Layout, data: Path) -> float:
    seconds = _seconds(partial(generate, layout, data, size_bytes=_SIZE_BYTES))
    shutil.rmtree(data)
    return seconds


def _python_crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _python_crc32c_table()


def _python_checksum(data: bytes) -> bytes:
    state = 0xFFFFFFFF
    for byte in data:
        state = _CRC_TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
    state ^= 0xFFFFFFFF
    return struct.pack("<I", (((state >> 15) | (state << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _python_varint(value: int) -> bytes:
    content = bytearray()
    while value >= 128:
        content.append(value & 127 | 128)
        value >>= 7
    content.append(value)
    return bytes(content)


def _python_field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + _python_varint(len(body)) + body


def _python_record(rng: np.random.Generator) -> bytes:
    """One BERT record made value by value, as a plain Python writer does."""
    entries = b""
    for name, kind, count in BertLayout.FEATURES:
        values = rng.integers(0, 2 if count in (1, 512) and name != "input_ids" else 512, count).tolist()
        if kind == "float":
            feature = _python_field(0x12, _python_field(0x0A, b"".join(struct.pack("<f", value) for value in values)))
        else:
            feature = _python_field(0x1A, _python_field(0x0A, b"".join(_python_varint(value) for value in values)))
        entries += _python_field(0x0A, _python_field(0x0A, name.encode()) + _python_field(0x12, feature))
    record = _python_field(0x0A, entries)
    length = struct.pack("<Q", len(record))
    return length + _python_checksum(length) + record + _python_checksum(record)


def _bert_against_python(directory: Path) -> Figure:
    """Return how many times as many bytes of BERT records as a plain Python writer we write in a CPU second."""
    rng = np.random.default_rng(0)
    samples = 100_000  # 200 to a shard: enough that a shard's making outweighs its opening and closing

    def theirs() -> float:
        begin = time.process_time()
        size_bytes = sum(len(_python_record(rng)) for _ in range(_PYTHON_RECORDS))
        return size_bytes / (time.process_time() - begin)

    def ours() -> float:
        begin = time.process_time()
        manifest = generate(BertLayout(), directory / "data", samples=samples, workers=1)
        used = time.process_time() - begin
        shutil.rmtree(directory / "data")
        return manifest.size_bytes / used

    python, numpy = interleaved(_ROUNDS, theirs, ours)
    detail = f"{statistics.median(numpy) / 1e6:.0f} MB per CPU second"
    return Figure("generate bert: over a plain Python writer", median_ratio(numpy, python), 20, at_most=False, detail=detail)


def _against_upstream(name: str, directory: Path) -> Figure:
    """Return upstream's CPU seconds over ours for the same records."""
    files, record_bytes = _FORMATS[name]
    gib = files * record_bytes / 2**30
    interpreter = os.environ.get("IOTWIN_DLIO_PYTHON")
    if interpreter and name != "parquet":
        theirs, rival = partial(_upstream_cpu_seconds, interpreter, name, directory), "upstream, side by side"
    elif name in _LIKE_UPSTREAM:
        theirs, rival = partial(_cpu_seconds_like_upstream, name, directory), "a writer in upstream's manner, side by side"
    else:
        seconds, mebibytes = _UPSTREAM_EARLIER[name]
        theirs, rival = (lambda: seconds / mebibytes * 1024 * gib), "upstream, measured earlier"
    upstream, used = interleaved(_ROUNDS, theirs, partial(_our_cpu_seconds, name, directory))
    detail = f"{statistics.median(used) / gib:.2f} CPU s/GiB; {statistics.median(upstream) / gib:.1f}: {rival}"
    return Figure(f"generate {name}: upstream's CPU over ours", median_ratio(upstream, used), 3, at_most=False, detail=detail)


def _save_jpeg(record: np.ndarray, path: Path) -> None:
    from PIL import Image

    Image.fromarray(record).save(path, format="JPEG")


def _save_parquet(record: np.ndarray, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"record": [record.tobytes()], "label": [0]}), path, compression="none")


_LIKE_UPSTREAM = {"jpeg": _save_jpeg, "parquet": _save_parquet}


def _cpu_seconds_like_upstream(name: str, directory: Path) -> float:
    files, record_bytes = _FORMATS[name]
    (directory / "data").mkdir()
    begin = time.process_time()
    for index in range(files):
        side = math.isqrt(record_bytes)
        _LIKE_UPSTREAM[name](np.random.randint(255, size=(side, side), dtype=np.uint8), directory / "data" / f"{index}.{name}")
    used = time.process_time() - begin
    shutil.rmtree(directory / "data")
    return used


def _our_cpu_seconds(name: str, directory: Path) -> float:
    files, record_bytes = _FORMATS[name]
    layout = FormatLayout(format=name, record_bytes=record_bytes)
    begin = time.process_time()
    generate(layout, directory / "data", samples=files, workers=1)
    used = time.process_time() - begin
    shutil.rmtree(directory / "data")
    return used


def _upstream_cpu_seconds(interpreter: str, name: str, directory: Path) -> float:
    script = Path(__file__).with_name("upstream_generation.py")
    command = [interpreter, str(script), str(directory), name, *map(str, _FORMATS[name])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(directory / "data")
    return float(next(line for line in done.stdout.splitlines() if line.startswith("CPU seconds: ")).split()[-1])


# A fresh interpreter that is its own only worker; VmHWM is its own peak, unlike ru_maxrss, which a child inherits.
_MEMORY_CODE = """
import sys
from pathlib import Path
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout, DlrmLayout, FormatLayout, Unet3dLayout
from iotwin.common.progress import set_quiet

set_quiet(True)
name = sys.argv[2]
workloads = {"unet3d": Unet3dLayout, "bert": BertLayout, "dlrm": DlrmLayout}
record_bytes = 100 << 20 if name != "csv" else 4 << 20
layout = workloads[name]() if name in workloads else FormatLayout(format=name, record_bytes=record_bytes)
request = {"size_bytes": 200 << 20} if name in workloads else {"samples": 2}
generate(layout, Path(sys.argv[1]), workers=1, **request)
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def _memory(directory: Path) -> Figure:
    """Return the peak resident memory of the worker that needs most, over workloads and formats."""
    peaks = {}
    for name in ("unet3d", "bert", "dlrm", *FormatLayout.FORMATS):
        command = [sys.executable, "-c", _MEMORY_CODE, str(directory / "data"), name]
        peaks[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024
        shutil.rmtree(directory / "data")
    name = max(peaks, key=lambda name: peaks[name])
    return Figure("generate: MiB of the largest worker", peaks[name], 300, detail=f"{name}; 100 MiB records, csv 4 MiB")


def _dry_run() -> Figure:
    """Return the seconds of the slowest dry run of a terabyte, the whole command."""
    slowest = max(
        _seconds(partial(subprocess.run, [*command, workload, "--size", "1TB"], check=True, capture_output=True))
        for workload in ("unet3d", "bert", "dlrm")
        for command in [[sys.executable, "-m", "iotwin", "generate", "--dry-run", "-o", "data"]]
    )
    return Figure("generate --size 1TB --dry-run: s", slowest, 2, detail="slowest of unet3d, bert, dlrm, from start to exit")


def main() -> None:
    """Print the figures alone."""
    set_quiet(True)
    record_figures("datagen", figures(Path(sys.argv[1]) if len(sys.argv) > 1 else None))


if __name__ == "__main__":
    main()
