"""Generation speed, beside dd writing as many incompressible bytes to the same disk with the same syncing.

    python -m tests.perf.perf_datagen [DIRECTORY]

Runs alternate between dd and iotwin, because disks and neighbours change speed by the minute; ratios are of medians.
"""

import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from datagen.generate import generate, plan
from datagen.layouts import BertLayout, DlrmLayout, FormatLayout, Layout, Unet3dLayout
from tracing_tools.trace.progress import set_quiet

_ROUNDS = 3
_SIZE_BYTES = 2 << 30
_AGAINST_DD: dict[str, Layout] = {
    "unet3d": Unet3dLayout(),
    "dlrm": DlrmLayout(),
    "npy": FormatLayout(format="npy", record_bytes=64 << 20),
    "raw binary": FormatLayout(format="bin", record_bytes=64 << 20),
}
_PYTHON_RECORDS = 300


def _seconds(work: Callable[[], object]) -> float:
    os.sync()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _against_dd(name: str, layout: Layout, directory: Path, source: Path) -> None:
    """Print the bytes per second of generating `layout` over those of dd."""
    copy, data = directory / "copy", directory / "data"
    size_bytes = plan(layout, size_bytes=_SIZE_BYTES).size_bytes
    dd = ["dd", f"if={source}", f"of={copy}", "bs=1M", f"count={size_bytes >> 20}", "conv=fsync", "status=none"]
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        theirs.append(_seconds(partial(subprocess.run, dd, check=True)))
        copy.unlink()
        ours.append(_seconds(partial(generate, layout, data, size_bytes=_SIZE_BYTES)))
        shutil.rmtree(data)
    print(f"datagen {name} MB/s: {size_bytes / statistics.median(ours) / 1e6:.0f}")
    print(f"datagen {name} bytes/s over dd's: {statistics.median(theirs) / statistics.median(ours):.2f} (at least 0.8)")


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


def _bert_against_python(directory: Path) -> None:
    """Print how many times as many BERT records as a plain Python writer we write in a second of one CPU."""
    samples = 250_000  # 500 to a shard: enough that a shard's making outweighs its opening and closing
    ours, theirs = [], []
    rng = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        begin = time.process_time()
        size_bytes = sum(len(_python_record(rng)) for _ in range(_PYTHON_RECORDS))
        theirs.append(size_bytes / (time.process_time() - begin))
        begin = time.process_time()
        manifest = generate(BertLayout(), directory / "data", samples=samples, workers=1)
        ours.append(manifest.size_bytes / (time.process_time() - begin))
        shutil.rmtree(directory / "data")
    print(f"datagen bert, MB per CPU second: {statistics.median(ours) / 1e6:.0f}")
    print(f"datagen bert over a plain Python writer: {statistics.median(ours) / statistics.median(theirs):.0f} (at least 20)")


def _cpu_per_gib(directory: Path) -> None:
    """Print CPU seconds per GiB of every format, 16 files of 4 MiB (images: one each, csv: as many bytes of numbers)."""
    for name in FormatLayout.FORMATS:
        begin = time.process_time()
        manifest = generate(FormatLayout(format=name, record_bytes=4 << 20), directory / "data", samples=16, workers=1)
        used = time.process_time() - begin
        print(f"datagen {name} CPU s/GiB: {used / manifest.size_bytes * 2**30:.1f}")
        shutil.rmtree(directory / "data")


# A fresh interpreter that is its own only worker; VmHWM is its own peak, unlike ru_maxrss, which a child inherits.
_MEMORY_CODE = """
import sys
from pathlib import Path
from datagen.generate import generate
from datagen.layouts import BertLayout, DlrmLayout, FormatLayout, Unet3dLayout
from tracing_tools.trace.progress import set_quiet

set_quiet(True)
name = sys.argv[2]
workloads = {"unet3d": Unet3dLayout, "bert": BertLayout, "dlrm": DlrmLayout}
layout = workloads[name]() if name in workloads else FormatLayout(format=name, record_bytes=32 << 20)
generate(layout, Path(sys.argv[1]), size_bytes=200 << 20, workers=1)
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def _memory(directory: Path) -> None:
    """Print the peak resident memory of the worker that needs most, over all workloads and formats."""
    peaks = {}
    for name in ("unet3d", "bert", "dlrm", *(name for name in FormatLayout.FORMATS if name != "csv")):
        command = [sys.executable, "-c", _MEMORY_CODE, str(directory / "data"), name]
        peaks[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024
        shutil.rmtree(directory / "data")
    name = max(peaks, key=lambda name: peaks[name])
    print(f"datagen largest worker, MiB, {name}: {peaks[name]:.0f} (at most 300)")


def _plan_seconds() -> None:
    worst = max(_seconds(partial(plan, layout, size_bytes=10**12)) for layout in _AGAINST_DD.values())
    print(f"datagen plan of 1 TB s: {worst:.2f} (at most 2)")


def main() -> None:
    """Print one line per figure."""
    set_quiet(True)
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=parent) as temporary:
        directory = Path(temporary)
        source = directory / "source"
        with source.open("wb") as file:
            for _ in range(_SIZE_BYTES >> 26):
                file.write(np.random.default_rng().bytes(1 << 26))
        for name, layout in _AGAINST_DD.items():
            _against_dd(name, layout, directory, source)
        source.unlink()
        _bert_against_python(directory)
        _cpu_per_gib(directory)
        _memory(directory)
        _plan_seconds()


if __name__ == "__main__":
    main()
