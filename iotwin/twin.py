"""From a trace to a proven twin: fit it, make its data set, run it traced, compare, correct, until it gets no better."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.traced import run_traced
from tracing_tools.trace.errors import UsageError
from tracing_tools.trace.output import write_whole
from tracing_tools.trace.progress import note
from tracing_tools.trace.reader import Trace

if TYPE_CHECKING:
    from benchmark.config import Config
    from benchmark.twin_parts import Fitted

TWIN, RECIPE, SUMMARY = "twin.yaml", "dataset.csv", "summary.json"
_DATA, _OUTPUT = "data", "output"
_LEAST_GAIN = 0.001  # in the overall score: a round that gains less is the last


def make_twin(paths: Sequence[Path], directory: Path, rounds: int, force: bool) -> dict[str, Any]:
    """Make the twin of the job traced at `paths[0]` in `directory` and return its record (also there as summary.json).

    Further paths are reruns of the job: they give the noise floor, at which there is nothing left to correct, and are what
    the finished twin is held against, since the fit has not seen them. Every round keeps its YAML, trace and similarity.
    """
    from benchmark.fit import fit

    traces = [Trace(path) for path in paths]
    fitted = fit(traces[0])
    _prepare(directory, force)
    _make_data(fitted, directory)
    loop = _Rounds(traces, fitted, directory)
    for number in range(1, rounds + 1):
        if not loop.run(number):
            break
    return loop.finish()


def _prepare(directory: Path, force: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file; choose another directory")
    if directory.exists() and any(directory.iterdir()):
        if not (directory / RECIPE).exists():
            raise UsageError(f"{directory} holds other files; choose another directory")
        if not force:
            raise UsageError(f"{directory} holds an earlier twin; choose another directory or add --force to replace it")
        for path in [*directory.glob("round-*"), directory / _DATA, directory / _OUTPUT]:
            shutil.rmtree(path, ignore_errors=True)
        for name in (TWIN, RECIPE, SUMMARY):
            (directory / name).unlink(missing_ok=True)
    directory.mkdir(parents=True, exist_ok=True)


def _make_data(fitted: "Fitted", directory: Path) -> None:
    from datagen.recorded import write_recipe

    write_recipe(directory / RECIPE, fitted.files)
    generate_data(directory)


def generate_data(directory: Path) -> None:
    """Write the data set that the recipe in `directory` lists, unless it is there already."""
    from datagen.generate import generate
    from datagen.recorded import read_recipe

    layout = read_recipe(directory / RECIPE)
    generate(layout, directory / _DATA, samples=len(layout.files))


def place(config: "Config", directory: Path) -> None:
    """Have the workload read and write below `directory` and nowhere else."""
    config.dataset.data_folder = str(directory / _DATA)
    config.checkpoint.checkpoint_folder = config.output.folder = str(directory / _OUTPUT)


class _Rounds:
    """The rounds so far, each in a directory of its own, and the best of them."""

    def __init__(self, traces: list[Trace], fitted: "Fitted", directory: Path) -> None:
        self._traces, self._wanted, self._directory = traces, fitted.config, directory
        self._config = fitted.config
        self._records: list[dict[str, Any]] = []
        self._best = -1
        place(self._config, directory.absolute())

    def run(self, number: int) -> bool:
        """Run and score round `number` and return whether another one may do better."""
        from benchmark.calibrate import corrected
        from benchmark.config import dump
        from benchmark.fit import fit
        from tracesim import compare

        note(f"round {number}: running the twin")
        folder = self._directory / f"round-{number}"
        folder.mkdir()
        dump(self._config, folder / TWIN)
        shutil.rmtree(self._directory / _OUTPUT, ignore_errors=True)
        real = self._traces[0]
        command = [sys.executable, "-m", "iotwin.main", "emulate", str(folder / TWIN)]
        run_traced(command, folder / "twin.trace", real.manifest.workload or "twin", _backend_like(real))
        run = Trace(folder / "twin.trace")
        similarity = compare(real, run, repeats=self._traces[1:]).to_document()
        _write_json(folder / "similarity.json", similarity)
        self._records.append({"round": number, **{key: similarity[key] for key in ("overall", "dimensions", "verdict")}})
        note(f"round {number}: {_score(similarity['overall'])}, {similarity['verdict']}")
        best = self._records[self._best]["overall"] if self._best >= 0 else None
        overall = similarity["overall"]
        if overall is None or (best is not None and overall < best + _LEAST_GAIN):
            return False
        self._best = len(self._records) - 1
        floor = similarity["noise_floor"]
        if floor is not None and overall >= floor:
            return False
        self._config = corrected(self._config, self._wanted, fit(run).config)
        return True

    def finish(self) -> dict[str, Any]:
        """Keep the best round's YAML as the twin and return the record of all rounds."""
        from tracesim import compare

        best = self._records[max(self._best, 0)]
        folder = self._directory / f"round-{best['round']}"
        write_whole(self._directory / TWIN, (folder / TWIN).read_bytes())
        held_out = [compare(rerun, Trace(folder / "twin.trace")).to_document() for rerun in self._traces[1:]]
        similarity = json.loads((folder / "similarity.json").read_text())
        document = {
            "directory": str(self._directory), "twin": str(self._directory / TWIN), "best_round": best["round"],
            "overall": best["overall"], "verdict": best["verdict"], "noise_floor": similarity["noise_floor"],
            "held_out": [{key: each[key] for key in ("a", "overall", "dimensions", "verdict")} for each in held_out],
            "rounds": self._records, "assumptions": self._wanted.twin.assumptions, "source": source_summary(self._traces[0]),
        }  # fmt: skip
        _write_json(self._directory / SUMMARY, document)
        return document


def source_summary(trace: Trace) -> dict[str, Any]:
    """Return what may be known of the job wherever its twin goes: counts, bytes, times and the kind of machine; no names."""
    manifest, host = trace.manifest, trace.manifest.host
    phases = trace.phases()
    seconds = (phases["end_ns"] - phases["start_ns"]).groupby(phases["phase"].astype(str)).sum() / 1e9
    return {
        "counts": manifest.counts, "events": manifest.events, "lost": manifest.lost_events, "backend": manifest.backend,
        "wall_s": manifest.cost.wall_ns / 1e9, "seconds_by_phase": {name: round(float(s), 3) for name, s in seconds.items()},
        "machine": {
            "kernel": host.kernel, "cpus": host.cpus, "memory_bytes": host.memory_bytes, "architecture": host.architecture,
        },
    }  # fmt: skip


def _backend_like(trace: Trace) -> str:
    """The backend that the job was traced with, if it works here: two that count alike still differ in what they cost."""
    from tracing_tools.backends import BACKEND_NAMES, unavailable_reason

    name = trace.manifest.backend
    return name if name in BACKEND_NAMES and unavailable_reason(name) is None else "auto"


def _score(overall: float | None) -> str:
    return "score withheld" if overall is None else f"overall {overall:.3f}"


def _write_json(path: Path, document: dict[str, Any]) -> None:
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
