"""How much faster is a twin on the virtual clock, and does it find the same utilisation and the same duration of an epoch?

    python -m tests.perf.perf_virtual [PART ...]

Twins of parameters, the twin of a pipeline's plan and the twin of the demo's job run on both clocks, alternately. Then they run
once on each clock under strace, which shows whether each thread makes the same calls in the same order. The part "without I/O"
runs on synthetic samples, which show what the emulator's own loop leaves of the utilisation.
"""

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from iotwin.command_lines import own_job
from iotwin.common.progress import set_quiet
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import Unet3dLayout
from iotwin.loops.demo_steps import JOB
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.loops.pipeline_twin import PipelineTraining, pipeline_twin
from iotwin.loops.traced_run import run_traced
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml import Config, dump, load
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage
from tests.benchmark.thread_calls import calls_by_thread
from tests.conftest import ROOT
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_ROUNDS, _STEP_S, _STEPS = 3, 0.25, 40
_SPEED_UP, _AU_POINTS, _EPOCH_PERCENT = 10, 2, 3
_LOOP = {0.001: (2000, 99), 0.00025: (8000, 97)}  # steps and the least AU in %, by computation time
_IMAGES = ["dataset.format=npy", "dataset.record_length_bytes=200000", "reader.batch_size=2", "reader.read_threads=2"]
_PARAMETERS = {
    "images": _IMAGES,
    "checkpoints": [*_IMAGES, "workflow.checkpoint=true", "checkpoint.steps_between_checkpoints=10", "model.model_size=20000000"],
    "records": ["dataset.format=tfrecord", "dataset.record_length_bytes=50000", "reader.batch_size=2", "reader.read_threads=2"],
    "slow loaders": [*_IMAGES, "reader.preprocess_time=0.3"],
    "two ranks": _IMAGES,
}
_WITHOUT_IO = "without I/O"
_PARTS = (*_PARAMETERS, "pipeline", "demo", _WITHOUT_IO)


class _Twin(NamedTuple):
    name: str
    yaml: Path
    ranks: int = 1
    must_be_fast: bool = True  # computing dominates


def measure(names: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the parts with these names, by default of all."""
    set_quiet(True)
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir="/var/tmp") as name:
        for part in names or _PARTS:
            folder = Path(name) / part.replace(" ", "-").replace("/", "-")
            folder.mkdir()
            if part == _WITHOUT_IO:
                yield from _without_io(folder)
            else:
                made = {"pipeline": _pipeline, "demo": _demo}.get(part, partial(_parameters, part))(folder)
                yield from _figures(made, folder)


def _parameters(name: str, folder: Path) -> _Twin:
    """Generate the data of a twin of parameters, and return the twin."""
    ranks = 2 if name == "two ranks" else 1
    words = [*_PARAMETERS[name], f"dataset.num_files_train={_STEPS * 2 * ranks}", f"dataset.data_folder={folder}/data",
             "train.epochs=2", f"train.computation_time={_STEP_S}",
             f"checkpoint.checkpoint_folder={folder}/checkpoints"]  # fmt: skip
    run_workload(_workload([*words, "workflow.generate_data=true", "workflow.train=false"], folder), EmulationOptions())
    dump(_workload(words, folder), folder / "twin.yaml")
    return _Twin(name, folder / "twin.yaml", ranks, name != "slow loaders")


def _workload(words: list[str], folder: Path) -> Config:
    fixed = ["workflow.evaluation=false", f"output.folder={folder}/output"]
    return load(ROOT / "workload_yaml" / "workloads" / "default.yaml", [f"++workload.{word}" for word in (*fixed, *words)])


def _pipeline(folder: Path) -> _Twin:
    """Generate the data of a pipeline of 2 stages, as `iotwin pipedream twin` writes it, and return the twin."""
    generate(Unet3dLayout(scale=0.05), folder / "data", samples=30, workers=1)
    plan = PipelinePlan(tuple(Stage(number, (number,), 0.1, 0.2, parameter_bytes=1e6) for number in range(2)))
    config = pipeline_twin(plan, folder / "data", PipelineTraining(1, 20, 2))
    config.checkpoint.checkpoint_folder, config.output.folder = str(folder / "checkpoints"), str(folder / "output")
    dump(config, folder / "twin.yaml")
    return _Twin("pipeline", folder / "twin.yaml", 2)


def _demo(folder: Path) -> _Twin:
    """Trace the job of `iotwin demo`, and return its twin."""
    from iotwin.benchmark.fit.fit_trace import fit

    generate(Unet3dLayout(0.3), folder / "data", size_bytes=384 << 20, seed=1)
    job = own_job("iotwin.workloads.unet3d", "--data", folder / "data", "--output", folder / "job", *JOB)
    run_traced(job, folder / "job.trace", "unet3d", prints_events=False)
    fitted = fit(Trace(folder / "job.trace"))
    fitted.config.checkpoint.checkpoint_folder = str(folder / "checkpoints")
    fitted.config.output.folder = str(folder / "output")
    fitted.write(folder / "twin.yaml", force=True)
    return _Twin("demo", folder / "twin.yaml", must_be_fast=False)


def _figures(twin: _Twin, folder: Path) -> Iterator[Figure]:
    """Run the twin on both clocks in turns, and yield its figures."""
    found: dict[str, list[dict[str, Any]]] = {"real": [], "virtual": []}
    for _ in range(_ROUNDS):
        for clock, runs in found.items():
            runs.append(_run(load(twin.yaml, [f"++twin.clock={clock}"]), twin.ranks))
    yield from _clocks_compared(twin, *found.values())
    yield _call_order(twin, folder)


def _clocks_compared(twin: _Twin, real: list[dict[str, Any]], virtual: list[dict[str, Any]]) -> Iterator[Figure]:
    assert {run["iotwin"]["bytes_read"] for run in real} == {run["iotwin"]["bytes_read"] for run in virtual}
    speed_up = median(run["iotwin"]["elapsed_s"] for run in real) / median(run["iotwin"]["clock"]["real_s"] for run in virtual)
    aus = [median(_au_percent(run) for run in runs) for runs in (real, virtual)]
    epochs = [median(_training_s(run) for run in runs) for runs in (real, virtual)]
    least = _SPEED_UP if twin.must_be_fast else None
    name = f"virtual, {twin.name}"
    yield Figure(f"{name}: times as fast as real time", speed_up, least, False, f"load {os.getloadavg()[0]:.1f}")
    yield Figure(f"{name}: AU, points off", abs(aus[1] - aus[0]), _AU_POINTS, detail=f"{aus[0]:.2f}, {aus[1]:.2f} %")
    off = 100 * abs(epochs[1] / epochs[0] - 1)
    yield Figure(f"{name}: epochs, % off", off, _EPOCH_PERCENT, detail=f"{epochs[0]:.2f}, {epochs[1]:.2f} s")


def _au_percent(run: dict[str, Any]) -> float:
    """Return the run's utilisation; a pipeline's is the mean share of its stages' time in which they compute."""
    if "pipeline" in run:
        stages = run["pipeline"]["stages"]
        return 100 * sum(stage["busy_share"] for stage in stages) / len(stages)
    return float(100 * run["iotwin"]["training"]["au"])


def _training_s(run: dict[str, Any]) -> float:
    return float(run["pipeline"]["seconds"] if "pipeline" in run else sum(run["iotwin"]["training"]["epoch_s"]))


def _call_order(twin: _Twin, folder: Path) -> Figure:
    """Return how many threads make other calls, or in another order, on one clock than on the other."""
    config = load(twin.yaml)
    data, checkpoints = Path(config.dataset.data_folder), Path(config.checkpoint.checkpoint_folder)
    real, virtual = (
        Counter(calls_by_thread(twin.yaml, clock, twin.ranks, data, checkpoints, folder)) for clock in ("real", "virtual")
    )
    differ = max((real - virtual).total(), (virtual - real).total())
    calls = sum(len(thread) * count for thread, count in real.items())
    detail = f"{real.total()} threads with {calls} calls on files"
    return Figure(f"virtual, {twin.name}: threads whose calls differ from those in real time", differ, 0, detail=detail)


def _without_io(folder: Path) -> Iterator[Figure]:
    for step_s, (steps, least) in _LOOP.items():
        for clock in ("real", "virtual"):
            words = ["dataset.format=synthetic", f"dataset.num_files_train={steps}", "reader.batch_size=1", "train.epochs=1",
                     "reader.read_threads=0", f"train.computation_time={step_s}", f"twin.clock={clock}"]  # fmt: skip
            aus = [_run(_workload(words, folder), 1)["metric"]["train_au_mean_percentage"] for _ in range(_ROUNDS)]
            detail = ", ".join(f"{au:.2f}" for au in aus)
            yield Figure(f"AU without I/O at {1000 * step_s:g} ms steps, {clock} clock, %", median(aus), least, False, detail)


def _run(config: Config, ranks: int) -> dict[str, Any]:
    done = run_workload(config, EmulationOptions(ranks=ranks, one_of_several=True))
    if done is None:
        raise RuntimeError("the run has no results on this rank")
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.perf.perf_virtual")
    parser.add_argument("names", nargs="*", metavar="PART", help=", ".join(_PARTS))
    record_figures("virtual", measure(parser.parse_args().names))
