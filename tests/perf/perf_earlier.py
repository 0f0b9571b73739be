"""The present programs and an earlier version, in turns: the tracer's start, end and jobs that print (libbpf),
data sets generated, and a data set read by the emulator.

Set IOTWIN_EARLIER to a folder that holds the earlier version's tree, with its probes compiled there by
`PYTHONPATH=FOLDER python -P -m iotwin.tracing_tools.probes`; else nothing is measured. Both run in this Python environment.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.conftest import ROOT
from tests.perf.figures import Figure, interleaved, median_ratio

_ROUNDS = 9
_LINES = "import sys\nfor _ in range(100000):\n    sys.stdout.write('x' * 59 + '\\n')\n"
_PRINTING = {
    "lines of 60 bytes": [sys.executable, "-c", _LINES],
    "4 KiB at a time": ["dd", "if=/dev/zero", "bs=4k", "count=50000", "status=none"],
    "1 MiB at a time": ["dd", "if=/dev/zero", "bs=1M", "count=1000", "status=none"],
}
_YAML = """
model: {name: earlier}
framework: pytorch
workflow: {generate_data: false, train: true}
dataset: {data_folder: data, format: npz, num_files_train: 64, num_samples_per_file: 1, record_length_bytes: 4194304}
reader: {data_loader: pytorch, batch_size: 4, read_threads: 2}
train: {epochs: 4, computation_time: 0.0}
"""


def measure() -> list[Figure]:
    """Return the figures."""
    earlier = os.environ.get("IOTWIN_EARLIER")
    if earlier is None:
        return []
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        now, before = partial(_traced, Path(name), ROOT), partial(_traced, Path(name), Path(earlier))
        figures = [_start(now, before)]
        for what, words in {"that does nothing": ["true"], **_PRINTING}.items():
            found = interleaved(_ROUNDS, lambda words=words: now(words)[1], lambda words=words: before(words)[1])
            job = f"a job {what}" if words == ["true"] else f"a job that prints {what}"
            detail = f"{statistics.median(found[0]):.3f} s against {statistics.median(found[1]):.3f} s"
            figures.append(
                Figure(f"whole trace of {job}: time over the earlier version's", median_ratio(*found), 1, detail=detail)
            )
        figures += _data_and_emulation(Path(name), Path(earlier))
    return figures


def _data_and_emulation(directory: Path, earlier: Path) -> list[Figure]:
    yaml = directory / "earlier.yaml"
    yaml.write_text(_YAML, encoding="utf-8")
    commands = {
        "generation of 1 GiB of unet3d": ["generate", "unet3d", "-o", "volumes", "--size", "1GiB", "--force"],
        "generation of 256 MiB of npz": ["generate", "--config", str(yaml), "-o", "data", "--force"],
        "emulated run of four epochs of these": ["emulate", str(yaml), "++workload.output.folder=results"],
    }
    return [_whole(what, directory, earlier, words) for what, words in commands.items()]


def _whole(what: str, directory: Path, earlier: Path, words: list[str]) -> Figure:
    found = interleaved(_ROUNDS, partial(_seconds, directory, ROOT, words), partial(_seconds, directory, earlier, words))
    detail = f"{statistics.median(found[0]):.2f} s against {statistics.median(found[1]):.2f} s"
    return Figure(f"{what}: time over the earlier version's", median_ratio(*found), 1.05, detail=detail)


def _seconds(directory: Path, root: Path, words: list[str]) -> float:
    """Return the seconds of a whole command of the version in `root`, on a disk that has nothing else to write."""
    os.sync()
    begin = time.monotonic()
    command = [sys.executable, "-P", "-m", "iotwin", *words, "--quiet"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def _start(now: "partial[tuple[float, float]]", before: "partial[tuple[float, float]]") -> Figure:
    found = interleaved(_ROUNDS, lambda: now(["date", "+%s.%N"])[0], lambda: before(["date", "+%s.%N"])[0])
    detail = f"{statistics.median(found[0]):.3f} s against {statistics.median(found[1]):.3f} s"
    return Figure("start of a traced job: time over the earlier version's", median_ratio(*found), 1, detail=detail)


def _traced(directory: Path, root: Path, words: list[str]) -> tuple[float, float]:
    """Seconds until a job of `date +%s.%N` began (0 of others), and until the whole command had ended."""
    trace = directory / "t.trace"
    shutil.rmtree(trace, ignore_errors=True)
    command = [sys.executable, "-P", "-m", "iotwin", "trace", "-o", str(trace), "--backend", "libbpf", "--", *words]
    begin_s, begin = time.time(), time.monotonic()
    printed = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=directory,
        check=True,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.PIPE if words[0] == "date" else subprocess.DEVNULL,
    ).stdout
    whole_s = time.monotonic() - begin
    return (float(printed.split()[0]) - begin_s if words[0] == "date" else 0.0), whole_s
