"""The real workloads: how far their losses fall, what instrumentation costs, and how long a step takes that sleeps instead."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from datagen.generate import generate
from datagen.layouts import BertLayout, DlrmLayout, Unet3dLayout
from tests.perf.figures import Figure, interleaved, median_ratio
from trace_visuals.steps import plot_steps

_ROUNDS = 3
# As the READMEs' sizes for two CPU cores; steps of some 50 ms, which is short beside the published second.
_UNET3D = {"epochs": 5, "batch-size": 4, "workers": 1, "eval-every": 0, "checkpoint-every": 0, "base-channels": 4, "depth": 3,
           "crop": "40", "overlap": 0, "threads": 1}  # fmt: skip
_DLRM = {"batch-size": 2048, "steps": 60, "eval-every": 0, "embedding-size": 16, "most-categories": 1000, "bottom": "64,32",
         "top": "64,32", "threads": 1}  # fmt: skip
_BERT = {"batch-size": 4, "steps": 60, "eval-steps": 0, "layers": 1, "hidden": 32, "heads": 2, "sequence": 32,
         "learning-rate": 0.02, "threads": 1}  # fmt: skip


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        base = Path(name)
        generate(Unet3dLayout(scale=0.2), base / "unet3d", samples=40, seed=1)
        generate(DlrmLayout(), base / "dlrm", samples=500_000, seed=1)
        generate(BertLayout(), base / "bert", samples=2000, seed=1)
        figures = _losses(base)
        for workload, options in (("unet3d", _UNET3D), ("dlrm", _DLRM)):
            figures += _variants(base, workload, options)
    return figures


def _run(base: Path, workload: str, options: dict[str, object], **changes: object) -> dict[str, object]:
    """Run a workload, its output kept as output/trace/logs/stdout of a cell, and return its result."""
    cell = base / "cell"
    (cell / "trace" / "logs").mkdir(parents=True, exist_ok=True)
    words = [word for key, value in (options | changes).items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", f"workloads.{workload}", "--data", str(base / workload), "--output", str(cell / "output")]
    with (cell / "trace" / "logs" / "stdout").open("w") as log:
        subprocess.run([*command, *words], stdout=log, check=True)
    known = {"workload": workload, "variant": changes.get("variant", "original"), "ranks": 1, "batch": options["batch-size"]}
    (cell / "cell.json").write_text(json.dumps(known))
    result: dict[str, object] = json.loads((cell / "output" / "result.json").read_text())
    return result


def _losses(base: Path) -> list[Figure]:
    unet3d = _run(base, "unet3d", _UNET3D)["train_loss"]
    dlrm, bert = _run(base, "dlrm", _DLRM | {"batch-size": 512, "steps": 150}), _run(base, "bert", _BERT)
    pairs = {
        "unet3d": (unet3d[0], unet3d[-1], 0.75), "dlrm": (dlrm["first_loss"], dlrm["last_loss"], 0.8),
        "bert": (bert["first_loss"], bert["last_loss"], 1 - 0.3 / bert["first_loss"]),
    }  # fmt: skip
    return [
        Figure(f"{name}: loss at the end over the start's", last / first, bound, detail=f"{first:.3f} to {last:.3f}")
        for name, (first, last, bound) in pairs.items()
    ]


def _variants(base: Path, workload: str, options: dict[str, object]) -> list[Figure]:
    def step_s(**changes: object) -> float:
        return float(_run(base, workload, options, **changes)["seconds_per_step"])

    original, instrumented = interleaved(_ROUNDS, step_s, lambda: step_s(variant="instrumented"))
    recorded_s = step_s(variant="instrumented")
    (model,) = plot_steps([base / "cell"], base / "steps")["models"]
    asleep_s = step_s(variant="sleep", sleep=model)
    return [
        Figure(f"{workload}: instrumented step over the original's", median_ratio(instrumented, original), 1.03,
               detail=f"medians of {_ROUNDS} runs, original {sorted(original)[_ROUNDS // 2] * 1e3:.1f} ms"),
        Figure(f"{workload}: sleeping step less the recorded one, of the latter", abs(asleep_s / recorded_s - 1), 0.05,
               detail=f"{asleep_s * 1e3:.1f} ms and {recorded_s * 1e3:.1f} ms"),
    ]  # fmt: skip


if __name__ == "__main__":
    for figure in measure():
        print(figure.line(), flush=True)
