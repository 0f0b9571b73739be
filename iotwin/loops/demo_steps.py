"""The demo: generate data, trace a training run twice, fit a twin to one trace, run the twin, compare it with the other trace."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iotwin.command_lines import own_command, own_job
from iotwin.common.errors import IotwinError
from iotwin.common.files import write_json, write_whole
from iotwin.common.progress import note
from iotwin.common.result_folder import MadeFolder
from iotwin.loops.traced_run import run_traced

_SUMMARY = "summary.json"
_ABOUT = "README.txt"
_ABOUT_TITLE = "Written by iotwin demo; the next one replaces these:"
_MADE = {
    "report.html": "open it in a browser: timelines, comparison, tables",
    "timeline.png": "the real run above its twin",
    "similarity.json": "how alike the real run is to its twin, and to a second real run",
    "summary.json": "the same, with the seconds of each step; written last",
    "twin.yaml": "the twin, derived from rerun.trace; run it with iotwin emulate",
    "twin.recording": "the calls that the twin replays",
    "real.trace": "the training run, as traced",
    "rerun.trace": "the same job again",
    "twin.trace": "the twin's run",
    "data": "the data set",
    "real_output": "what the jobs wrote: checkpoints and results",
    "rerun_output": "",
    "twin_output": "",
}
_DATA_BYTES = 384 << 20
_SCALE = 0.3  # factor by which the sides of KiTS19's volumes are scaled, so that two CPU cores can train on them
SEED = 1
# A small network on small crops. One thread computes, so that the loaders have the other core.
JOB = [
    "--epochs", "4", "--batch-size", "4", "--workers", "2", "--eval-every", "2", "--checkpoint-every", "2",
    "--base-channels", "4", "--depth", "3", "--crop", "40", "--overlap", "0", "--threads", "1", "--seed", str(SEED),
]  # fmt: skip


def run_demo(directory: Path, force: bool) -> dict[str, Any]:
    """Run the demo in `directory` and return its summary, which is also written there as summary.json."""
    _prepare(directory, force)
    demo = _Demo(directory)
    demo.step("generate", "a data set of KiTS19-shaped volumes", "data", demo.generate)
    demo.step("trace real", "a real training run under the tracer", "real.trace", lambda: demo.train("real"))
    demo.step("trace rerun", "the same job again, for the noise floor", "rerun.trace", lambda: demo.train("rerun"))
    demo.step("fit", "the twin, from the rerun's trace alone", "twin.yaml", demo.fit)
    demo.step("trace twin", "the twin under the same tracer, without torch", "twin.trace", demo.run_twin)
    demo.step("compare", "how alike they are", "similarity.json", demo.compare)
    demo.step("draw", "timelines and the report", "report.html", demo.draw)
    summary = demo.summary()
    write_json(directory / _SUMMARY, summary)
    return summary


def _prepare(directory: Path, force: bool) -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise IotwinError("the demo trains a real network and needs PyTorch; install it with: pip install 'iotwin[torch]'")
    folder = MadeFolder.claim(directory, "demo", force)
    for name in (_ABOUT, *_MADE):
        folder.entry(name)
    lines = [f"{name:<16} {what}".rstrip() for name, what in _MADE.items()]
    write_whole(directory / _ABOUT, ("\n".join([_ABOUT_TITLE, "", *lines]) + "\n").encode())


class _Demo:
    """The demo's steps. Each writes its result into the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seconds: dict[str, float] = {}
        self._documents: dict[str, Any] = {}
        self._count = 0

    def step(self, name: str, what: str, writes: str, run: Callable[[], None]) -> None:
        """Run one step and print its output file and its duration."""
        self._count += 1
        note(f"[{self._count}/7] {what}")
        begin = time.monotonic()
        run()
        self._seconds[name] = round(time.monotonic() - begin, 2)
        note(f"      wrote {self._directory / writes} in {self._seconds[name]:.1f} s")

    def generate(self) -> None:
        from iotwin.datagen.generate import generate
        from iotwin.datagen.layouts import Unet3dLayout

        generate(Unet3dLayout(_SCALE), self._directory / "data", size_bytes=_DATA_BYTES, seed=SEED)

    def train(self, name: str) -> None:
        data, output = self._directory / "data", self._directory / f"{name}_output"
        self._trace(name, own_job("iotwin.workloads.unet3d", "--data", data, "--output", output, *JOB))

    def fit(self) -> None:
        from iotwin.benchmark.fit.fit_trace import fit
        from iotwin.trace_store.reader import Trace

        # The twin is fitted to the rerun, and later compared with the real run, which fit has not read.
        fitted = fit(Trace(self._directory / "rerun.trace"))
        config = fitted.config
        # The twin must not overwrite the real job's checkpoints.
        config.checkpoint.checkpoint_folder = str(self._directory / "twin_output")
        config.output.folder = str(self._directory / "twin_output")
        fitted.write(self._directory / "twin.yaml", force=True)

    def run_twin(self) -> None:
        self._trace("twin", own_command("emulate", self._directory / "twin.yaml"))

    def _trace(self, name: str, command: list[str]) -> None:
        run_traced(command, self._directory / f"{name}.trace", "unet3d")

    def compare(self) -> None:
        from iotwin.trace_store.reader import Trace
        from iotwin.tracesim import compare

        real, rerun, twin = (Trace(self._directory / f"{name}.trace") for name in ("real", "rerun", "twin"))
        self._documents["real_vs_twin"] = compare(real, twin, repeats=[rerun]).to_document()
        self._documents["real_vs_rerun"] = compare(real, rerun).to_document()
        write_json(self._directory / "similarity.json", self._documents)

    def draw(self) -> None:
        from iotwin.loops.answers.bottleneck import quick_verdict
        from iotwin.trace_store.reader import Trace
        from iotwin.trace_visuals.report.report_page import write_report
        from iotwin.trace_visuals.timeline.timeline_figure import plot_timeline

        traces = [self._directory / f"{name}.trace" for name in ("real", "twin")]
        plot_timeline(traces, self._directory / "timeline.png")
        verdicts = [quick_verdict(Trace(path)) for path in traces]
        write_report(traces, self._directory / "report.html", repeats=[self._directory / "rerun.trace"], verdicts=verdicts)

    def summary(self) -> dict[str, Any]:
        traces = {name: str(self._directory / f"{name}.trace") for name in ("real", "rerun", "twin")}
        return {"directory": str(self._directory), "traces": traces, "seconds_per_step": self._seconds, **self._documents}
