"""Generation speed beside dd writing as many incompressible bytes to the same disk with the same syncing.

    python -m tests.perf.perf_datagen [DIRECTORY]

Runs alternate between dd and iotwin, because disks and neighbours change speed by the minute; figures are ratios of medians.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from datagen.generate import generate
from datagen.layouts import Unet3dLayout
from tracing_tools.trace.progress import set_quiet

_ROUNDS = 5
_SIZE_BYTES = 1 << 30


def _seconds(work: Callable[[], object]) -> float:
    os.sync()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _against_dd(name: str, make: Callable[[Path], int], directory: Path) -> None:
    """Print bytes per second of `make` (which returns what it wrote) over that of dd."""
    source, copy, data = directory / "source", directory / "copy", directory / "data"
    size_bytes = make(data)
    shutil.rmtree(data)
    source.write_bytes(np.random.default_rng(0).bytes(size_bytes))
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        dd = ["dd", f"if={source}", f"of={copy}", "bs=1M", "conv=fsync", "status=none"]
        theirs.append(_seconds(lambda dd=dd: subprocess.run(dd, check=True)))
        copy.unlink()
        ours.append(_seconds(lambda: make(data)))
        shutil.rmtree(data)
    rate = size_bytes / statistics.median(ours) / 1e6
    print(f"datagen {name} MB/s: {rate:.0f}")
    print(f"datagen {name} bytes/s over dd's: {statistics.median(theirs) / statistics.median(ours):.2f} (at least 0.8)")
    source.unlink()


def main() -> None:
    """Print one line per figure."""
    set_quiet(True)
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=parent) as temporary:
        directory = Path(temporary)
        _against_dd("unet3d", lambda data: generate(Unet3dLayout(), data, size_bytes=_SIZE_BYTES).size_bytes, directory)


if __name__ == "__main__":
    main()
