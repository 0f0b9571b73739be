"""Does similarity distinguish jobs, and is each twin nearest to its own? Three workloads of two configurations, three runs each.

    python -m tests.perf.perf_identification [DIRECTORY]

Twins are fitted to the first run of their job and held against the others. With a DIRECTORY the traces stay there, with the
matrix of real runs against twins as `iotwin compare FOLDER FOLDER` writes it.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout, Unet3dLayout
from iotwin.loops.similarity_results import compare_folders
from iotwin.loops.twin_from_trace import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure
from tests.perf.identification import all_scores, repeats_apart, twins_apart
from tests.perf.made_up import make_images
from tests.perf.records import record_figures

_RUNS = 3
UNET3D = ["--base-channels", "2", "--depth", "2", "--crop", "24", "--overlap", "0", "--threads", "1"]
DLRM = ["--embedding-size", "8", "--most-categories", "1000", "--bottom", "32,8", "--top", "32", "--threads", "1"]
_IMAGES = str(Path(__file__).parents[1] / "benchmark" / "fit" / "image_folder_job.py")


def _jobs(data: Path) -> dict[str, list[str]]:
    """The command of each job, without where its output goes."""
    unet3d = ["-m", "iotwin.workloads.unet3d", "--data", str(data / "unet3d"), *UNET3D]
    unet3d += ["--epochs", "3", "--eval-every", "0", "--checkpoint-every", "3"]
    dlrm = ["-m", "iotwin.workloads.dlrm", "--data", str(data / "dlrm"), "--eval-every", "0", *DLRM]
    images = [_IMAGES, str(data / "images"), "--epochs", "3"]
    return {
        "unet3d-batch2": [*unet3d, "--batch-size", "2", "--workers", "3"],
        "unet3d-batch4": [*unet3d, "--batch-size", "4", "--workers", "1"],
        "dlrm-batch1024": [*dlrm, "--batch-size", "1024", "--steps", "150"],
        "dlrm-batch4096": [*dlrm, "--batch-size", "4096", "--steps", "60"],
        "images-batch8": [*images, "--batch", "8", "--workers", "1"],
        "images-batch24": [*images, "--batch", "24", "--workers", "3"],
    }


def _generate(data: Path) -> None:
    generate(Unet3dLayout(scale=0.15), data / "unet3d", samples=24, seed=1)
    generate(DlrmLayout(), data / "dlrm", samples=400_000, seed=1)
    make_images(data / "images", 240)


def _trace(folder: Path, name: str, words: list[str]) -> Path:
    output = [] if words[0] == _IMAGES else ["--output", str(folder / "output" / name)]
    trace = folder / "real" / f"{name}.trace"
    manifest = trace_command([sys.executable, *words, *output], trace, TraceOptions(forward_output=False, workload=name))
    assert manifest.exit_status == 0, (trace / "logs" / "stderr").read_text()
    return trace


def _runs(folder: Path, jobs: dict[str, list[str]]) -> dict[str, list[Path]]:
    """Trace every job again and again, in turn, so that no job has the machine's quiet minutes to itself."""
    (folder / "real").mkdir(parents=True)
    runs: dict[str, list[Path]] = {name: [] for name in jobs}
    for number in range(1, _RUNS + 1):
        for name, words in jobs.items():
            runs[name].append(_trace(folder, f"{name}-{number}", words))
    return runs


def _twins(folder: Path, runs: dict[str, list[Path]]) -> list[Path]:
    """The traces of the twins, by name of their jobs in `folder`/twins."""
    (folder / "twins").mkdir()
    twins = []
    for name, traces in runs.items():
        made = make_twin(traces[:1], folder / "making" / name, force=False)
        trace = folder / "making" / name / f"round-{made['best_round']}" / "twin.trace"
        twins.append(trace.rename(folder / "twins" / f"{name}.trace"))
    return twins


def measure(directory: Path | None = None) -> Iterator[Figure]:
    """Yield the figures; keep traces and the matrix picture in `directory`, where it is given."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as scratch:
        folder = Path(scratch) if directory is None else directory
        _generate(Path(scratch) / "data")
        runs = _runs(folder, _jobs(Path(scratch) / "data"))
        twins = _twins(folder, runs)
        yield from _figures(runs, twins)
        if directory is not None:
            compare_folders(folder / "real", folder / "twins", folder / "results")


def _figures(runs: dict[str, list[Path]], twins: list[Path]) -> Iterator[Figure]:
    own = list(range(len(runs)))
    job = [number for number in own for _ in range(_RUNS)]
    real = [Trace(path) for paths in runs.values() for path in paths]
    scores = all_scores(real, [*real, *map(Trace, twins)])
    of_repeats = repeats_apart(scores[:, : len(real)], job)
    unseen = np.arange(len(real)) % _RUNS > 0  # the fit has seen the first run of each job
    of_twins = twins_apart(scores[unseen][:, len(real) :], np.array(job)[unseen].tolist(), own)
    yield Figure(
        f"identification: of {len(real)} real runs, % whose reruns are all nearer than any other job",
        float((of_repeats > 0).mean() * 100),
        100,
        False,
        f"nearer by {of_repeats.min():.3f} at least",
    )
    yield Figure(
        f"identification: of {len(own)} twins, % whose nearest real job is their own",
        float((of_twins > 0).mean() * 100),
        100,
        False,
        f"nearer by {of_twins.min():.3f} at least, to runs not fitted",
    )


if __name__ == "__main__":
    record_figures("identification", measure(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
