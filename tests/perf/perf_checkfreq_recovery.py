"""What a job that goes on from a checkpoint reads of the samples before it, by the calls that were traced."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.perf.figures import Figure

_SAMPLES, _BATCH, _KEPT, _STOPPED = 64, 8, 4, 5  # a checkpoint every fourth step, and the step after which the job vanishes


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
        base = Path(name).resolve()
        _run("iotwin.main", "generate", "checkfreq", "--samples", _SAMPLES, "--scale", 0.1, "-o", base / "data")
        job = (
            "workloads.checkfreq", "--data", base / "data", "--output", base / "output", "--preset", "tiny", "-b", _BATCH,
            "--epochs", 1, "--workers", 0, "--noeval", "--chk-freq", _KEPT,
        )  # fmt: skip
        _run(*job, "--steps_per_run", _STOPPED)
        command = (sys.executable, "-m", *job, "--resume")
        _run("iotwin.main", "trace", "-o", base / "t", "--", *command)
        rows = json.loads(_run("iotwin.main", "stats", base / "t", "--by", "file", "--json"))["rows"]
        images = {row["path"] for row in rows if row["path"].startswith(f"{base}/data/train/") and row["read_bytes"]}
    left = _SAMPLES - _KEPT * _BATCH
    return [
        Figure(
            "CheckFreq: samples that a resumed job reads beyond those that were left",
            abs(len(images) - left),
            0,
            detail=f"{len(images)} of {_SAMPLES} files read, {left} left at step {_KEPT} of {_SAMPLES // _BATCH}; by its trace",
        )
    ]


def _run(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
