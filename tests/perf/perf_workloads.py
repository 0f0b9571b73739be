"""The real workloads: how far their losses fall, what instrumentation costs, and how long a step takes that sleeps instead."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout, DlrmLayout, Unet3dLayout
from iotwin.trace_visuals.steps.plot_steps import plot_steps
from tests.perf.figures import Figure, paired_ratio

Options = dict[str, object]
_ROUNDS = 5
# For the losses: as the READMEs' sizes for two CPU cores.
_LOSSES: dict[str, Options] = {
    "unet3d": {"epochs": 5, "batch-size": 4, "workers": 1, "eval-every": 0, "checkpoint-every": 0, "base-channels": 4, "depth": 3,
               "crop": "40", "overlap": 0, "threads": 1},
    "dlrm": {"batch-size": 512, "steps": 150, "eval-every": 0, "embedding-size": 8, "most-categories": 1000, "bottom": "32,16",
             "top": "32,16", "threads": 1},
    "bert": {"batch-size": 4, "steps": 60, "eval-steps": 0, "layers": 1, "hidden": 32, "heads": 2, "sequence": 128,
             "learning-rate": 0.02, "threads": 1},
}  # fmt: skip
# For the steps: tens of milliseconds each, short compared with the published second, on one core: the loader has the other.
_STEPS: dict[str, Options] = {
    "unet3d": _LOSSES["unet3d"] | {"epochs": 4, "batch-size": 2, "crop": "32"},
    "dlrm": _LOSSES["dlrm"] | {"batch-size": 4096, "steps": 100, "embedding-size": 16, "bottom": "64,32", "top": "64,32"},
    "bert": _LOSSES["bert"] | {"batch-size": 2, "steps": 60},
}


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        base = Path(name)
        generate(Unet3dLayout(scale=0.2), base / "unet3d", samples=40, seed=1)
        generate(DlrmLayout(), base / "dlrm", samples=500_000, seed=1)
        generate(BertLayout(), base / "bert", samples=2000, seed=1)
        figures = _losses(base)
        for workload in _STEPS:
            figures += _variants(base, workload)
        return figures


def _run(base: Path, workload: str, options: Options, **changes: object) -> dict[str, object]:
    """Run a workload, its output kept as output/trace/logs/stdout of a cell, and return its result."""
    cell = base / "cell"
    (cell / "trace" / "logs").mkdir(parents=True, exist_ok=True)
    words = [word for key, value in (options | changes).items() for word in (f"--{key}", str(value))]
    command = [
        sys.executable,
        "-m",
        f"iotwin.workloads.{workload}",
        "--data",
        str(base / workload),
        "--output",
        str(cell / "output"),
    ]
    with (cell / "trace" / "logs" / "stdout").open("w") as log:
        subprocess.run([*command, *words], stdout=log, stderr=subprocess.DEVNULL, check=True)
    known = {"workload": workload, "variant": changes.get("variant", "original"), "ranks": 1, "batch": options["batch-size"]}
    (cell / "cell.json").write_text(json.dumps(known))
    result: dict[str, object] = json.loads((cell / "output" / "result.json").read_text())
    return result


def _losses(base: Path) -> list[Figure]:
    unet3d = _run(base, "unet3d", _LOSSES["unet3d"])["train_loss"]
    dlrm, bert = _run(base, "dlrm", _LOSSES["dlrm"]), _run(base, "bert", _LOSSES["bert"])
    pairs = {
        "unet3d": (unet3d[0], unet3d[-1], 0.75),
        "dlrm": (dlrm["first_loss"], dlrm["last_loss"], 0.8),
        "bert": (bert["first_loss"], bert["last_loss"], 1 - 0.15 / bert["first_loss"]),
    }
    return [
        Figure(f"{name}: loss at the end over the start's", last / first, bound, detail=f"{first:.3f} to {last:.3f}")
        for name, (first, last, bound) in pairs.items()
    ]


def _variants(base: Path, workload: str) -> list[Figure]:
    """Run the variants in turns, original or instrumented first; each sleep draws from its round's instrumented run."""
    original, instrumented, recorded, asleep = [], [], [], []

    def run_original() -> None:
        original.append(_run(base, workload, _STEPS[workload])["median_seconds_per_step"])

    for number in range(_ROUNDS):
        if number % 2 == 0:
            run_original()
        instrumented.append(_run(base, workload, _STEPS[workload], variant="instrumented")["median_seconds_per_step"])
        step_s, model = _settled(base)
        recorded.append(step_s)
        if number % 2:
            run_original()
        _run(base, workload, _STEPS[workload], variant="sleep", sleep=model)
        asleep.append(_settled(base)[0])
    return [
        Figure(f"{workload}: instrumented step over the original's", paired_ratio(instrumented, original), 1.03,
               detail=f"median steps of {_ROUNDS} pairs of runs, in ms: {_listed(instrumented)} and {_listed(original)}"),
        Figure(f"{workload}: sleeping step less the recorded one, of the latter", abs(paired_ratio(asleep, recorded) - 1), 0.05,
               detail=f"mean steps in ms: {_listed(asleep)} and {_listed(recorded)}"),
    ]  # fmt: skip


def _settled(base: Path) -> tuple[float, str]:
    """Return the mean seconds of the cell's step, cold ones left out, and the file with the quantiles of its compute time."""
    (model,) = plot_steps([base / "cell"], base / "steps")["models"]
    table = pd.read_csv(base / "steps" / "steps.csv").set_index("key")
    kept = Path(model).rename(base / "model.json")
    return float(table.loc["step_end", "mean"]), str(kept)


def _listed(seconds: list[float]) -> str:
    return ", ".join(f"{each * 1e3:.1f}" for each in seconds)
