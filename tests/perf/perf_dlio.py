"""Upstream DLIO compared with the emulator: the same command line on six workloads of MLPerf Storage that both ship, scaled.

Set IOTWIN_DLIO_PYTHON to an interpreter that has dlio_benchmark 2.0.0 (see perf_datagen), PyTorch and TensorFlow; else nothing is
measured. The figures of a workload: what was generated, then samples per second and AU, ours over upstream's.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.perf.figures import Figure, interleaved

_ROUNDS = 3
_SCALED = {
    "dataset.num_files_train": 32,
    "dataset.record_length": 65536,
    "dataset.record_length_stdev": 0,
    "reader.batch_size": 4,
    "reader.read_threads": 1,
    "train.epochs": 3,
    "train.computation_time": 0.05,
    "workflow.checkpoint": False,
}
_RECORDS = {"dataset.num_files_train": 4, "dataset.num_samples_per_file": 8}
_WORKLOADS: dict[str, dict[str, Any]] = {
    "unet3d_v100": {},
    "unet3d_a100": {},
    "unet3d_h100": {},
    "cosmoflow_h100": {},
    "resnet50_h100": {**_RECORDS, "dataset.record_length": 114660},
    "bert_v100": {**_RECORDS, "dataset.record_length": 2500, "train.total_training_steps": 8},
}


def measure() -> list[Figure]:
    """Return the figures."""
    interpreter = os.environ.get("IOTWIN_DLIO_PYTHON")
    if interpreter is None:
        return []
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        return [
            figure for workload, changed in _WORKLOADS.items() for figure in _compared(interpreter, Path(name), workload, changed)
        ]


def _compared(interpreter: str, directory: Path, workload: str, changed: dict[str, Any]) -> list[Figure]:
    upstream = [interpreter, str(Path(__file__).with_name("upstream_run.py"))]
    ours = [sys.executable, "-P", "-m", "iotwin", "emulate", "--dlio", "--quiet"]
    commands = {"upstream": upstream, "ours": ours}
    for side, command in commands.items():
        _run(command, directory, workload, side, changed | {"workflow.generate_data": True, "workflow.train": False})
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}

    def one(side: str) -> float:
        runs[side].append(_run(commands[side], directory, workload, side, changed))
        return 0.0

    interleaved(_ROUNDS, lambda: one("upstream"), lambda: one("ours"))
    files = {side: _files(directory / f"{workload}-{side}") for side in commands}
    same = len(set(files["upstream"]) & set(files["ours"])) / max(1, len(set(files["upstream"]) | set(files["ours"])))
    sizes = {side: sum(found.values()) for side, found in files.items()}
    rate, au = (
        {side: statistics.median(run["metric"][key] for run in runs[side]) for side in commands}
        for key in ("train_throughput_mean_samples_per_second", "train_au_mean_percentage")
    )
    return [
        Figure(f"{workload}: share of files with the same name", same, 1, at_most=False,
               detail=f"{len(files['ours'])} of {sizes['ours']} bytes; upstream {len(files['upstream'])} of {sizes['upstream']}"),
        Figure(f"{workload}: samples/s, ours over upstream's", rate["ours"] / rate["upstream"],
               detail=f"{rate['ours']:.1f}; upstream {rate['upstream']:.1f}"),
        Figure(f"{workload}: AU, ours over upstream's", au["ours"] / au["upstream"],
               detail=f"{au['ours']:.1f} %; upstream {au['upstream']:.1f} %"),
    ]  # fmt: skip


def _run(command: list[str], directory: Path, workload: str, side: str, changed: dict[str, Any]) -> dict[str, Any]:
    """Run one side and return its summary; empty where it only generates."""
    output = directory / f"{workload}-{side}-output"
    settings = _SCALED | changed | {"dataset.data_folder": directory / f"{workload}-{side}"}
    words = [
        f"workload={workload}",
        *(f"++workload.{key}={value}" for key, value in settings.items()),
        f"++hydra.run.dir={output}",
    ]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": ""}
    if command[0] == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([*command, *words], cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join([*command, *words])}\n{done.stderr[-2000:]}")
    path = output / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _files(folder: Path) -> dict[str, int]:
    """The files of a data set and their sizes, without tfrecord's indices, which upstream leaves to DALI."""
    every = (path for path in folder.rglob("*_of_*") if path.is_file() and path.suffix != ".idx")
    return {str(path.relative_to(folder)): path.stat().st_size for path in every}
