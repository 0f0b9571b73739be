"""Runs the DTR paper's studies, which compare heuristics and deallocation policies over budgets. A study can be resumed."""

import csv
import io
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder, write_whole
from iotwin.common.progress import progress
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workloads.dtr.simulator import kernel_codes
from iotwin.workloads.dtr.simulator.graph import Graph
from iotwin.workloads.dtr.simulator.heuristics import ABLATION, HEURISTICS, MAIN, Heuristic
from iotwin.workloads.dtr.simulator.log_manifest import LoggedModel, load_graph
from iotwin.workloads.dtr.simulator.simulate import Baseline, SimulatedRun, SimulationSettings, baseline, simulate

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_COLUMNS = (
    "study", "model", "heuristic", "dealloc", "ratio", "budget_bytes", "trial", "result", "overhead", "accesses", "evaluations",
)  # fmt: skip
_RUNTIME = {"eager": "V2EagerOptimized", "ignore": "V2EagerOptimized", "banish": "V1"}
_FEATURES = {kernel_codes.NEIGHBOURHOOD: ["regions"], kernel_codes.ANCESTORS: ["regions"], kernel_codes.SETS: ["eq_class"]}


@dataclass(frozen=True)
class Study:
    """A study: the (heuristic, deallocation policy) pairs, the ending of its folders' names, the quantity of its curves."""

    runs: tuple[tuple[str, str], ...]
    suffix: str
    value: str = "overhead"


def _eager(heuristics: list[Heuristic]) -> tuple[tuple[str, str], ...]:
    return tuple((heuristic.name, "eager") for heuristic in heuristics)


STUDIES = {
    "pareto": Study(_eager(MAIN), ""),
    "ablation": Study(_eager(ABLATION), "-ablate"),
    "banishing": Study((("DTRUnopt", "banish"), ("DTR", "eager"), ("DTR", "ignore")), "-banish"),
    "accesses": Study(
        _eager([HEURISTICS[name] for name in ("DTR", "DTREqClass", "DTRLocal")]), "-access", "heuristic_access_count"
    ),
}


@dataclass(frozen=True)
class Task:
    """The runs of one model with one heuristic and deallocation policy, over all budget ratios; `output` is the results' file."""

    model: LoggedModel
    heuristic: str
    dealloc: str
    output: Path
    ratios: tuple[float, ...] = RATIOS
    overhead_limit: float = 2.0
    trials: int = 10
    seed: int = 0


@lru_cache(maxsize=4)
def _prepared(log: Path) -> tuple[Graph, Baseline]:
    graph = load_graph(log)
    return graph, baseline(graph)


def run_task(task: Task) -> dict[str, Any]:
    """Run a task, write its results, and return {"states": the result of each run, "cpu_s": CPU seconds of all runs}."""
    graph, base = _prepared(task.model.log)
    heuristic = HEURISTICS[task.heuristic]
    trials = task.trials if heuristic.random else 1
    results, states, cpu_s = [], [], 0.0
    for ratio in task.ratios:
        budget = int(base.peak * ratio)
        runs = [
            simulate(
                graph,
                SimulationSettings(heuristic, budget, task.dealloc, task.overhead_limit, seed=task.seed + trial),
                base.compute,
            )
            for trial in range(trials)
        ]
        results.append(_result(ratio, budget, runs, base))
        states += [run.result for run in runs]
        cpu_s += sum(run.cpu_s for run in runs)
    write_whole(
        task.output, msgspec.json.format(msgspec.json.encode({"config": _config(task, base), "results": results}), indent=2)
    )
    return {"states": states, "cpu_s": cpu_s}


def _config(task: Task, base: Baseline) -> dict[str, Any]:
    heuristic = HEURISTICS[task.heuristic]
    model = task.model
    features = _FEATURES.get(heuristic.cost, []) + (
        ["last_access_int"] if heuristic.by_staleness or heuristic.name == "LRU" else []
    )
    return {
        "model": {"name": model.name, "title": model.title, "desc": model.desc, "log": str(model.log),
                  "has_start": model.has_start},
        "heuristic": task.heuristic, "heuristic_features": features, "ratios": list(task.ratios),
        "overhead_limit": task.overhead_limit, "runtime": _RUNTIME[task.dealloc], "runtime_features": [task.dealloc],
        "kwargs": {"no_dealloc": True} if task.dealloc == "ignore" else {}, "dealloc": task.dealloc, "seed": task.seed,
        "baseline_compute": base.compute, "baseline_memory": base.peak, "baseline_const": base.constant,
        "baseline_bottleneck": base.bottleneck,
    }  # fmt: skip


def _result(ratio: float, budget: int, runs: list[SimulatedRun], base: Baseline) -> dict[str, Any]:
    """Return the results for a budget ratio. Lists have one entry per trial; a run that did not pass has the overhead None."""
    return {
        "ratio": ratio,
        "budget": budget,
        "OOM": [run.result == "oom" for run in runs],
        "remat_exceeded": [run.result == "thrash" for run in runs],
        "meta": None,
        "total_time": [run.cpu_s for run in runs],
        "overhead": [run.clock / base.compute if run.result == "pass" else None for run in runs],
        "heuristic_eval_count": [run.evaluations for run in runs],
        "heuristic_access_count": [run.accesses for run in runs],
        "num_trials": len(runs),
        "state": [run.result for run in runs],
    }


def _file_name(model: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_.()" else "_" for letter in model)


def tasks_of(models: list[LoggedModel], studies: list[str], directory: Path, trials: int, seed: int) -> Iterator[Task]:
    """Yield the tasks of studies. A model's results go to its existing folder, or to a new one named after the present time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for name in studies:
        study = STUDIES[name]
        for model in models:
            ending = f"-{_file_name(model.name)}{study.suffix}"
            there = sorted(path for path in (directory / name).glob(f"*{ending}") if path.is_dir())
            folder = there[0] if there else directory / name / f"{stamp}{ending}"
            when = folder.name[: -len(ending)]
            for heuristic, dealloc in study.runs:
                again = f"-{dealloc}" if dealloc == "ignore" else ""
                file = folder / f"{when}-{_file_name(model.name)}-{heuristic}{again}.json"
                yield Task(model, heuristic, dealloc, file, trials=trials, seed=seed)


def run_sweep(
    models: list[LoggedModel],
    studies: list[str],
    directory: Path,
    workers: int | None,
    resume: bool,
    trials: int = 10,
    seed: int = 0,
) -> dict[str, Any]:
    """Run studies, write their results to `directory`, and return {"directory", "runs", "passed", "oom", "thrash", ...}.

    With `resume`, tasks whose results exist are not run again. Without it, raises IotwinError if results exist.
    """
    tasks = list(tasks_of(models, studies, directory, trials, seed))
    left = [task for task in tasks if not task.output.is_file()]
    if len(left) < len(tasks) and not resume:
        raise IotwinError(f"{directory} holds results already; continue with --resume, or choose another directory")
    make_folder(directory)
    for task in left:
        make_folder(task.output.parent, below=directory)
    states: list[str] = []
    cpu_s = 0.0
    with progress("simulating", len(left), "runs") as advance:
        for done in _each(left, workers or os.cpu_count() or 1):
            states += done["states"]
            cpu_s += done["cpu_s"]
            advance(1)
    write_whole(directory / "curves.json", msgspec.json.encode({"panels": panels(tasks, studies)}))
    write_whole(directory / "runs.csv", _table(tasks).encode())
    files = [str(task.output.relative_to(directory)) for task in tasks]
    counts = {state: states.count(state) for state in ("pass", "oom", "thrash")}
    return {
        "directory": str(directory),
        "runs": len(states),
        "passed": counts["pass"],
        "oom": counts["oom"],
        "thrash": counts["thrash"],
        "cpu_s": round(cpu_s, 3),
        "files": [*files, "curves.json", "runs.csv"],
    }


def _table(tasks: list[Task]) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for task in tasks:
        start = (task.output.parent.parent.name, task.model.name, task.heuristic, task.dealloc)
        for row in read_foreign_json(task.output)["results"]:
            trials = zip(row["state"], row["overhead"], row["heuristic_access_count"], row["heuristic_eval_count"], strict=True)
            writer.writerows((*start, row["ratio"], row["budget"], trial, *values) for trial, values in enumerate(trials))
    return table.getvalue()


def _each(tasks: list[Task], workers: int) -> Iterator[dict[str, Any]]:
    if workers == 1 or len(tasks) < 2:
        yield from map(run_task, tasks)
        return
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_task, task) for task in tasks]):
            yield future.result()


def panels(tasks: list[Task], studies: list[str]) -> list[dict[str, Any]]:
    """Return a panel per study and model, with a curve per task. A budget ratio at which a run did not pass is a gap."""
    made = []
    for name in studies:
        study = STUDIES[name]
        by_model: dict[str, list[Task]] = {}
        for task in tasks:
            if task.output.parent.parent.name == name:
                by_model.setdefault(task.model.title, []).append(task)
        for title, ours in by_model.items():
            series = [_series(task, study.value) for task in ours]
            label, scale = ("compute overhead", "linear") if study.value == "overhead" else ("metadata accesses", "log")
            made.append(
                {
                    "title": f"{title}, {name}",
                    "x": {"label": "memory ratio"},
                    "y": {"label": label, "scale": scale},
                    "series": [one for one in series if any(y is not None for y in one["y"])],
                }
            )
    return made


def _series(task: Task, value: str) -> dict[str, Any]:
    heuristic = HEURISTICS[task.heuristic]
    names = {"banish": "banishing", "ignore": "no deallocation"}
    document = read_foreign_json(task.output)
    means = []
    for row in document["results"]:
        passed = all(state == "pass" for state in row["state"])
        mean = sum(row[value]) / len(row[value]) if passed else 0
        means.append(mean or None)  # 0 cannot be shown on a logarithmic axis
    return {"name": names.get(task.dealloc, heuristic.title), "x": [row["ratio"] for row in document["results"]], "y": means}
