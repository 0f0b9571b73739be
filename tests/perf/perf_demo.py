"""The demo's own figures: how alike real run, rerun and twin are, and how long it takes."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.perf.figures import Figure


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        directory = Path(name) / "demo"
        begin = time.monotonic()
        begin_s = time.time()
        subprocess.run([sys.executable, "-m", "iotwin", "demo", "-o", str(directory), "--quiet"], check=True)
        took_s = time.monotonic() - begin
        picture_s = (directory / "timeline.png").stat().st_mtime - begin_s
        summary = json.loads((directory / "summary.json").read_text())
        losses = json.loads((directory / "real_output" / "result.json").read_text())["train_loss"]
    twin, rerun = summary["real_vs_twin"], summary["real_vs_rerun"]
    lowest = min(twin["dimensions"], key=lambda name: twin["dimensions"][name])
    return [
        Figure("demo: real against twin, overall", twin["overall"], 0.90, False, twin["verdict"]),
        Figure("demo: real against twin, lowest part", twin["dimensions"][lowest], 0.75, False, lowest),
        Figure(
            "demo: rerun's overall less the twin's",
            rerun["overall"] - twin["overall"],
            0.0,
            False,
            f"rerun {rerun['overall']:.4f}",
        ),
        Figure(
            "demo: last epoch's loss over the first's",
            losses[-1] / losses[0],
            1.0,
            detail=str([round(loss, 3) for loss in losses]),
        ),
        Figure("demo: seconds", took_s, 300),
        Figure("demo: seconds until the first picture", picture_s, 180),
    ]
