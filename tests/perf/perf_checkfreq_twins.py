"""Twins of jobs that checkpoint as CheckFreq does: how alike they are, what their parameters predict, if wrong ones score less.

python -m tests.perf.perf_checkfreq_twins [auto|sync|epoch|edited|wrong ...]

`edited` and `wrong` emulate the parameters of a job (`iotwin fit --parameters`), since a recording has its own checkpoints.
Each of the cases trains small networks several times under the tracer; on two CPUs it takes one to three minutes.
"""

import copy
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.command_lines import own_command, own_job
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.loops.traced_run import run_traced
from iotwin.loops.twin_from_trace import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.workload_yaml import CheckpointPolicy, Config, dump
from tests.perf.figures import Figure
from tests.perf.perf_held_out import held_out
from tests.perf.records import record_figures

CASES = ("auto", "sync", "epoch", "edited", "wrong")
_RUNS = 3
_IMAGES = 3200
_OPTIONS = ("--preset", "tiny", "-a", "resnet18", "-j", "2", "--noeval", "--threads", "1", "-p", "0", "--reprofile")
_SIZE = ("-b", "16", "--epochs", "3")
# Checkpoints one after another, which training waits for: what may be on its way at once shows here only.
_BACK_TO_BACK = ("-b", "2", "--epochs", "1", "--iters", "250", "--chk-policy", "auto", "--chk-freq", "1")


def _wait_for_each(config: Config) -> None:
    config.twin.checkpoint.asynchronous = False


def _half_as_often(config: Config) -> None:
    checkpoint = config.twin.checkpoint
    if checkpoint.after is None:
        config.checkpoint.steps_between_checkpoints *= 2
    else:
        checkpoint.after = checkpoint.after[1::2]


def _without_sync(config: Config) -> None:
    config.checkpoint.fsync, config.twin.checkpoint.directory_sync = False, False


def _keep_all(config: Config) -> None:
    config.twin.checkpoint.keep = None


def _three_in_flight(config: Config) -> None:
    config.twin.checkpoint.in_flight = 3


_WRONG: dict[str, Callable[[Config], None]] = {
    "sync for async": _wait_for_each,
    "k doubled": _half_as_often,
    "no fsync": _without_sync,
    "keep all": _keep_all,
}


class _Folder:
    """Where jobs and twins of one measurement run, on one data set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        generate(ImagenetLayout(classes=4, scale=0.1), path / "data", samples=_IMAGES, seed=1)
        self._autos: list[Trace] = []

    def job(self, name: str, *options: str) -> Trace:
        """Train under the tracer."""
        out, trace = self.path / f"{name}_out", self.path / f"{name}.trace"
        own = ("--data", str(self.path / "data"), "--output", str(out), *_OPTIONS, *options)
        run_traced(own_job("iotwin.workloads.checkfreq", *own), trace, "checkfreq", prints_events=False)
        return Trace(trace)

    def jobs(self, policy: str, count: int = _RUNS) -> list[Trace]:
        """Train several times; of auto, the runs of an earlier case."""
        if policy == "auto" and self._autos:
            return self._autos
        dynamic = ("--dynamic",) if policy == "auto" else ()
        runs = [self.job(f"{policy}{number}", *_SIZE, "--chk-policy", policy, *dynamic) for number in range(count)]
        if policy == "auto":
            self._autos = runs
        return runs

    def twin(self, name: str, config: Config) -> Trace:
        """Run a twin under the tracer."""
        path, trace = self.path / f"{name}.yaml", self.path / f"{name}_twin.trace"
        config.checkpoint.checkpoint_folder = config.output.folder = str(self.path / f"{name}_twin_out")
        dump(config, path)
        run_traced(own_command("emulate", path), trace, "checkfreq", prints_events=False)
        return Trace(trace)


def measure(cases: Sequence[str] = CASES) -> Iterator[Figure]:
    """Yield the figures of the `cases`."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        folder = _Folder(Path(name))
        for case in cases:
            if case == "edited":
                yield from _edited(folder)
            elif case == "wrong":
                yield from _wrong(folder)
            else:
                runs = folder.jobs(case)
                made = make_twin([run.path for run in runs], folder.path / f"{case}_made", force=False)
                yield from held_out(f"checkfreq {case}", made, compare(runs[0], runs[1], repeats=runs[1:]).to_document())


def _edited(folder: _Folder) -> Iterator[Figure]:
    """Trace a job that checkpoints at ends of epochs. Its parameters, under the policy, are compared with jobs that follow it."""
    [epochs] = folder.jobs("epoch", 1)
    config = fit_parameters(epochs).config
    checkpoint = config.twin.checkpoint
    checkpoint.policy, checkpoint.asynchronous = CheckpointPolicy(), True
    checkpoint.keep, checkpoint.keep_every = 1, "epoch"
    twin = folder.twin("edited", config)
    summary = json.loads((Path(config.output.folder) / "summary.json").read_text())
    autos = folder.jobs("auto")
    scores = [compare(auto, twin).overall or 0.0 for auto in autos]
    yield Figure("checkfreq epoch, edited to the policy: against the job under it, overall", min(scores), 0.90, False,
                 f"lowest of {len(scores)}; reruns {compare(autos[0], autos[1], repeats=autos[1:]).noise_floor:.3f}")  # fmt: skip
    results = [json.loads((auto.path.with_name(f"{auto.path.stem}_out") / "result.json").read_text()) for auto in autos]
    own = [_interval(each["checkpoints"]["intervals"], each["steps"]) for each in results]
    found = summary["iotwin"]["checkpoint_policy"]["intervals"]
    foretold = _interval(found, results[0]["steps"])
    runs = "; ".join(", ".join(str(k) for _, k in each["checkpoints"]["intervals"]) for each in results)
    yield Figure("... mean interval, apart from the median of the job's runs, as a share",
                 abs(foretold / statistics.median(own) - 1), 0.2,
                 detail=f"{foretold:.1f} steps against {', '.join(f'{k:.1f}' for k in own)}; one after another "
                 f"{', '.join(str(k) for _, k in found)} against {runs}")  # fmt: skip


def _interval(intervals: Sequence[Sequence[int]], steps: int) -> float:
    """Return the mean steps between checkpoints from the first of `intervals`, (step, interval from there on), to the end."""
    ends = [step for step, _ in intervals[1:]] + [steps]
    count = sum((end - begin) / every for (begin, every), end in zip(intervals, ends, strict=True))
    return (steps - intervals[0][0]) / count


def _wrong(folder: _Folder) -> Iterator[Figure]:
    """Twins with a deliberate fault, each compared with all runs of the job, as the right one is."""
    found = [_told(folder, folder.jobs("auto"), name, edit) for name, edit in _WRONG.items()]
    back_to_back = [folder.job(f"back{number}", *_BACK_TO_BACK) for number in range(_RUNS)]
    found.append(_told(folder, back_to_back, "in_flight 3", _three_in_flight))
    yield Figure("checkfreq: wrong twins that score below the right one", sum(wrong < right for _, wrong, right in found),
                 len(found), False, ", ".join(f"{name} {wrong:.3f} ({right:.3f})" for name, wrong, right in found))  # fmt: skip


def _told(folder: _Folder, runs: Sequence[Trace], name: str, edit: Callable[[Config], None]) -> tuple[str, float, float]:
    """Return (name, its score, that of the right twin), each the mean over the job's runs."""
    fitted = fit_parameters(runs[0]).config
    wrong = copy.deepcopy(fitted)
    edit(wrong)
    right = folder.path / f"{runs[0].path.stem}_right_twin.trace"
    trace = Trace(right) if right.exists() else folder.twin(f"{runs[0].path.stem}_right", fitted)
    scores = [
        statistics.mean(compare(run, twin).overall or 0.0 for run in runs)
        for twin in (folder.twin(name.replace(" ", "_"), wrong), trace)
    ]
    return name, scores[0], scores[1]


if __name__ == "__main__":
    record_figures("checkfreq_twins", measure(sys.argv[1:] or CASES))
