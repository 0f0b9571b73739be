"""A configuration with everything that a configuration may have, and a stand-in for ``iotwin dtr train``."""

import json
from pathlib import Path

from iotwin.workloads.dtr.experiments.trials import ActionResult

CONFIG = {
    "active": True, "sync_gpu": True, "dry_run": 1, "n_inputs": 2, "n_reps": 3, "report_errors": True, "set_seed": True,
    "seed": 7, "models": ["unet", "lstm"], "notify": ["U1"],
    "dtr_settings": {
        "default": {"batch_size": 2, "timeout": 30, "use_sampling": True},
        "lstm": [
            {"type": "baseline", "batch_size": 5, "extra_params": {"in_dim": 4, "mem_dim": 6, "input_size": 3}},
            {"type": "dtr", "kind": "ratio", "batch_size": 5, "ratio": [0.9, 0.5],
             "extra_params": {"in_dim": 4, "mem_dim": 6, "input_size": 3, "no_sampling_below_ratio": 0.5}},
        ],
        "unet": [
            {"type": "baseline", "batch_size": [2, 3]},
            {"type": "dtr", "kind": "fixed", "memory_budget": [8e6, 4e6, 1e6],
             "extra_params": {"height": 48, "no_sampling_below_budget": 4e6, "retry_on_error": True, "max_retries": 3}},
            {"type": "dtr", "kind": "param_sweep", "memory_budget": [6e6], "batch_size": [2, 3], "heuristic": "LRU"},
        ],
    },
}  # fmt: skip


def written(folder: Path, config: object = CONFIG, name: str = "study.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(config))
    return path


def changed(*path: str | int, to: object) -> dict:
    """CONFIG with the value at `path` replaced; `None` removes it."""
    config = json.loads(json.dumps(CONFIG))
    table = config
    for key in path[:-1]:
        table = table[key]
    if to is None:
        del table[path[-1]]
    else:
        table[path[-1]] = to
    return config


def value_of(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words else None


class StandIn:
    """Answers as ``iotwin dtr train`` does: a model has a peak of 10 MB, and 2 MB are the least budget that can be kept.

    A step takes 10 ms without a budget, and (10 MB / budget) as long with one; the first step of each training takes longer.
    """

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.failures: list[ActionResult] = []  # what the next calls return instead

    def __call__(self, words: list[str], timeout_s: float, environment: dict[str, str]) -> ActionResult:
        self.calls.append(words)
        self.environments.append(environment)
        if self.failures:
            return self.failures.pop(0)
        if words[0] == "log":
            Path(value_of(words, "-o") or "").write_text("")
            return ActionResult(0, "{}", "")
        budget = int(value_of(words, "--budget") or 10_000_000)
        if budget < 2_000_000:
            return ActionResult(1, "", "iotwin dtr train: the budget of 1 MB cannot be kept: 2 MB are the least\n")
        seconds = 0.01 * 10_000_000 / min(budget, 10_000_000)
        steps = int(value_of(words, "--steps") or 0)
        document = {
            "model": words[1], "budget_bytes": budget, "peak_bytes": min(budget, 10_000_000), "over_budget": 0,
            "step_s": [9.0, *[seconds] * (steps - 1)], "base_compute_s": 0.008 * steps, "remat_compute_s": 0.001 * steps,
            "search_s": 0.0005 * steps, "cost_s": 0.0002 * steps,
        }  # fmt: skip
        return ActionResult(0, json.dumps(document), "")
