"""How alike are a twin and runs of its job that the fit has not seen: reruns, and runs of the job so edited as the twin is?

python -m tests.perf.perf_held_out [unet3d|bert|dlrm|images ...]

`images` is a PyTorch ImageFolder job on JPEGs, which nothing here was made for.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout, DlrmLayout, Unet3dLayout
from iotwin.loops.traced_run import run_traced
from iotwin.loops.twin_from_trace import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.workload_yaml import Config
from tests.perf.edited import edited_figure, scale_batch, set_workers
from tests.perf.figures import Figure
from tests.perf.made_up import make_images
from tests.perf.records import record_figures

_RERUNS = 2
_Options = dict[str, object]
# Each job by its options; smaller than half a minute on two CPUs.
_JOBS: dict[str, _Options] = {
    "unet3d": {
        "epochs": 4, "batch-size": 2, "workers": 2, "eval-every": 2, "checkpoint-every": 2, "base-channels": 4, "depth": 3,
        "crop": 32, "overlap": 0, "threads": 1,
    },
    "bert": {
        # As many records as twenty files hold, and several buffers of an evaluation: of fewer, when a file is read is chance.
        "batch-size": 16, "steps": 60, "eval-steps": 8, "layers": 1, "hidden": 32, "heads": 2, "sequence": 32,
        "learning-rate": 0.02, "threads": 1,
    },
    "dlrm": {
        "batch-size": 2048, "steps": 200, "eval-every": 100, "eval-batch-size": 2048, "eval-batches": 5, "embedding-size": 8,
        "most-categories": 1000, "bottom": "32,8", "top": "32", "threads": 1,
    },
    "images": {"epochs": 4, "batch": 8, "workers": 2},
}  # fmt: skip
_IMAGES = str(Path(__file__).parents[1] / "benchmark" / "fit" / "image_folder_job.py")
_ASKED = {"images": 0.90}  # overall; 0.95 of the others
# What is changed in the job, and the same in the twin's YAML.
_EDITS: dict[str, list[tuple[str, _Options, Callable[[Config], None]]]] = {
    "unet3d": [
        ("batch doubled", {"batch-size": 4}, lambda config: scale_batch(config, 2)),
        ("loader processes halved", {"workers": 1}, lambda config: set_workers(config, 1)),
        ("epochs doubled", {"epochs": 8}, lambda config: setattr(config.train, "epochs", 8)),
    ],
    "dlrm": [  # on the same samples
        ("batch doubled", {"batch-size": 4096, "steps": 100, "eval-every": 50}, lambda config: scale_batch(config, 2)),
    ],
}


def _generate(directory: Path, job: str) -> None:
    match job:
        case "unet3d":
            generate(Unet3dLayout(0.2), directory, samples=40, seed=1)
        case "bert":
            generate(BertLayout(), directory, size_bytes=64 << 20, seed=1)
        case "dlrm":
            generate(DlrmLayout(), directory, samples=900_000, seed=1)
        case "images":
            make_images(directory, 240)


def _run(folder: Path, job: str, name: str, **changed: object) -> Trace:
    options = _JOBS[job] | {key.replace("_", "-"): value for key, value in changed.items()}
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    path, data = folder / f"{name}.trace", str(folder / "data")
    program = ["-m", f"iotwin.workloads.{job}", "--data", data, "--output", str(folder / f"{name}_out")]
    run_traced([sys.executable, *([_IMAGES, data] if job == "images" else program), *words], path, job)
    return Trace(path)


def measure(jobs: Sequence[str] = tuple(_JOBS)) -> Iterator[Figure]:
    """Yield the figures of the `jobs`."""
    for job in jobs:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
            folder = Path(name)
            _generate(folder / "data", job)
            runs = [_run(folder, job, f"run{number}") for number in range(1 + _RERUNS)]
            made = make_twin([run.path for run in runs], folder / "twin", force=False)
            yield from held_out(job, made, compare(runs[0], runs[1], repeats=runs[1:]).to_document(), _ASKED.get(job, 0.95))
            for what, options, edit in _EDITS.get(job, []):
                real = _run(folder, job, what.replace(" ", "_"), **options)
                yield edited_figure(job, what, real, folder / "twin" / "twin.yaml", edit)


def held_out(job: str, made: dict[str, Any], among_runs: dict[str, Any], asked: float = 0.95) -> Iterator[Figure]:
    """The worst of the reruns. What is within the noise floor counts as met: a twin need not be more alike than a rerun."""
    floor, floors = among_runs["noise_floor"], among_runs["noise_floor_dimensions"]
    worst = min(made["held_out"], key=lambda each: float(each["overall"]))
    yield Figure(
        f"{job}: twin against a rerun not fitted, overall",
        worst["overall"],
        min(asked, floor),
        False,
        f"asked {asked} or the noise floor; reruns {floor:.4f}; {worst['verdict']}",
    )
    scores = {name: score for name, score in worst["dimensions"].items() if score < floors.get(name, 1.0)} or {"none": 1.0}
    lowest = min(scores, key=lambda name: float(scores[name]))
    yield Figure(
        f"{job}: its lowest dimension that is below the noise floor",
        scores[lowest],
        0.85,
        False,
        f"{lowest}; reruns {floors.get(lowest, 1.0):.3f}",
    )


if __name__ == "__main__":
    record_figures("held_out", measure(sys.argv[1:] or tuple(_JOBS)))
