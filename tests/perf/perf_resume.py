"""How alike are the twins of jobs that were killed and resumed, and do wrong ones score lower?

python -m tests.perf.perf_resume [unet3d|dlrm] [resumed|edited|wrong]
python -m tests.perf.perf_resume detrain

A job is killed once in the middle; each of its resumed runs goes on in a copy of what that left. `detrain` is a script that
`iotwin detrain run` resumes in two ways, compared with the recording of its uninterrupted run, edited to resume there.
"""

import copy
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout, Unet3dLayout
from iotwin.loops.traced_run import run_traced
from iotwin.loops.twin_from_trace import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.workload_yaml import Config, TwinRecorded, TwinResume, dump, load
from iotwin.workload_yaml.recording import Op, read_recording, write_recording
from iotwin.workloads.dlrm.__main__ import main as dlrm
from iotwin.workloads.unet3d.__main__ import main as unet3d
from tests.perf.figures import Figure
from tests.perf.records import record_figures
from tests.workloads import killed

_TIMES = 5
_MAINS = {"unet3d": unet3d, "dlrm": dlrm}
# Each job by its options: states as large as what a few steps read, kept in the middle of epochs too.
_OPTIONS: dict[str, dict[str, object]] = {
    "unet3d": {
        "epochs": 4, "batch-size": 2, "workers": 2, "eval-every": 4, "checkpoint-every": 0, "base-channels": 4, "depth": 3,
        "crop": 32, "overlap": 0, "threads": 1, "seed": 1, "checkpoint-steps": 10, "keep": 2, "resume": "auto",
    },
    "dlrm": {
        "batch-size": 2048, "steps": 200, "eval-every": 0, "embedding-size": 32, "most-categories": 10_000, "bottom": "32,32",
        "top": "32", "learning-rate": 0.1, "threads": 1, "seed": 1, "checkpoint-steps": 25, "keep": 2, "resume": "auto",
    },
}  # fmt: skip
_KILLED_AT = {"unet3d": 25, "dlrm": 60}
# Steps of the last checkpoint before that, and where in the epochs it is. dlrm has no parameters: its samples are no files.
_CHECKPOINTS = {"unet3d": (20, TwinResume(epoch=2, step=4))}


class _Case:
    """A job, its runs and its twins, each made at its first use."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder, self.job = folder, job
        layout, samples = (Unet3dLayout(0.2), 40) if job == "unet3d" else (DlrmLayout(), 900_000)
        generate(layout, folder / "data", samples=samples, seed=1)
        words = {**_OPTIONS[job], "data": folder / "data"}
        self._words = [str(word) for key, value in words.items() for word in (f"--{key}", value)]
        (folder / "killed").mkdir()
        killed.run(_MAINS[job], self._words, folder / "killed", "out", killed_at=_KILLED_AT[job])

    def resumed(self, name: str) -> Trace:
        """Trace the job as it goes on."""
        shutil.copytree(self.folder / "killed" / "out", self.folder / f"{name}_out")
        os.sync()  # what was copied must not be written back during the run
        return self.traced(name)

    def traced(self, name: str) -> Trace:
        """Trace the job in the folder of that name."""
        output = self.folder / f"{name}_out"
        command = [sys.executable, "-m", f"iotwin.workloads.{self.job}", *self._words, "--output", str(output)]
        run_traced(command, self.folder / f"{name}.trace", self.job)
        return Trace(self.folder / f"{name}.trace")

    def twin(self, name: str, config: Config) -> Trace:
        """Trace a twin."""
        path = self.folder / f"{name}.yaml"
        config.output.folder = str(self.folder / f"{name}_out")
        dump(config, path)
        run_traced([sys.executable, "-m", "iotwin", "emulate", str(path)], self.folder / f"{name}.trace", self.job)
        return Trace(self.folder / f"{name}.trace")

    @cached_property
    def first(self) -> Trace:
        """The resumed run that is fitted."""
        return self.resumed("run0")

    @cached_property
    def whole(self) -> Trace:
        """The run of the job that is not killed."""
        return self.traced("whole")

    @cached_property
    def whole_twin(self) -> Config:
        """The twin of that run."""
        return self.make([self.whole], "whole_twin")[0]

    def make(self, real: Sequence[Trace], name: str) -> tuple[Config, dict[str, Any]]:
        """Make the twin of the first of `real` in the folder of that name; return it and its record."""
        record = make_twin([run.path for run in real], self.folder / name, force=False)
        config = load(self.folder / name / "twin.yaml")
        config.checkpoint.checkpoint_folder = str(self.folder / f"{name}_checkpoints")
        return config, record


def _resumed(case: _Case) -> Iterator[Figure]:
    """The twin, made of one resumed run, compared with the worse of two others; it need not be more alike than these are."""
    runs = [case.first, case.resumed("run1"), case.resumed("run2")]
    floor = compare(runs[0], runs[1], repeats=runs[1:]).to_document()["noise_floor"]
    _, record = case.make(runs, "twin")
    worst = min(record["held_out"], key=lambda each: float(each["overall"]))
    yield Figure(
        f"{case.job}, killed and resumed: twin against a resumed run not fitted",
        worst["overall"],
        min(0.95, floor),
        False,
        f"asked 0.95 or the noise floor; reruns {floor:.4f}; {_lowest(worst['dimensions'])}; {worst['verdict']}",
    )


def _lowest(dimensions: Mapping[str, float]) -> str:
    lowest = min(dimensions, key=lambda name: dimensions[name])
    return f"lowest {lowest} {dimensions[lowest]:.3f}"


def _edited(case: _Case) -> Iterator[Figure]:
    """The parameters of an uninterrupted job, edited to resume, compared with the job that was killed and resumed there.

    They are emulated until then before, so that there are checkpoints to go on from.
    """
    if case.job not in _CHECKPOINTS:
        return
    config = fit_parameters(case.whole).config
    config.checkpoint.checkpoint_folder = str(case.folder / "whole_checkpoints")
    before, (steps, config.twin.resume) = copy.deepcopy(config), _CHECKPOINTS[case.job]
    before.train.epochs = config.twin.resume.epoch
    before.train.total_training_steps = steps // before.train.epochs
    case.twin("before", before)
    similarity = compare(case.first, case.twin("edited", config)).to_document()
    name = f"{case.job}, killed and resumed: edited twin of the job that was not, against it"
    yield Figure(name, similarity["overall"], 0.90, False, _lowest(similarity["dimensions"]))


def _never_stopped(case: _Case, _: Config) -> Config:
    """Return the twin of the job that was not killed."""
    return case.whole_twin


def _an_epoch_fewer(_: _Case, right: Config) -> Config:
    config = copy.deepcopy(right)
    config.train.epochs -= 1
    return config


def _no_state(case: _Case, right: Config) -> Config:
    """Return the twin without the bytes of the state that the job goes on from. It still reads the manifests."""
    config = copy.deepcopy(right)
    assert config.twin.recorded is not None
    recording = read_recording(Path(config.twin.recorded.file))
    state = [number for number, file in enumerate(recording.header.files) if file.name.endswith(".raw")]
    columns = recording.columns
    columns["size"] = np.where((columns["op"] == Op.READ) & np.isin(columns["subject"], state), 0, columns["size"])
    config.twin.recorded.file = str(case.folder / "no_state.recording")
    write_recording(recording, Path(config.twin.recorded.file))
    return config


_WRONG: dict[str, Callable[[_Case, Config], Config]] = {
    "never stopped": _never_stopped,
    "an epoch fewer": _an_epoch_fewer,
    "state not read": _no_state,
}


def _wrong(case: _Case) -> Iterator[Figure]:
    config, _ = case.make([case.first], "right")
    wrong = [name for name in _WRONG if config.train.epochs > 1 or name != "an epoch fewer"]
    scores: dict[str, list[float]] = {name: [] for name in ("fitted", *wrong)}
    for turn, name in itertools.product(range(_TIMES), scores):
        twin = config if name == "fitted" else _WRONG[name](case, config)
        run = case.twin(f"{name.replace(' ', '_')}{turn}", twin)
        scores[name].append(compare(case.first, run).overall or 0.0)
        shutil.rmtree(twin.checkpoint.checkpoint_folder)  # a replay begins with the files that the job found
    told = {name: ", ".join(f"{score:.3f}" for score in own) for name, own in scores.items()}
    for name in wrong:
        times = sum(score < good for score, good in zip(scores[name], scores["fitted"], strict=True))
        what = f"{case.job}, killed and resumed, {name}: times of {_TIMES} that it scores lower than the fitted twin"
        yield Figure(what, times, _TIMES, False, f"{told[name]}; fitted {told['fitted']}")


_SCRIPT, _FILES, _EVERY = Path(__file__).with_name("resumed_script.py"), 48, 6
_SAVED = TwinResume(epoch=3, step=6)  # 12 steps an epoch: checkpoint 30
# By the run's --replay: the twin that is right, and wrong ones.
_REPLAYS: dict[str, dict[str, TwinResume]] = {
    "restore": {
        "right": _SAVED, "replays": TwinResume(3, 6, "replay_all"), "an epoch early": TwinResume(2, 6),
        "state not read": TwinResume(3, 6, "skip_reads"),
    },
    "replay-data": {
        "right": TwinResume(3, 6, "replay_all"), "restores": _SAVED, "an epoch early": TwinResume(2, 6, "replay_all"),
        "replays this epoch alone": TwinResume(3, 6, "replay_data"),
    },
}  # fmt: skip


def _detrain_command(data: Path, output: Path, replay: str = "restore") -> list[str]:
    options = ["-o", str(output), "--every", f"{_EVERY}batches", "--replay", replay, "--", str(data), "2"]
    return [sys.executable, "-m", "iotwin", "detrain", "run", str(_SCRIPT), *options]


def _kill_after_checkpoint(command: list[str], output: Path, name: str) -> None:
    latest = output / "checkpoints" / "LATEST"
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as job:
        while job.poll() is None and not (latest.exists() and latest.read_text().strip() == name):
            time.sleep(0.005)
        os.killpg(job.pid, signal.SIGKILL)


def _detrain(folder: Path) -> Iterator[Figure]:
    """The recording of an uninterrupted run, edited to resume, compared with runs that were killed and resumed."""
    data = folder / "data"
    data.mkdir()
    for number in range(_FILES):
        np.save(data / f"{number:02d}.npy", np.random.default_rng(number).standard_normal((100, 1024), dtype=np.float32))
    run_traced(_detrain_command(data, folder / "whole"), folder / "whole.trace", "detrain")
    whole = fit(Trace(folder / "whole.trace"))
    assert whole.recording is not None
    write_recording(whole.recording, folder / "whole.recording")
    _kill_after_checkpoint(_detrain_command(data, folder / "killed"), folder / "killed", "step-30")
    for replay, twins in _REPLAYS.items():
        shutil.copytree(folder / "killed", folder / replay)
        os.sync()
        run_traced(_detrain_command(data, folder / replay, replay), folder / f"{replay}.trace", "detrain")
        scores: dict[str, float] = {}
        for name, resume in twins.items():
            config, made = copy.deepcopy(whole.config), folder / f"{replay} {name}".replace(" ", "_")
            config.twin.recorded = TwinRecorded(str(folder / "whole.recording"))
            config.twin.resume, config.dataset.data_folder = resume, str(data)
            config.checkpoint.checkpoint_folder, config.output.folder = f"{made}.saved", f"{made}.out"
            dump(config, Path(f"{made}.yaml"))
            command = [sys.executable, "-m", "iotwin", "emulate", f"{made}.yaml"]
            run_traced(command, Path(f"{made}.trace"), "detrain")
            scores[name] = compare(Trace(folder / f"{replay}.trace"), Trace(Path(f"{made}.trace"))).overall or 0.0
        right = scores.pop("right")
        told = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        what = f"script, killed and resumed by {replay}: edited recording of the whole run"
        yield Figure(f"{what}, against it", right, 0.90, False, told)
        yield Figure(f"{what}: lead over the best wrong twin", right - max(scores.values()), 0.03, False, told)


_PARTS = {"resumed": _resumed, "edited": _edited, "wrong": _wrong}


def measure(words: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the jobs and parts among `words`, by default all."""
    if not words or "detrain" in words:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
            yield from _detrain(Path(name))
    if list(words) == ["detrain"]:
        return
    for job in [word for word in words if word in _MAINS] or _MAINS:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
            case = _Case(Path(name), job)
            for part in [word for word in words if word in _PARTS] or _PARTS:
                yield from _PARTS[part](case)


if __name__ == "__main__":
    record_figures("resume", measure(sys.argv[1:]))
