"""DTR's closed loop: a traced training under one memory budget, whose twin predicts another budget, and wrong twins of that.

    python -m tests.perf.perf_dtr_loop

The other budget is trained for comparison alone; no twin has seen it.
"""

import copy
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.command_lines import own_command
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.loops.traced_run import run_traced
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.workload_yaml import Config, Rematerialized, dump
from iotwin.workload_yaml.rematerialized import overhead
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_IMAGES, _CLASSES, _BATCH, _EPOCHS, _RUNS = 384, 4, 16, 3, 2
_FITTED, _ASKED = 0.8, 0.55  # budgets, as shares of the memory that a step takes


def _time(config: Config) -> Rematerialized:
    assert isinstance(config.train.computation_time, Rematerialized)
    return config.train.computation_time


def _without_recomputation(config: Config) -> None:
    _time(config).budget = None


def _old_budget(config: Config) -> None:
    _time(config).budget = _FITTED


def _base_twice(config: Config) -> None:
    config.train.computation_scale = 2.0


def _as_data_wait(config: Config) -> None:
    """Loaders decode for longer by what is computed again, and the rank computes as without a budget."""
    growth = overhead(_time(config))
    _without_recomputation(config)
    assert config.twin.recorded is not None
    config.twin.recorded.decode_scale = 1 + (growth - 1) * 4


def _batch_twice(config: Config) -> None:
    config.reader.batch_size *= 2


_WRONG: dict[str, Callable[[Config], None]] = {
    "no recomputation": _without_recomputation,
    "the recorded budget": _old_budget,
    "base time doubled": _base_twice,
    "recomputation as data wait": _as_data_wait,
    "batch doubled": _batch_twice,
}


class _Loop:
    """The folder of one measurement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        generate(ImagenetLayout(classes=_CLASSES, scale=0.5), path / "images", samples=_IMAGES, seed=1)

    def job(self, name: str, budget: int | None = None) -> Trace:
        """Train under the tracer."""
        options = {
            "--data": self.path / "images", "--output": self.path / name, "--batch-size": _BATCH, "--epochs": _EPOCHS,
            "--threads": 1, "--operations": self.path / f"{name}.log", **({"--memory-budget": budget} if budget else {}),
        }  # fmt: skip
        words = [str(word) for pair in options.items() for word in pair]
        run_traced(
            [sys.executable, "-m", "iotwin.workloads.dtr", *words], self.path / f"{name}.trace", "dtr", prints_events=False
        )
        return Trace(self.path / f"{name}.trace")

    def twin(self, name: str, config: Config) -> Trace:
        """Run a twin under the tracer."""
        own = self.path / name.replace(" ", "_")
        config.checkpoint.checkpoint_folder, config.output.folder = f"{own}_files", f"{own}_output"
        dump(config, yaml := own.with_suffix(".yaml"))
        run_traced(own_command("emulate", yaml), trace := own.with_suffix(".trace"), "dtr", prints_events=False)
        return Trace(trace)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        loop = _Loop(Path(name))
        peak = _time(fit(loop.job("unlimited")).config).peak_bytes
        fitted = fit(loop.job("fitted", round(_FITTED * peak)))
        fitted.write(loop.path / "fitted.yaml")
        jobs = [loop.job(f"asked{number}", round(_ASKED * peak)) for number in range(_RUNS)]
        config = fitted.config
        assert config.twin.recorded is not None
        config.twin.recorded.file = str(loop.path / "fitted.recording")
        _time(config).budget = _ASKED
        found = compare(jobs[0], loop.twin("asked", copy.deepcopy(config)), repeats=jobs[1:])
        floor = found.to_document()["noise_floor"] or 1.0
        detail = f"reruns {floor:.3f}; {overhead(_time(config)):.2f} times the step without a budget"
        yield Figure("dtr loop: twin at a budget never run against that run", found.overall, 0.90, False, detail)
        below, scores = 0, []
        for kind, spoil in _WRONG.items():
            spoil(wrong := copy.deepcopy(config))
            score = compare(jobs[0], loop.twin(kind, wrong)).overall
            below += score < found.overall
            scores.append(f"{kind} {score:.3f}")
        yield Figure("dtr loop: wrong twins below the right one", below, len(_WRONG), False, ", ".join(scores))


if __name__ == "__main__":
    record_figures("dtr_loop", measure())
