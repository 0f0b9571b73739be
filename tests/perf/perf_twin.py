"""Do wrong twins score lower than the fitted one, every time, and how near to a rerun does the fitted one come?"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import Unet3dLayout
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.workload_yaml import Config
from tests.perf.figures import Figure

# A short job, so that many runs fit into a measurement.
JOB = [
    "--epochs", "3", "--batch-size", "4", "--workers", "2", "--eval-every", "3", "--checkpoint-every", "3",
    "--base-channels", "4", "--depth", "3", "--crop", "40", "--overlap", "0", "--threads", "1", "--seed", "1",
]  # fmt: skip
_ROUNDS = 5


def generate_data(directory: Path) -> Path:
    """Make the job's data set in `directory` and return its path."""
    generate(Unet3dLayout(0.3), directory / "data", size_bytes=256 << 20, seed=1)
    return directory / "data"


def _double_batch(config: Config) -> None:
    config.reader.batch_size *= 2


def _halve_compute(config: Config) -> None:
    assert config.twin.recorded is not None
    config.train.computation_scale = 0.5


def _double_loaders(config: Config) -> None:
    config.reader.read_threads *= 2


_WRONG: dict[str, Callable[[Config], None]] = {
    "batch doubled": _double_batch,
    "compute halved": _halve_compute,
    "loader processes doubled": _double_loaders,
}


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        directory = Path(name)
        data = generate_data(directory)
        job = [sys.executable, "-m", "iotwin.workloads.unet3d", "--data", str(data), "--output", str(directory / "out"), *JOB]
        real = _trace(directory, "real", job)
        rerun = compare(real, _trace(directory, "rerun", job)).overall
        fitted_scores: list[float] = []
        wrong_scores: dict[str, list[float]] = {kind: [] for kind in _WRONG}
        for _ in range(_ROUNDS):
            fitted_scores.append(_score(directory, real, "fitted", lambda config: None))
            for kind, spoil in _WRONG.items():
                wrong_scores[kind].append(_score(directory, real, kind.replace(" ", "_"), spoil))
    return _figures(rerun, fitted_scores, wrong_scores)


def _trace(directory: Path, name: str, command: list[str]) -> Trace:
    manifest = trace_command(
        command, directory / f"{name}.trace", TraceOptions(forward_output=False, force=True, workload="unet3d")
    )
    assert manifest.exit_status == 0, (directory / f"{name}.trace" / "logs" / "stderr").read_text()
    return Trace(directory / f"{name}.trace")


def _score(directory: Path, real: Trace, name: str, spoil: Callable[[Config], None]) -> float:
    fitted = fit(real)
    config = fitted.config
    config.checkpoint.checkpoint_folder = config.output.folder = str(directory / f"{name}_out")
    spoil(config)
    path = directory / f"{name}.yaml"
    fitted.write(path)
    twin = _trace(directory, name, [sys.executable, "-m", "iotwin", "emulate", str(path)])
    return compare(real, twin).overall


def _figures(rerun: float, fitted: list[float], wrong: dict[str, list[float]]) -> list[Figure]:
    told = ", ".join(f"{score:.3f}" for score in fitted)
    figures = [Figure("fitted twin against the real job, lowest of 5", min(fitted), 0.90, False, f"{told}; a rerun {rerun:.3f}")]
    for kind, scores in wrong.items():
        times = sum(score < good for score, good in zip(scores, fitted, strict=True))
        told = ", ".join(f"{score:.3f}" for score in scores)
        figures.append(Figure(f"{kind}: times of 5 that it scores lower than the fitted twin", times, 5, False, told))
    return figures
