"""How much faster is a twin on the virtual clock, and does it find the same utilisation and the same duration of an epoch?

    python -m tests.perf.perf_virtual

Five twins of parameters run on both clocks, alternately: images, images with checkpoints, records, images with loaders that take
longer than a step, and two ranks. Then synthetic samples show what the emulator's own loop leaves of the utilisation.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from iotwin.common.progress import set_quiet
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import load
from tests.conftest import ROOT
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_ROUNDS, _STEP_S, _STEPS = 3, 0.25, 40
_SPEED_UP, _AU_POINTS, _EPOCH_PERCENT = 10, 2, 3
_LOOP = {0.001: (2000, 99), 0.00025: (8000, 97)}  # steps and the least AU in %, by computation time
_IMAGES = ["dataset.format=npy", "dataset.record_length_bytes=200000", "reader.batch_size=2", "reader.read_threads=2"]
_TWINS = {
    "images": _IMAGES,
    "checkpoints": [*_IMAGES, "workflow.checkpoint=true", "checkpoint.steps_between_checkpoints=10", "model.model_size=20000000"],
    "records": ["dataset.format=tfrecord", "dataset.record_length_bytes=50000", "reader.batch_size=2", "reader.read_threads=2"],
    "slow loaders": [*_IMAGES, "reader.preprocess_time=0.3"],
    "two ranks": _IMAGES,
}


def measure() -> Iterator[Figure]:
    """Yield the speed-up of each twin, how far its AU and its epoch are from those in real time, and the AU without I/O."""
    set_quiet(True)
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir="/var/tmp") as name:
        fast = 0
        for twin, words in _TWINS.items():
            figures, speed_up = _compared(twin, words, Path(name) / twin.replace(" ", "-"))
            fast += speed_up >= _SPEED_UP
            yield from figures
        yield Figure(f"virtual: twins at least {_SPEED_UP} times as fast", fast, 3, at_most=False)
        for step_s, (steps, least) in _LOOP.items():
            for clock in ("real", "virtual"):
                yield _without_io(Path(name), step_s, steps, least, clock)


def _compared(twin: str, words: list[str], folder: Path) -> tuple[list[Figure], float]:
    ranks = 2 if twin == "two ranks" else 1
    samples = _STEPS * 2 * ranks
    common = [*words, f"dataset.num_files_train={samples}", f"dataset.data_folder={folder}/data", "train.epochs=2",
              f"train.computation_time={_STEP_S}", f"checkpoint.checkpoint_folder={folder}/checkpoints"]  # fmt: skip
    _run([*common, "workflow.generate_data=true", "workflow.train=false"], folder, 1)
    found: dict[str, list[dict[str, Any]]] = {"real": [], "virtual": []}
    for _ in range(_ROUNDS):
        for clock, runs in found.items():
            runs.append(_run([*common, f"twin.clock={clock}"], folder, ranks))
    real, virtual = ([run["iotwin"] for run in runs] for runs in found.values())
    assert {run["bytes_read"] for run in real} == {run["bytes_read"] for run in virtual}
    speed_up = median(run["elapsed_s"] for run in real) / median(run["clock"]["real_s"] for run in virtual)
    aus = [median(100 * run["training"]["au"] for run in runs) for runs in (real, virtual)]
    epochs = [median(sum(run["training"]["epoch_s"]) for run in runs) for runs in (real, virtual)]
    load_now = f"load {os.getloadavg()[0]:.1f}"
    figures = [
        Figure(f"virtual, {twin}: times as fast as real time", speed_up, detail=load_now),
        Figure(f"virtual, {twin}: AU, points off", abs(aus[1] - aus[0]), _AU_POINTS, detail=f"{aus[0]:.2f}, {aus[1]:.2f} %"),
        Figure(f"virtual, {twin}: epochs, % off", 100 * abs(epochs[1] / epochs[0] - 1), _EPOCH_PERCENT,
               detail=f"{epochs[0]:.2f}, {epochs[1]:.2f} s"),
    ]  # fmt: skip
    return figures, speed_up


def _without_io(folder: Path, step_s: float, steps: int, least: float, clock: str) -> Figure:
    words = ["dataset.format=synthetic", f"dataset.num_files_train={steps}", "reader.batch_size=1", "reader.read_threads=0",
             "train.epochs=1", f"train.computation_time={step_s}", f"twin.clock={clock}"]  # fmt: skip
    aus = [_run(words, folder, 1)["metric"]["train_au_mean_percentage"] for _ in range(_ROUNDS)]
    detail = ", ".join(f"{au:.2f}" for au in aus)
    return Figure(f"AU without I/O at {1000 * step_s:g} ms steps, {clock} clock, %", median(aus), least, False, detail)


def _run(words: list[str], folder: Path, ranks: int) -> dict[str, Any]:
    config = load(
        ROOT / "workload_yaml" / "workloads" / "default.yaml",
        [
            "++workload.workflow.evaluation=false",
            f"++workload.output.folder={folder}/output",
            *(f"++workload.{w}" for w in words),
        ],
    )
    done = run_workload(config, EmulationOptions(ranks=ranks, one_of_several=True))
    if done is None:
        raise RuntimeError("the run has no results on this rank")
    return done


if __name__ == "__main__":
    record_figures("virtual", measure())
