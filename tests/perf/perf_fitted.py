"""Fitted values compared with the job's arguments: counts must be the same, sizes and times within 5 %.

    python -m tests.perf.perf_fitted

Counts and sizes are those of real unet3d and dlrm jobs, by their command lines and files: for unet3d the parameters
(`iotwin fit --parameters`), for dlrm, whose samples are no files, the steps of the twin. Times are those of emulated jobs, which
know theirs: each step's computation as the emulator measured it in the run that was traced.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout, Unet3dLayout
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure
from tests.perf.perf_identification import DLRM, UNET3D

_COUNTS = (
    {"epochs": 3, "batch": 2, "workers": 2},
    {"epochs": 2, "batch": 4, "workers": 1},
    {"epochs": 2, "batch": 3, "workers": 0},
)
_BATCHES = (1024, 4096)
_COMPUTE_S, _STEPS = 0.05, 40


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        folder = Path(name)
        generate(Unet3dLayout(scale=0.15), folder / "unet3d", samples=24, seed=1)
        generate(DlrmLayout(), folder / "dlrm", samples=400_000, seed=1)
        pairs = [pair for number, job in enumerate(_COUNTS) for pair in _unet3d(folder, f"u{number}", job)]
        pairs += [pair for batch in _BATCHES for pair in _dlrm(folder, batch)]
        sizes = [pair for pair in pairs if pair[0].endswith("bytes")]
        yield _worst("fitted sizes", sizes)
        wrong = [f"{what} {found} for {asked}" for what, found, asked in pairs if found != asked and not what.endswith("bytes")]
        counted = len(pairs) - len(sizes)
        yield Figure(f"fitted counts of {counted} that are not the job's own", len(wrong), 0, detail="; ".join(wrong))
        yield _worst("fitted times", [_time(folder, layout, workers) for layout in ("unet3d", "dlrm") for workers in (0, 2)])


def _worst(name: str, pairs: list[tuple[str, float, float]]) -> Figure:
    what, found, asked = max(pairs, key=lambda pair: abs(pair[1] / pair[2] - 1))
    told = f"{what}: {found:.6g} for {asked:.6g}; {len(pairs)} of them"
    return Figure(f"{name}: largest error, of the job's own", abs(found / asked - 1), 0.05, detail=told)


def _traced(folder: Path, name: str, words: list[str]) -> Trace:
    manifest = trace_command([sys.executable, *words], folder / f"{name}.trace", TraceOptions(forward_output=False))
    assert manifest.exit_status == 0, (folder / f"{name}.trace" / "logs" / "stderr").read_text()
    return Trace(folder / f"{name}.trace")


def _unet3d(folder: Path, name: str, job: dict[str, int]) -> Iterator[tuple[str, float, float]]:
    """What the fit found and what the command line or the files say."""
    words = ["-m", "iotwin.workloads.unet3d", "--data", str(folder / "unet3d"), "--output", str(folder / name), *UNET3D]
    epochs = str(job["epochs"])
    words += ["--epochs", epochs, "--eval-every", "1", "--checkpoint-every", "1"]
    words += ["--batch-size", str(job["batch"]), "--workers", str(job["workers"])]
    config = fit_parameters(_traced(folder, name, words)).config
    yield f"{name} epochs", config.train.epochs, job["epochs"]
    yield f"{name} batch", config.reader.batch_size, job["batch"]
    yield f"{name} workers", config.reader.read_threads, job["workers"]
    yield f"{name} prefetch", config.reader.prefetch_size or 0, 2 * job["workers"]
    yield f"{name} epochs between evaluations", config.evaluation.epochs_between_evals, 1
    yield f"{name} epochs between checkpoints", config.checkpoint.epochs_between_checkpoints, 1
    train, _ = Unet3dLayout.split(Unet3dLayout.discover(folder / "unet3d"))
    yield f"{name} files", config.dataset.num_files_train or 0, len(train)
    found_bytes = float(config.dataset.record_length_bytes or 0)
    yield f"{name} sample bytes", found_bytes, float(np.mean([c.image.stat().st_size + c.mask.stat().st_size for c in train]))
    for file in config.twin.checkpoint.files:
        size_bytes = sum(size * count for size, count in file.write_sizes)
        yield f"{name} {file.name} bytes", size_bytes, (folder / name / file.name).stat().st_size


def _dlrm(folder: Path, batch: int) -> Iterator[tuple[str, float, float]]:
    words = ["-m", "iotwin.workloads.dlrm", "--data", str(folder / "dlrm"), "--output", str(folder / f"d{batch}"), *DLRM]
    words += ["--eval-every", "0", "--batch-size", str(batch), "--steps", str(_STEPS)]
    fitted = fit(_traced(folder, f"d{batch}", words))
    steps = fitted.confidence["train.steps_per_epoch"]["value"]
    yield f"dlrm {batch} steps", steps * fitted.config.train.epochs, _STEPS


def _time(folder: Path, layout: str, workers: int) -> tuple[str, float, float]:
    """The mean computation of a step, as fitted and as the emulator that was traced measured it."""
    name, batch = f"t{layout}{workers}", 2 if layout == "unet3d" else 4096
    by_batches = layout == "dlrm"  # shuffled whole, each read at once
    path = folder / f"{name}.yaml"
    path.write_text(f"""
dataset: {{data_folder: {folder / layout}, format: {"npy" if layout == "unet3d" else "bin"}}}
reader: {{batch_size: {batch}, read_threads: {workers}, sample_shuffle: {"batches" if by_batches else "seed"}}}
train: {{epochs: 3, total_training_steps: {_STEPS}, computation_time: {_COMPUTE_S}}}
output: {{folder: {folder / name}}}
twin: {{layout: {layout}}}
""")
    fitted = fit(_traced(folder, name, ["-m", "iotwin", "emulate", str(path)]))
    steps = pq.read_table(folder / name / "metrics.parquet").to_pandas()
    own_s = float(steps.loc[steps["phase"] == "train", "compute_ns"].mean()) / 1e9
    return f"{layout}, {workers} loaders, computation", fitted.confidence["train.computation_time"]["value"], own_s
